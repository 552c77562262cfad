"""The memory that a step frees, kept for the next step."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of malloc.h
NEVER = -1  # for M_TRIM_THRESHOLD; the largest int would be 2 GB, which a large step frees


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed, instead of giving it back to the system.

    On a CPU, XLA allocates the intermediate arrays of a computation anew in each call, 0.1 to 1 GB
    for a training step. By default glibc takes blocks of this size from the system and gives them
    back at once, and the system clears and maps every page again in the next step: a quarter to a
    half of its time. With one arena that is never trimmed, all steps use the same pages. It is for
    a process whose work is the training, before its threads start; so no import does it.

    Returns:
      Whether it is done; False where the C library is not glibc.
    References: mallopt(3).
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER))
    return all(libc.mallopt(option, value) == 1 for option, value in options)
