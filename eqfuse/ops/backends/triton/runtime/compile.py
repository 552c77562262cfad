"""Compile a kernel once: kept in memory for the process and on disk for the next one."""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import pathlib
import threading
import time
import warnings

import eqfuse
from eqfuse.ops import _cache
from eqfuse.ops.backends.triton.runtime import pipeline
from eqfuse.ops.backends.triton.spec import KernelSpec


@dataclasses.dataclass(frozen=True)
class CompiledKernel:
    """A kernel for one target.

    Attributes:
      entry: name of the function in the binary.
      target: "sm_90", "gfx942" or their like.
      assembly: PTX text, or AMD assembly.
      binary: machine code: NVIDIA's cubin, of which registers and spills are, or AMD's code object.
      registers: per thread.
      spilled_bytes: per thread, stores plus loads; for AMD the scratch memory.
      num_warps: of a program: those of the spec, or more where fewer would spill.
      shared_bytes: per program.
      compile_seconds: what it took when it was compiled.
      from_disk: whether this process found it on disk.
    """

    entry: str
    target: str
    assembly: str
    binary: bytes
    registers: int
    spilled_bytes: int
    num_warps: int
    shared_bytes: int
    compile_seconds: float
    from_disk: bool


@dataclasses.dataclass(frozen=True)
class CompileCounts:
    """How often this process compiled a kernel, had it in memory, and read it from disk."""

    compiled: int = 0
    in_memory: int = 0
    on_disk: int = 0


MOST_WARPS = 8
"""Warps of a program up to which more are tried where fewer spill."""

_LOCK = threading.RLock()
_KERNELS: dict[tuple[KernelSpec, str], CompiledKernel] = {}
_counts = CompileCounts()


def compile_counts() -> CompileCounts:
    """Return the counts since this process began; those of `compile_many`'s workers included."""
    return _counts


def _count(name: str) -> None:
    global _counts
    _counts = dataclasses.replace(_counts, **{name: getattr(_counts, name) + 1})


def compile_kernel(spec: KernelSpec, target: str) -> CompiledKernel:
    """Return the kernel for `target` ("sm_80", "gfx942", ...), compiled if it is not yet.

    Raises:
      ImportError: triton is not installed.
      ValueError: an unknown target.
      triton.CompilationError: the source is not a kernel.
    """
    with _LOCK:
        if result := _KERNELS.get((spec, target)):
            _count("in_memory")
            return result
        return find(spec, target) or _compile(spec, target)


def find(spec: KernelSpec, target: str, *, compiled_elsewhere: bool = False):
    """Return the kernel from memory or disk, or None.

    `compiled_elsewhere` counts a worker's kernel.
    """
    with _LOCK:
        if result := _KERNELS.get((spec, target)):
            _count("in_memory")
            return result
        value = _cache.read_entry(*_place(spec, target))
        if value is None:
            return None
        kernel = _from_json(value, from_disk=not compiled_elsewhere)
        _count("compiled" if compiled_elsewhere else "on_disk")
        return _keep(spec, kernel)


def _compile(spec: KernelSpec, target: str) -> CompiledKernel:
    kernel = _compile_once(spec, target)
    # an element of a dense kernel's tile is of one thread, and more threads have fewer each; a
    # thread of another kernel has a channel, and more threads would compute it twice
    most = MOST_WARPS if spec.coalesce and target.startswith("sm_") else spec.num_warps
    warps = spec.num_warps
    while kernel.spilled_bytes and (warps := 2 * warps) <= most:
        other = _compile_once(dataclasses.replace(spec, num_warps=warps), target)
        kernel = min(kernel, other, key=lambda k: k.spilled_bytes)
    path, key = _place(spec, target)
    _cache.write_entry(path, key, _to_json(kernel))
    _count("compiled")
    return _keep(spec, kernel)


def _compile_once(spec: KernelSpec, target: str) -> CompiledKernel:
    start = time.perf_counter()
    stages, metadata = pipeline.compile_stages(spec, target)
    if metadata.get("global_scratch_size"):
        raise ValueError(
            f"kernel {spec.name} asks for scratch memory on the device, which is not passed to it"
        )
    registers, spilled = pipeline.resources(stages)
    return CompiledKernel(
        entry=metadata["name"],
        target=target,
        assembly=stages.get("ptx") or stages["amdgcn"],
        binary=stages.get("cubin") or stages["hsaco"],
        registers=registers,
        spilled_bytes=spilled,
        num_warps=spec.num_warps,
        shared_bytes=metadata["shared"],
        compile_seconds=round(time.perf_counter() - start, 3),
        from_disk=False,
    )


def _keep(spec: KernelSpec, kernel: CompiledKernel) -> CompiledKernel:
    """Keep a kernel in memory; warn of one for NVIDIA that spills. AMD's scratch has other uses."""
    _KERNELS[spec, kernel.target] = kernel
    if kernel.spilled_bytes and kernel.target.startswith("sm_"):
        warnings.warn(
            f"kernel {spec.name} for {kernel.target} spills {kernel.spilled_bytes} bytes of each "
            "thread's registers to memory: its results are right, and it is slower than it need be",
            RuntimeWarning,
            stacklevel=2,
        )
    return kernel


def _place(spec: KernelSpec, target: str) -> tuple[pathlib.Path, dict]:
    """Return file and full key: all that decides what comes out of the compiler."""
    key = {
        **{name: list(v) if isinstance(v, tuple) else v for name, v in vars(spec).items()},
        "target": target,
        "options": pipeline.compile_options(spec, target),
        "triton": importlib.metadata.version("triton"),
        "eqfuse": f"{eqfuse.__version__}-{pipeline.REVISION}",
    }
    folder = _cache.cache_folder("compiled")
    return folder / f"{spec.name}-{target}-{_cache.digest(key)[:16]}.json", key


def _to_json(kernel: CompiledKernel) -> dict:
    return {**vars(kernel), "binary": base64.b64encode(kernel.binary).decode()}


def _from_json(value: dict, from_disk: bool) -> CompiledKernel:
    binary = base64.b64decode(value["binary"])
    return CompiledKernel(**{**value, "binary": binary, "from_disk": from_disk})
