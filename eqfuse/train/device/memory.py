"""The memory of a process on a CPU, kept between the calls of compiled programs.

XLA allocates the arrays of a program anew in each call, 0.1 to 1 GB for a training step. By default
glibc takes large blocks from the system and gives them back at once, and the system clears and maps
every page again: a quarter to a half of the time of a training step, and a third of an evaluation
of 1,000 atoms (28,000 edges) on two cores. Both functions are for a whole process, so no import
calls them.
"""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8  # of malloc.h
_NEVER, _MOST = -1, 2**31 - 1  # a large step frees more than _MOST, 2 GB


def keep_freed_memory() -> bool:
    """Keep all that is freed, in one arena that is never trimmed.

    It is for a process whose work is the training, before its threads start.

    Returns:
      Whether it is done; False where the C library is not glibc.
    """
    return _set({_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER})


def keep_memory() -> bool:
    """Keep up to 2 GB of what is freed, unless variables of the environment set these thresholds.

    Returns:
      Whether it is done.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return False
    return _set({_MMAP_THRESHOLD: _MOST, _TRIM_THRESHOLD: _MOST})


def _set(options: dict[int, int]) -> bool:
    """Set options of glibc's mallopt(3); return whether it took them."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    done = [libc.mallopt(option, value) for option, value in options.items()]
    return done == [1] * len(options)
