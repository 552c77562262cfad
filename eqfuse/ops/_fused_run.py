"""The kernels of fused ops inside a JAX computation."""

import functools

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops import _fused_backward, _fused_kernel
from eqfuse.ops._backend import NO_GPU
from eqfuse.ops._fused import Call, product, split
from eqfuse.ops._fused_kernel import FusedKernel

PROGRAMS = 128
"""Programs that share the rows of a backward pass, each with its own sum of weight gradients."""

fused_kernel_p = Primitive("eqfuse_fused_kernel")
fused_kernel_p.multiple_results = True

forward_kernel = functools.lru_cache(maxsize=256)(_fused_kernel.forward)
backward_kernel = functools.lru_cache(maxsize=256)(_fused_backward.backward)


def _arrays(call: Call, floats, integers) -> dict[str, jax.Array]:
    """The operands of a call by the names that kernels use."""
    form = call.fused.form
    index, arrays = split(call.fused, integers)
    named = dict(zip([o.name for o in form.inputs], floats, strict=False))
    named["weights"] = floats[len(form.inputs)]
    if call.fused.skip:
        named["skip"] = floats[-1]
    if index is not None:
        named["which"] = index
    return named | arrays


def forward(call: Call, floats, integers):
    """out and z, from one kernel."""
    kernel = forward_kernel(call.fused, floats[0].dtype.name)
    sizes = {"result": call.fused.gate.irreps_out.dim, "mixed": call.fused.mixing.size_out}
    named = _arrays(call, floats, integers)
    blocks = -(-call.rows // kernel.rows_per_program)
    return fused_kernel_p.bind(
        *(named[name] for name in kernel.inputs),
        kernel=kernel,
        shapes=tuple((call.rows, sizes[name]) for name in kernel.outputs),
        dtypes=(floats[0].dtype.name,) * len(kernel.outputs),
        scalars=(call.rows,),
        programs=blocks,
        backend=call.backend,
    )


def backward(call: Call, wanted, floats, z, cotangents, integers):
    """Cotangents of the wanted operands: one kernel, on a graph the product's own too, and a sum.

    Over rows: the kernel, and the sum of the weights' gradients. On a graph: the kernel, which
    writes the cotangent of the summed product [num_nodes, size]; the product's own backward kernel,
    which sums over the edges of the senders; and the sum of the weights' gradients.
    """
    fused, dtype = call.fused, floats[0].dtype
    kernel = backward_kernel(fused, wanted, dtype.name)
    programs = min(PROGRAMS, -(-call.rows // kernel.rows_per_program))
    n = len(fused.form.inputs)
    shapes = {"dproduct": (call.rows, fused.form.outputs[0].size)}
    shapes["dskip"] = (call.rows, fused.mixing.size_out)
    shapes["dweights"] = (programs, max(fused.num_indexed, 1), fused.mixing.num_weights)
    form = _fused_backward.backward_form(fused, wanted) if any(wanted[:n]) else None
    if form is not None and not form.on_graph:
        shapes |= {o.name: (call.num_rows, o.size) for o in form.outputs}
    wide = jnp.promote_types(dtype, jnp.float32).name
    named = _arrays(call, floats, integers)
    named |= {"mixed": z, "ct_out": cotangents[0], "ct_mixed": cotangents[1]}
    results = fused_kernel_p.bind(
        *(named[name] for name in kernel.inputs),
        kernel=kernel,
        shapes=tuple(shapes[name] for name in kernel.outputs),
        dtypes=tuple(wide if name == "dweights" else dtype.name for name in kernel.outputs),
        scalars=(call.rows, programs),
        programs=programs,
        backend=call.backend,
    )
    found = dict(zip(kernel.outputs, results, strict=True))
    if "dproduct" in found:
        used = form.used_inputs()
        arrays = [a for a, keep in zip((*floats[:n], found["dproduct"]), used, strict=True) if keep]
        dinputs = product(call, form.drop_inputs(used), arrays, integers)
    else:
        dinputs = [found[o.name] for o in form.outputs] if form is not None else []
    results = list(dinputs)
    if wanted[n]:
        total = found["dweights"].sum(axis=0).astype(dtype)
        results.append(total if fused.num_indexed else total[0])
    if fused.skip and wanted[n + 1]:
        results.append(found["dskip"])
    return results


@fused_kernel_p.def_abstract_eval
def _abstract(*arrays, kernel, shapes, dtypes, scalars, programs, backend):
    return [jax.core.ShapedArray(s, jnp.dtype(d)) for s, d in zip(shapes, dtypes, strict=True)]


def _lower(ctx, *operands, kernel: FusedKernel, shapes, dtypes, scalars, programs, backend):
    from eqfuse.ops._triton import launch

    lower = launch.lower_gpu if backend == "triton" else launch.lower_interpret
    return lower(ctx, kernel.spec, operands, ctx.avals_in, ctx.avals_out, scalars, (programs,))


def _lower_cpu(ctx, *operands, backend, **params):
    if backend == "triton":
        raise NotImplementedError(NO_GPU)
    return _lower(ctx, *operands, backend=backend, **params)


mlir.register_lowering(fused_kernel_p, _lower_cpu, platform="cpu")
for _platform in ("cuda", "rocm"):
    mlir.register_lowering(fused_kernel_p, _lower, platform=_platform)
