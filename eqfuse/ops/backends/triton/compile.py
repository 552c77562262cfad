"""Compile a kernel once: kept in memory for the process and on disk for the next one."""

from __future__ import annotations

import base64
import concurrent.futures
import dataclasses
import functools
import importlib.metadata
import json
import linecache
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time
import types
import warnings
from typing import NamedTuple

import eqfuse
from eqfuse.ops import _host
from eqfuse.ops._kept import Kept
from eqfuse.ops.backends.triton.spec import KernelSpec

PTXAS = "TRITON_PTXAS_PATH"
"""Triton's environment variable of where an assembler is, if it has none of its own."""

# triton's default, PTX 9.4, is refused by the assemblers and drivers of CUDA 12; these are the
# oldest that know the target, or 8.7 where that does
_PTX_VERSIONS = {101: 87, 103: 88, 110: 90, 120: 87, 121: 88}


class Assembled(NamedTuple):
    """Registers and bytes spilled of each thread, and machine code: what ptxas makes of PTX."""

    registers: int
    spilled_bytes: int
    cubin: bytes


def ptx_version(target: str) -> int | None:
    """Return the version of PTX that is written, 87 for 8.7; None for an unknown target."""
    capability = int(target.removeprefix("sm_"))
    return 87 if capability <= 100 else _PTX_VERSIONS.get(capability)


def assemble(ptx: str) -> Assembled:
    """Assemble PTX for the target that it names, by triton's ptxas."""
    name = re.search(r"^\.target (\w+)", ptx, re.M)[1]
    with tempfile.TemporaryDirectory() as folder:
        file, out = (pathlib.Path(folder) / name for name in ("kernel.ptx", "kernel.cubin"))
        file.write_text(ptx)
        command = [of_triton(name), "-v", f"--gpu-name={name}", file, "-o", out]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"ptxas failed on a kernel for {name}:\n{run.stderr}")
        cubin = out.read_bytes()
    registers = re.search(r"Used (\d+) registers", run.stderr)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", run.stderr)
    return Assembled(int(registers[1]), int(spilled[1]) + int(spilled[2]), cubin)


def of_triton(architecture: str) -> pathlib.Path:
    """Return triton's ptxas for "sm_90a" or its like.

    That of CUDA 12 comes first, whose machine code older drivers load too; the newer one is for
    targets that it does not know. Triton of conda has neither, and takes that of CUDA.
    """
    import triton

    folder = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    first, newer = folder / "ptxas", folder / "ptxas-blackwell"
    if newer.exists() and not (first.exists() and _knows(first, architecture)):
        return newer
    found = first if first.exists() else os.environ.get(PTXAS) or shutil.which("ptxas")
    if found is None:
        raise RuntimeError(
            f"this triton has no ptxas, and PATH neither; set {PTXAS} to that of CUDA 12.8 or later"
        )
    return pathlib.Path(found)


@functools.cache
def _knows(program: pathlib.Path, architecture: str) -> bool:
    text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    return f"'{architecture}'" in text


# held by the compiler, which reads `triton.language`, and by the interpreter of the tests, which
# patches it
LANGUAGE_LOCK = threading.Lock()


def load(spec: KernelSpec):
    """Return the kernel as a triton JITFunction, a new one in each call."""
    path = f"<{spec.name}>"
    # triton asks `inspect` for the source, which it finds there
    linecache.cache[path] = (len(spec.source), None, spec.source.splitlines(True), path)
    module = types.ModuleType(spec.name)
    exec(compile(spec.source, path, "exec"), module.__dict__)
    return module.__dict__[spec.name]


# raised when a change of this file changes what is compiled, so that old entries are not found
REVISION = 8

# registers per thread at which ptxas fits fewer programs on a processor, for small programs
_REGISTER_STEPS = (64, 80, 96, 128, 144, 168, 200, 255)
_REGISTERS = 65536  # of a processor, for all threads of a program


def gpu_target(name: str):
    """Return Triton's description of "sm_80", "sm_90", "gfx942" and their like."""
    from triton.backends.compiler import GPUTarget

    if re.fullmatch(r"sm_\d{2,3}", name):
        return GPUTarget("cuda", int(name[3:]), 32)
    if re.fullmatch(r"gfx1\d[0-9a-f]{2}", name):
        raise ValueError(
            f"target {name!r} has waves of 32 threads, and jaxlib launches kernels for waves of "
            "64, which AMD's Instinct GPUs (gfx9) have; use backend='xla' on this one"
        )
    if re.fullmatch(r"gfx[0-9a-f]{3}", name):
        return GPUTarget("hip", name, 64)
    raise ValueError(f"target {name!r} is unknown; it looks like 'sm_90' or 'gfx942'")


def compile_options(spec: KernelSpec, target: str) -> dict:
    """Return the options of triton besides the source."""
    options = {"num_warps": spec.num_warps, "enable_fp_fusion": True}
    if target.startswith("sm_") and (version := ptx_version(target)):
        options["ptx_version"] = version
    return options


def compile_stages(spec: KernelSpec, target: str) -> tuple[dict[str, object], dict]:
    """Return the text or bytes of each stage by name, up to "ptx" or "hsaco", and metadata."""
    import triton
    from triton._C.libtriton import ir
    from triton.backends.compiler import Language
    from triton.compiler import ASTSource

    gpu = gpu_target(target)
    kernel = load(spec)
    backend = triton.compiler.make_backend(gpu)
    if not spec.coalesce:
        backend.make_ttgir = _without_coalesce(backend.make_ttgir)
    options = backend.parse_options(compile_options(spec, target))
    # XLA aligns every buffer to at least 16 bytes
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, kind in enumerate(spec.parameter_types)
        if kind.startswith("*")
    }
    names = [parameter.name for parameter in kernel.params]
    signature = dict(zip(names, spec.parameter_types, strict=True))
    source = ASTSource(kernel, signature, constexprs={}, attrs=attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with LANGUAGE_LOCK:
        module = source.make_ir(
            gpu,
            options,
            backend.get_codegen_implementation(options),
            backend.get_module_map(),
            context,
        )
    stages, results, metadata = {}, {}, {"target": gpu, **vars(options)}
    backend.add_stages(stages, options, Language.TRITON)
    stages.pop("cubin", None)  # `resources` makes it
    for name, stage in stages.items():
        module = stage(module, metadata)
        results[name] = module if isinstance(module, str | bytes) else str(module)
    if "ptx" in results:
        results["ptx"] = _without_lines(results["ptx"])
    return results, metadata


def _without_coalesce(make_ttgir):
    """Return Triton's make_ttgir without the pass TritonGPUCoalesce, if there is such a pass.

    The pass picks how many neighbouring elements a thread loads at once. It takes nine tenths of
    the time of a large kernel of a form, and finds one. A fused kernel loads less often with it,
    but takes up to twice the time to compile and more registers (benchmarks/results/kernels.md).
    No result can change. The function is copied with its own `passes`, for these kernels alone.
    """
    passes = make_ttgir.__globals__.get("passes")
    if "add_coalesce" not in make_ttgir.__code__.co_names or not hasattr(passes, "ttgpuir"):
        return make_ttgir
    gpu_passes = types.SimpleNamespace(**vars(passes.ttgpuir))
    gpu_passes.add_coalesce = lambda manager: None
    ours = types.SimpleNamespace(**{**vars(passes), "ttgpuir": gpu_passes})
    return functools.update_wrapper(
        types.FunctionType(
            make_ttgir.__code__,
            {**make_ttgir.__globals__, "passes": ours},
            make_ttgir.__name__,
            make_ttgir.__defaults__,
            make_ttgir.__closure__,
        ),
        make_ttgir,
    )


def _without_lines(ptx: str) -> str:
    """Return PTX without comments, and without the lines and the path of its source.

    XLA reads and hashes the whole text in every call of a kernel; a third of it is this.
    """
    ptx = re.sub(r"^\s*\.section\s+\.debug_\w+\s*\{.*?\}", "", ptx, flags=re.M | re.S)
    ptx = re.sub(r"^\s*\.(?:loc|file)\b.*$", "", ptx, flags=re.M)
    ptx = re.sub(r"//.*$", "", ptx, flags=re.M)
    return "".join(f"{line.rstrip()}\n" for line in ptx.splitlines() if line.strip())


def resources(stages: dict[str, object]) -> tuple[int, int]:
    """Return registers per thread, and bytes spilled per thread (stores and loads; AMD: scratch).

    PTX is assembled, to "cubin" in `stages`; PTX that spills is given the fewest registers with
    which it does not: ptxas spills a few bytes where that lets more programs run at once, which
    costs our kernels more. It does not see to it that a processor has so many registers.
    """
    if "ptx" not in stages:
        text = stages["amdgcn"]
        registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
        scratch = re.search(r"\.private_segment_fixed_size:\s+(\d+)", text)
        return int(registers[1]), int(scratch[1])
    best = assemble(stages["ptx"])
    threads = re.search(r"^\.(?:req|max)ntid (.*)$", stages["ptx"], re.M)[1]
    threads = math.prod(map(int, threads.split(",")))
    for limit in _REGISTER_STEPS if best.spilled_bytes else ():
        if limit <= best.registers or limit * threads > _REGISTERS:
            continue
        allowed = _with_register_limit(stages["ptx"], limit)
        result = assemble(allowed)
        if not result.spilled_bytes:
            stages["ptx"], best = allowed, result
            break
    stages["cubin"] = best.cubin
    return best.registers, best.spilled_bytes


def _with_register_limit(ptx: str, limit: int) -> str:
    pattern = re.compile(r"^\.(?:req|max)ntid .*$", re.M)
    return pattern.sub(lambda line: f"{line[0]}\n.maxnreg {limit}", ptx, count=1)


@dataclasses.dataclass(frozen=True)
class CompiledKernel:
    """A kernel for one target."""

    entry: str  # name of the function in the binary
    target: str  # "sm_90", "gfx942" or their like
    assembly: str  # PTX or AMD's
    binary: bytes  # cubin, of which registers and spills are, or AMD's code object
    registers: int  # per thread
    spilled_bytes: int  # per thread, stores plus loads; for AMD the scratch memory
    num_warps: int  # of a program: those of the spec, or more where fewer would spill
    shared_bytes: int  # per program
    compile_seconds: float  # what it took when it was compiled


MOST_WARPS = 8  # of a program up to which more are tried where fewer spill

_LOCK = threading.Lock()
_LOCKS: dict[tuple[KernelSpec, str], threading.Lock] = {}
_KERNELS: dict[tuple[KernelSpec, str], CompiledKernel] = {}


def compile_kernel(spec: KernelSpec, target: str) -> CompiledKernel:
    """Return the kernel for `target` ("sm_80", "gfx942", ...), compiled if it is not yet.

    Threads compile different kernels beside each other, and one kernel once.
    """
    with _LOCK:
        lock = _LOCKS.setdefault((spec, target), threading.Lock())
    with lock:
        return find(spec, target) or _compile(spec, target)


def find(spec: KernelSpec, target: str) -> CompiledKernel | None:
    """Return the kernel from memory or disk, or None."""
    if result := _KERNELS.get((spec, target)):
        return result
    content = _kept(spec, target).read()
    if content is None:
        return None
    value = json.loads(content)
    value["binary"] = base64.b64decode(value["binary"])
    return _keep(spec, CompiledKernel(**value))


def _compile(spec: KernelSpec, target: str) -> CompiledKernel:
    kernel = _compile_once(spec, target)
    # an element of a dense kernel's tile is of one thread, and more threads have fewer each; a
    # thread of another kernel has a channel, and more threads would compute it twice
    most = MOST_WARPS if spec.coalesce and target.startswith("sm_") else spec.num_warps
    warps = spec.num_warps
    while kernel.spilled_bytes and (warps := 2 * warps) <= most:
        other = _compile_once(dataclasses.replace(spec, num_warps=warps), target)
        kernel = min(kernel, other, key=lambda k: k.spilled_bytes)
    value = {**vars(kernel), "binary": base64.b64encode(kernel.binary).decode()}
    _kept(spec, target).write(json.dumps(value).encode())
    return _keep(spec, kernel)


def _compile_once(spec: KernelSpec, target: str) -> CompiledKernel:
    start = time.perf_counter()
    stages, metadata = compile_stages(spec, target)
    if metadata.get("global_scratch_size"):
        raise ValueError(
            f"kernel {spec.name} asks for scratch memory on the device, which is not passed to it"
        )
    registers, spilled = resources(stages)
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


def _kept(spec: KernelSpec, target: str) -> Kept:
    """Return the entry of a kernel on disk, by all that decides what comes out of the compiler."""
    key = {
        **vars(spec),
        "target": target,
        "options": compile_options(spec, target),
        "triton": importlib.metadata.version("triton"),
        "eqfuse": f"{eqfuse.__version__}-{REVISION}",
    }
    return Kept("compiled", key, ".kernel", f"{spec.name}-{target}-")


def compile_many(specs, target: str, threads: int | None = None) -> list[CompiledKernel]:
    """Return the compiled kernels, several at a time: LLVM and ptxas run beside each other.

    One that does not compile is an error when all others are in the cache.
    """
    specs = list(specs)

    def compiled(spec: KernelSpec) -> CompiledKernel | Exception:
        try:
            return compile_kernel(spec, target)
        except Exception as error:
            return error

    longest_first = sorted(dict.fromkeys(specs), key=lambda spec: -len(spec.source))
    with concurrent.futures.ThreadPoolExecutor(threads or _host.num_processors()) as pool:
        kernels = dict(zip(longest_first, pool.map(compiled, longest_first), strict=True))
    for spec, error in kernels.items():
        if isinstance(error, Exception):
            message = f"kernel {spec.name} did not compile for {target}:\n{error}"
            raise RuntimeError(message) from error
    return [kernels[spec] for spec in specs]
