"""From a JAX primitive to a kernel on a GPU: one custom call.

The call is the one that jaxlib's GPU plug-in registers for jax-triton, which fits few versions.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tempfile
import zlib

import jaxlib
from jax import ffi
from jax.interpreters import mlir

from eqfuse.ops.backends.triton.compile import CompiledKernel, compile_kernel
from eqfuse.ops.backends.triton.spec import KernelSpec

# the first jaxlib whose kernels have the field `module_image` (in jaxlib/gpu/triton.proto)
_FIRST_WITH_IMAGES = (0, 11, 1)


def takes_cubins() -> bool:
    """Return True for a jaxlib that loads a cubin; an older one assembles PTX itself."""
    return jaxlib.version.__version_info__ >= _FIRST_WITH_IMAGES


def gpu_kernel(library, compiled: CompiledKernel):
    """Return jaxlib's description of the kernel, and bytes that follow its serialised call.

    jaxlib finds a kernel that it has loaded by its name and PTX, which is a hash beside a cubin.
    For ROCm it is the name of a file, one for each lowering, which jaxlib reads and deletes.
    """
    capability, image = 0, b""
    if not compiled.target.startswith("sm_"):
        handle, text = tempfile.mkstemp(".hsaco", f"{compiled.entry}-", _folder().name)
        with open(handle, "wb") as file:
            file.write(compiled.binary)
    else:
        capability = int(compiled.target.removeprefix("sm_"))
        text = compiled.assembly
        if takes_cubins():
            text = hashlib.sha256(compiled.binary).hexdigest()[:32]
            image = _image(compiled)
    kernel = library.TritonKernel(
        compiled.entry, compiled.num_warps, 1, compiled.shared_bytes, text, "", capability
    )
    return kernel, image


def _image(compiled: CompiledKernel) -> bytes:
    """Return a serialised TritonAnyKernelCall with nothing but the field `module_image`.

    jaxlib's Python interface cannot set it; protobuf merges two messages in a row.
    """
    image = _field(1, compiled.binary) + _field(2, compiled.entry.encode())
    image += _varint(3 << 3) + _varint(compiled.shared_bytes)
    return _field(1, _field(1, _field(11, image)))  # kernel_call.kernel.module_image


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    """Return a folder that is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="eqfuse-", ignore_cleanup_errors=True)


_ALIGNMENT = 16  # bytes, of every XLA buffer on a GPU; pipeline.py assumes the same


def gpu_library():
    """Return jaxlib's bindings for launching triton kernels."""
    from jaxlib import gpu_triton

    if not hasattr(gpu_triton, "TritonKernel"):
        raise RuntimeError(
            "triton kernels need jaxlib's GPU plug-in, which is not installed or does not fit "
            "jaxlib's version; install eqfuse[cuda] (or jax's plug-in for ROCm)"
        )
    return gpu_triton


def target_of(ctx: mlir.LoweringRuleContext) -> str:
    """Return the target of the devices that are lowered for, which need not be present."""
    client = ctx.module_context.backend
    if client is not None and (name := common_target(client.devices())):
        return name
    library = gpu_library()
    try:
        if ctx.module_context.platforms[0] == "rocm":
            return _target_name(library.get_arch_details(0))
        return f"sm_{library.get_compute_capability(0)}"
    except RuntimeError as error:
        raise RuntimeError(
            "the GPU to compile for is not known, since none is present: lower for the devices of "
            "jax.experimental.topologies, or give the target, such as target='sm_90'"
        ) from error


def common_target(devices) -> str | None:
    """Return the one target of all GPUs among the devices, such as "sm_90"; None if there is none.

    Kernels are compiled for one, so GPUs of several targets are refused.
    """
    gpus = [device for device in devices if device.platform != "cpu"]
    targets = {_target_name(str(gpu.compute_capability)): gpu.device_kind for gpu in gpus}
    kinds = {name: kind for name, kind in targets.items() if name}
    if len(kinds) > 1:
        result = ", ".join(f"{kind} ({name})" for name, kind in kinds.items())
        raise ValueError(
            f"this process has GPUs of several kinds, {result}, and kernels are compiled for one; "
            "show it those of one kind by CUDA_VISIBLE_DEVICES (ROCR_VISIBLE_DEVICES for AMD)"
        )
    return next(iter(kinds), None)


def _target_name(capability: str) -> str | None:
    if number := re.fullmatch(r"(\d+)\.(\d)", capability):
        return f"sm_{number[1]}{number[2]}"
    return capability.split(":")[0] if capability.startswith("gfx") else None


def lower_gpu(ctx, *operands, spec: KernelSpec, shapes, scalars, grid, aliases):
    """Launch the kernel on CUDA or ROCm: one custom call. The parameters are those of `launch`."""
    spec.check_call(ctx.avals_in, scalars)
    library = gpu_library()
    compiled = compile_kernel(spec, target_of(ctx))
    parameters = [
        *(library.create_array_parameter(0, _ALIGNMENT) for _ in ctx.avals_in),
        *(library.create_scalar_parameter(int(value), "i32") for value in scalars),
        *(library.create_array_parameter(0, _ALIGNMENT) for _ in ctx.avals_out),
    ]
    kernel, image = gpu_kernel(library, compiled)
    call = library.TritonKernelCall(kernel, *_grid_of_three(spec, grid), parameters)
    rule = ffi.ffi_lowering(
        "triton_kernel_call_ffi", api_version=4, operand_output_aliases=dict(aliases)
    )
    return rule(ctx, *operands, opaque=zlib.compress(call.to_proto(spec.name, b"") + image))


def _grid_of_three(spec: KernelSpec, grid) -> tuple[int, int, int]:
    """Return the grid, filled up with ones and checked against the limits of CUDA."""
    sizes = tuple(map(int, grid)) + (1,) * (3 - len(grid))
    limits = (2**31 - 1, 2**16 - 1, 2**16 - 1)
    if len(sizes) != 3 or not all(
        1 <= size <= limit for size, limit in zip(sizes, limits, strict=True)
    ):
        raise ValueError(f"kernel {spec.name}: grid {tuple(grid)} is not within 1 to {limits}")
    return sizes
