"""Settings of a whole process: it keeps the memory it frees and the programs it compiles.

XLA allocates its arrays anew in each call, and by default glibc gives large blocks back to the
system at once, which clears and maps every page again: a quarter to a half of the time of a
training step on two cores. Since all of this is for a whole process, no import does it.
"""

import contextlib
import ctypes
import gc
import os
import pathlib
import stat
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of malloc.h
_NEVER = -1
_SMALL = 1 << 31  # bytes that a process always keeps
_CGROUP, _MEMINFO = pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/proc/meminfo")
_limited: list[bool] = []  # whether this process keeps memory up to a limit


def keep_freed_memory() -> bool:
    """Keep all that is freed, in one arena that is never trimmed; return False without glibc.

    It is for a process whose work is the training, before its threads start.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER}
    done = [libc.mallopt(option, value) for option, value in options.items()]
    return done == [1] * len(options)


def keep_memory() -> bool:
    """Keep what is freed, up to a limit, unless the environment sets it; return False where not.

    The limit is that of `give_back`, which whoever computes calls after each large computation:
    glibc's own is at most 2 GB. Threads share one arena: in their own they get large blocks from
    the system. A network calls this when it is loaded, before most threads start.
    """
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return False
    if done := keep_freed_memory():
        _limited[:] = [True]
    return done


def memory() -> tuple[int, int]:
    """Return the bytes of memory of this machine, or of its cgroup, and how many are left."""
    sizes = {}
    for line in _MEMINFO.read_text().splitlines():
        name, _, size = line.partition(":")
        sizes[name] = 1024 * int(size.split()[0])
    total, left = sizes["MemTotal"], sizes["MemAvailable"]
    with contextlib.suppress(OSError, ValueError):  # a cgroup without a limit has "max"
        most, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        total, left = min(total, most), min(left, most - used)
    return total, left


def give_back() -> bool:
    """Give what is free back to the system where memory is short, and return whether it was.

    Memory is short where this process has more than 2 GB and half of the memory, or where others
    have left less than a quarter of it.
    """
    if not _limited:
        return False
    import resource

    if 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= _SMALL:  # it never had as much
        return False
    try:
        has = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        total, left = memory()
    except OSError:  # without /proc nothing is known of memory
        return False
    if has <= _SMALL or (has <= total / 2 and left >= total / 4):
        return False
    ctypes.CDLL(None).malloc_trim(0)
    return True


@contextlib.contextmanager
def without_collection():
    """Pause Python's cyclic garbage collector: it takes a tenth of the time of compiling."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


LONG = 0.1
"""Seconds to compile a program that is worth keeping; JAX's own limit is one."""

_LONG = "jax_persistent_cache_min_compile_time_secs"


def keep_programs() -> pathlib.Path | None:
    """Let JAX keep the programs that take long to compile, and find them in later runs.

    They are kept in a folder of the cache that only this user can enter, apart for each processor,
    number of cores and version of jaxlib: a program is compiled for these. Where they are to be
    kept elsewhere (JAX_COMPILATION_CACHE_DIR) or not at all (JAX_ENABLE_COMPILATION_CACHE=false),
    this does nothing and returns None.
    """
    import jax

    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return None
    from eqfuse.ops._kept import cache_folder, remove_old, remove_untrusted

    try:
        folder = cache_folder("programs", _machine())
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:  # others may have written to its files
            for path in folder.iterdir():
                remove_untrusted(path)
            folder.chmod(0o700)
        remove_old(folder, "*-cache")
    except OSError:  # such as a full disk: programs are compiled again
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if _LONG.upper() not in os.environ:
        jax.config.update(_LONG, LONG)
    return folder


def _machine() -> str:
    """Return a name for this processor, its usable cores and the version of jaxlib."""
    import jaxlib

    from eqfuse.ops import _host, _kept

    parts = [*_host.description(), str(_host.num_processors()), jaxlib.__version__]
    return _kept.digest(parts)[:16]
