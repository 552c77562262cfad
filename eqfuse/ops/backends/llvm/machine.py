"""The processor, native code for it, which is kept on disk, and its threads."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import sys
import threading

import jax

from eqfuse.ops import _host
from eqfuse.ops._kept import Kept
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.backends.llvm.text import Module, with_handler

API_VERSIONS = {(0, minor) for minor in range(3, 6)}
"""Versions of XLA's FFI whose structures the runtime reads: those of jaxlib 0.10 to 0.12."""

RUNTIME = pathlib.Path(__file__).with_name("runtime.ll")
"""What all kernels call, made of runtime.c by scripts/runtime_ir.py."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """Kernels that are written for other machines, by name; `suffix` ends the names."""

    machines: tuple[Machine, ...]
    suffix: str
    texts: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, compare=False)


_recording = jax.make_user_context(None)  # of a thread, and in the keys of jit's caches
_lock = threading.RLock()
_libraries: list = []
_records: dict[int, dict[str, str]] = {}
_registered: set[str] = set()


def unavailable() -> str:
    """Return why kernels cannot be compiled and run here, or ""."""
    if importlib.util.find_spec("llvmlite") is None:
        return "the package llvmlite, the compiler of Numba, is not installed; pip install llvmlite"
    if sys.platform not in ("linux", "darwin"):
        return f"it runs on Linux and macOS, not on {sys.platform}"
    if api_version() not in API_VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(API_VERSIONS))
        return (
            f"jaxlib's foreign function interface is of version {api_version()}, "
            f"and this version of eqfuse knows {known}; update eqfuse, or use backend='xla'"
        )
    return ""


@functools.cache
def api_version() -> tuple[int, int] | None:
    """Return version of XLA's FFI, from the header that jaxlib ships; None if it is not there."""
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text(encoding="utf-8")
    except OSError:
        return None
    numbers = [re.search(rf"#define XLA_FFI_API_{n} (\d+)", text) for n in ("MAJOR", "MINOR")]
    return tuple(int(n[1]) for n in numbers) if all(numbers) else None


@functools.cache
def _target():
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=2, reloc="pic", jit=True
    )
    return machine, dict(features)


@contextlib.contextmanager
def recording(machines: tuple[Machine, ...], suffix: str):
    """Lower programs of this thread for other machines, and yield the texts of their kernels.

    Nothing is compiled. A program calls the kernel NAME as NAMEsuffix, which has a text for each
    of the machines.
    """
    recorded = Recording(machines, suffix)
    with _recording(recorded):
        yield recorded.texts


def write(generate) -> Module:
    """Return `generate(machine)`, the kernel for the machine for which kernels are written.

    Where there are several, it has the texts for all. One that would be called otherwise, since it
    copies other operands to whole vectors, has the text for the first machine.
    """
    if not (recorded := _recording.value):
        return generate(machine())
    first, *others = map(generate, recorded.machines)
    call = first.index_arrays, first.results
    alike = [m if (m.index_arrays, m.results) == call else first for m in others]
    names = dict.fromkeys(m.name for m in (first, *alike))
    return dataclasses.replace(first, name="_".join(names), others=tuple(m.text for m in alike))


@functools.cache
def machine() -> Machine:
    """Return the vectors and caches of this machine."""
    target, features = _target()
    # every ARM of 64 bits has NEON, also where LLVM reports no features, as on macOS
    vectors = 16, 32 if target.triple.startswith(("aarch64", "arm64")) else 16
    if features.get("avx"):
        vectors = (64, 32) if features.get("avx512f") else (32, 16)
    return Machine(*vectors, *_host.caches())


def compiled(text: str) -> bytes:
    """Return object code of a module of LLVM IR, from disk if it was compiled before."""
    import llvmlite.binding as llvm

    with _lock:
        target, _ = _target()
        host = [llvm.llvm_version_info, target.triple, *_host.description()]
        kept = Kept("cpu", [text, repr(host)], ".o")
        if (code := kept.read()) is None:
            code = object_code(text, target)
            kept.write(code)
        return code


def object_code(text: str, target) -> bytes:
    """Compile a module of LLVM IR for a target machine."""
    import llvmlite.binding as llvm

    # a context keeps all constants and types of its modules: each module has its own
    with llvm.parse_assembly(text, llvm.create_context()) as parsed:
        parsed.verify()
        return target.emit_object(parsed)


@functools.cache
def _compiler():
    import llvmlite.binding as llvm

    target, _ = _target()
    # It puts the sections of an object side by side. Code of ARM reaches 4 GB, and the older
    # linker ends the process where they lie further apart (llvm-project issue 71963).
    return llvm.create_lljit_compiler(target, use_jit_link=True)


@functools.cache
def _runtime() -> dict[str, int]:
    """Return addresses of what the runtime exports; called under the lock."""
    names = ("call", "limit", "active", "version", "advice")
    names = tuple(f"eqfuse_{name}" for name in names)
    addresses = _link("eqfuse_runtime", RUNTIME.read_text(), names, {})
    ctypes.c_int64.from_address(addresses["eqfuse_limit"]).value = threads()
    (ctypes.c_int32 * 2).from_address(addresses["eqfuse_version"])[:] = api_version()
    if sys.platform != "linux":
        ctypes.c_int32.from_address(addresses["eqfuse_advice"]).value = 0  # another word elsewhere
    return addresses


def _link(library: str, text: str, exported, imported) -> dict[str, int]:
    import llvmlite.binding as llvm

    builder = llvm.JITLibraryBuilder().add_object_img(compiled(text)).add_current_process()
    for name in exported:
        builder.export_symbol(name)
    for name, address in imported.items():
        builder.import_symbol(name, address)
    tracker = builder.link(_compiler(), library)
    _libraries.append(tracker)  # a library whose tracker is collected is removed
    return {name: tracker[name] for name in exported}


@contextlib.contextmanager
def registered():
    """Give a dict of the modules, text by name, that are registered inside; by any thread."""
    record = {}
    _records[id(record)] = record
    try:
        yield record
    finally:
        del _records[id(record)]


def register(name: str, text: str, others=()) -> str:
    """Compile a module and register its handler with XLA, once in a process.

    `others` are its texts for other machines, see `recording`. The result is the name by which
    programs call it. RuntimeError if it does not compile.
    """
    if recorded := _recording.value:
        recorded.texts[name + recorded.suffix] = text, *others
        return name + recorded.suffix
    for record in list(_records.values()):
        record[name] = text
    with _lock:
        if name not in _registered:
            imported = {"eqfuse_call": _runtime()["eqfuse_call"]}
            new = ctypes.pythonapi.PyCapsule_New
            new.restype = ctypes.py_object
            new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            linked = _link(name, with_handler(text, name), [name], imported)
            handler = new(linked[name], None, None)
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
            _registered.add(name)
    return name


def threads() -> int:
    """Return the number of threads that kernels may use.

    That is the least of the processors in the affinity mask, the quota of the cgroup and
    OMP_NUM_THREADS; at least 1. XLA's pool may have fewer.
    """
    allowed = [_host.num_processors(), _cgroup_quota()]
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isdigit():
        allowed.append(int(first))
    return max(1, min(n for n in allowed if n is not None))


def _cgroup_quota(file: str = "/sys/fs/cgroup/cpu.max") -> int | None:
    """Return the processors that the cgroup may use, rounded up; None if it has no limit."""
    try:
        quota, period = pathlib.Path(file).read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None


def set_threads(count: int) -> None:
    """Let kernels of this process use `count` threads from now on."""
    with _lock:
        ctypes.c_int64.from_address(_runtime()["eqfuse_limit"]).value = count
