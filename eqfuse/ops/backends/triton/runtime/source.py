"""From the text of a kernel to a file that a person can read and a function that triton takes."""

from __future__ import annotations

import linecache
import pathlib
import threading
import types

from eqfuse.ops import _cache
from eqfuse.ops.backends.triton.spec import KernelSpec

# held by the interpreter, which patches `triton.language`, and by the compiler, which reads it:
# XLA may interpret on a thread of its own while another thread compiles
LANGUAGE_LOCK = threading.Lock()

_LOCK = threading.Lock()
_LOADED: dict[tuple[KernelSpec, str], object] = {}


def source_file(spec: KernelSpec) -> pathlib.Path:
    """Return the kernel's source as a file in the cache folder, written if need be."""
    path = _cache.cache_folder("source") / f"{spec.name}.py"
    _cache.ensure(path, spec.source.encode())
    return path


def load(spec: KernelSpec, purpose: str = "compile"):
    """Return the kernel as a triton JITFunction, the same object for the same purpose.

    The interpreter writes into the globals of what it runs, so it asks with its own purpose.

    Raises:
      ImportError: triton is not installed.
      ValueError: the source does not define the kernel.
    """
    with _LOCK:
        if (spec, purpose) not in _LOADED:
            _LOADED[spec, purpose] = _execute(spec)
        return _LOADED[spec, purpose]


def _execute(spec: KernelSpec):
    path = str(source_file(spec))
    # triton asks `inspect` for the source; without a time stamp linecache never reads the file
    # again, so that what is compiled is the text of the spec whatever becomes of the file
    linecache.cache[path] = (len(spec.source), None, spec.source.splitlines(True), path)
    module = types.ModuleType(spec.name)
    module.__file__ = path
    exec(compile(spec.source, path, "exec"), module.__dict__)
    if spec.name not in module.__dict__:
        raise ValueError(f"the source of kernel {spec.name} does not define it; see {path}")
    return module.__dict__[spec.name]
