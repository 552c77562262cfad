"""This machine: its processors, their caches, and the key of code that is compiled for them."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import platform

DEFAULT_CACHES = 1 << 20, 1 << 24
"""Bytes of the caches of level 2 and 3 of a small server, where the system reports none."""


def num_processors() -> int:
    """Return the number of processors this process may run on; all, if the system reports none."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def caches(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[int, int]:
    """Return the bytes of the caches of level 2 and 3 that a core uses, as Linux reports them.

    A level of which nothing is known has the bytes in `DEFAULT_CACHES`.
    """
    found: dict[int, int] = {}
    for path in pathlib.Path(folder).glob("index*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            level, kind, size = ((path / n).read_text().strip() for n in ("level", "type", "size"))
            unit = 1 << (10 * " KMG".index(size[-1])) if size[-1] in "KMG" else 1
            if kind != "Instruction":
                found[int(level)] = int(size.rstrip("KMG")) * unit
    return found.get(2) or DEFAULT_CACHES[0], found.get(3) or DEFAULT_CACHES[1]


def description() -> list[str]:
    """Return the key of code for this processor: system, names, instructions and caches.

    Without llvmlite, the name is what Python knows of it.
    """
    words = [platform.system(), platform.machine(), repr(caches())]
    with contextlib.suppress(ImportError):
        import llvmlite.binding as llvm

        features = sorted(dict(llvm.get_host_cpu_features()).items())
        return [*words, llvm.get_host_cpu_name(), repr(features)]
    return [*words, platform.processor()]
