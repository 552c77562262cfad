"""Triton's compiler, run stage by stage without a GPU: the only file that knows its inner names."""

from __future__ import annotations

import functools
import math
import re
import types

from eqfuse.ops.backends.triton.runtime import ptxas
from eqfuse.ops.backends.triton.runtime.source import LANGUAGE_LOCK, load
from eqfuse.ops.backends.triton.spec import KernelSpec

# raised when a change of this file changes what is compiled, so that old entries are not found
REVISION = 6

# registers per thread at which ptxas fits fewer programs on a processor, for small programs
_REGISTER_STEPS = (64, 80, 96, 128, 144, 168, 200, 255)
_REGISTERS = 65536  # of a processor, for all threads of a program


def gpu_target(name: str):
    """Return Triton's description of "sm_80", "sm_90", "gfx942" and their like.

    Raises:
      ValueError: a name that is neither, or of a GPU for which jaxlib cannot launch.
    """
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
    if target.startswith("sm_") and (version := ptxas.ptx_version(target)):
        options["ptx_version"] = version
    return options


def compile_stages(spec: KernelSpec, target: str) -> tuple[dict[str, object], dict]:
    """Return all stages of the compilation up to PTX ("ptx") or machine code ("amdgcn", "hsaco").

    Returns:
      The text (or bytes) of each stage by name, and triton's metadata ("name", "shared", ...).
    Raises:
      ImportError: triton is not installed.
      triton.CompilationError: the source is not a kernel.
    """
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
    if len(names) != len(spec.parameter_types):
        raise ValueError(
            f"kernel {spec.name} has {len(names)} parameters, its spec {len(spec.parameter_types)}"
        )
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
    the time of a large kernel of a form and finds one, which is the layout it started from: its
    blocks hold one element per thread. A Linear's kernel, which is small, loads half as often with
    it; a fused one less often too, but it takes up to twice the time to compile and more registers
    (benchmarks/results/kernels.md). Leaving it out cannot change a result, only how memory is read.
    The function is copied with its own `passes`, so that nobody else's kernels are touched.
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

    PTX is assembled, to "cubin" in `stages`.
    PTX that spills is given, in `stages`, the fewest registers with which it does not: ptxas spills
    a few bytes where that lets more programs run at once, which costs our kernels more. All threads
    of a program must find their registers on one processor; ptxas does not see to that.
    """
    if "ptx" not in stages:
        text = stages["amdgcn"]
        registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
        scratch = re.search(r"\.private_segment_fixed_size:\s+(\d+)", text)
        return int(registers[1]), int(scratch[1])
    best = ptxas.assemble(stages["ptx"])
    for limit in _REGISTER_STEPS if best.spilled_bytes else ():
        if limit <= best.registers or limit * _threads(stages["ptx"]) > _REGISTERS:
            continue
        allowed = _with_register_limit(stages["ptx"], limit)
        result = ptxas.assemble(allowed)
        if not result.spilled_bytes:
            stages["ptx"], best = allowed, result
            break
    stages["cubin"] = best.cubin
    return best.registers, best.spilled_bytes


def _threads(ptx: str) -> int:
    """Return the threads of a program."""
    numbers = re.search(r"^\.(?:req|max)ntid (.*)$", ptx, re.M)[1]
    return math.prod(int(n) for n in numbers.split(","))


def _with_register_limit(ptx: str, limit: int) -> str:
    """Return PTX that grants its kernel more registers, so that ptxas does not spill."""
    return re.sub(
        r"^\.(?:req|max)ntid .*$",
        lambda line: f"{line[0]}\n.maxnreg {limit}",
        ptx,
        count=1,
        flags=re.M,
    )
