"""One Triton kernel inside a JAX computation, launched once."""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops._backend import NO_GPU
from eqfuse.ops.triton.spec import KernelSpec

launch_p = Primitive("eqfuse_launch")
launch_p.multiple_results = True


def launch(spec: KernelSpec, arrays, shapes, scalars, programs: int, backend: str):
    """Run a kernel.

    Args:
      spec: the kernel.
      arrays: its inputs, in order.
      shapes: of its outputs, whose dtypes are those of the spec.
      scalars: one int for each of `spec.scalars`.
      programs: how many.
      backend: "triton", or "triton-interpret".
    """
    return launch_p.bind(
        *arrays,
        spec=spec,
        shapes=tuple(shapes),
        scalars=tuple(scalars),
        programs=programs,
        backend=backend,
    )


@launch_p.def_abstract_eval
def _abstract(*arrays, spec, shapes, scalars, programs, backend):
    return [
        jax.core.ShapedArray(shape, jnp.dtype(dtype))
        for shape, dtype in zip(shapes, spec.output_dtypes, strict=True)
    ]


def _lower(ctx, *operands, spec, shapes, scalars, programs, backend):
    from eqfuse.ops.triton.runtime import launch

    lower = launch.lower_gpu if backend == "triton" else launch.lower_interpret
    return lower(ctx, spec, operands, ctx.avals_in, ctx.avals_out, scalars, (programs,))


def _lower_cpu(ctx, *operands, backend, **params):
    if backend == "triton":
        raise NotImplementedError(NO_GPU)
    return _lower(ctx, *operands, backend=backend, **params)


mlir.register_lowering(launch_p, _lower_cpu, platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(launch_p, _lower, platform=_platform)
