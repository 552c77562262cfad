"""The processors of this machine, and how many of them this process may use."""

import contextlib
import os
import platform


def usable() -> int:
    """Return how many processors this process may run on; all, where the system does not tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def description() -> list[str]:
    """Return what code for this processor depends on: system, architecture, name and instructions.

    Without llvmlite, the name is what Python knows of it.
    """
    words = [platform.system(), platform.machine()]
    with contextlib.suppress(ImportError):
        import llvmlite.binding as llvm

        features = sorted(dict(llvm.get_host_cpu_features()).items())
        return [*words, llvm.get_host_cpu_name(), repr(features)]
    return [*words, platform.processor()]
