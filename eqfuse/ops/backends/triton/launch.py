"""One Triton kernel inside a JAX computation, launched once."""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops.backends.triton.runtime.launch import lower_gpu, lower_interpret
from eqfuse.ops.backends.triton.spec import KernelSpec

NO_GPU = (
    "backend 'triton' runs on a GPU (CUDA or ROCm), and this computation is for a CPU; use "
    "backend='xla' there, or backend='triton-interpret' to check the kernels' results in Triton's "
    "interpreter, thousands of times slower"
)

launch_p = Primitive("eqfuse_launch")
launch_p.multiple_results = True


def launch(
    spec: KernelSpec, arrays, shapes, scalars, grid: tuple[int, ...], backend: str, aliases=()
):
    """Run a kernel.

    Args:
      spec: the kernel.
      arrays: its inputs, in order.
      shapes: of its outputs, whose dtypes are those of the spec.
      scalars: one int for each of `spec.scalars`.
      grid: how many programs along each axis.
      backend: "triton", or "triton-interpret".
      aliases: pairs (input, output) that are one array: the kernel adds to what is there.
    """
    return launch_p.bind(
        *arrays,
        spec=spec,
        shapes=tuple(shapes),
        scalars=tuple(scalars),
        grid=grid,
        backend=backend,
        aliases=aliases,
    )


@launch_p.def_abstract_eval
def _abstract(*arrays, spec, shapes, **params):
    return [
        jax.core.ShapedArray(shape, jnp.dtype(dtype))
        for shape, dtype in zip(shapes, spec.output_dtypes, strict=True)
    ]


def _lower(ctx, *operands, spec, shapes, scalars, grid, backend, aliases):
    lower = lower_gpu if backend == "triton" else lower_interpret
    avals = ctx.avals_in, ctx.avals_out
    return lower(ctx, spec, operands, *avals, scalars, grid, aliases=aliases)


def _lower_cpu(ctx, *operands, backend, **params):
    if backend == "triton":
        raise ValueError(NO_GPU)
    return _lower(ctx, *operands, backend=backend, **params)


mlir.register_lowering(launch_p, _lower_cpu, platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(launch_p, _lower, platform=_platform)
