"""The memory of a process on a CPU, kept between the calls of compiled programs."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_MOST = 2**31 - 1


def keep_memory():
    """Let glibc keep memory that was freed, up to 2 GB, for the next allocations.

    XLA allocates the arrays of a program anew in each call. By default glibc takes large ones from
    the system and gives them back, so that each page is zeroed and mapped again: a third of the
    time of an evaluation of 1,000 atoms (28,000 edges) on two cores. The process keeps the memory
    that it once used. It is for the whole process, so that no import does it. Where the environment
    has MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_, and without glibc, this does nothing.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MOST)
        mallopt(_TRIM_THRESHOLD, _MOST)
