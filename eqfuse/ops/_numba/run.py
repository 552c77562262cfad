"""Native kernels inside a JAX computation."""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops._form import Form, Index
from eqfuse.ops._numba import machine
from eqfuse.ops._numba.module import generate

native_p = Primitive("eqfuse_native")
native_p.multiple_results = True


def run(form: Form, inputs, indices, num_rows: int, num_nodes: int) -> list[jax.Array]:
    """The outputs of a form, computed by its native kernel.

    Args:
      form: what to compute; at least one path and one row.
      inputs: an array for each input of the form, of one dtype. float16 and bfloat16 are computed
        in float32.
      indices: the index arrays by name.
    """
    dtype = inputs[0].dtype
    wide = dtype if dtype.name in ("float32", "float64") else jnp.dtype("float32")
    module = generate(form, wide.name, machine.machine())
    rows = {Index.ROW: num_rows, Index.SENDER: num_nodes, Index.RECEIVER: num_nodes}
    shapes = [(rows[o.index], o.size) for o in form.outputs]
    shapes += [(num_nodes, width) for width in module.copies]
    results = native_p.bind(
        *(a.astype(wide) for a in inputs),
        *(indices[name] for name in module.index_arrays),
        module=module,
        shapes=tuple(shapes),
    )
    return [r.astype(dtype) for r in results[: len(form.outputs)]]


@native_p.def_abstract_eval
def _abstract(*args, module, shapes):
    return [args[0].update(shape=shape, weak_type=False) for shape in shapes]


def _lower(ctx, *operands, module, shapes):
    machine.register(module.name, module.text)
    return jax.ffi.ffi_lowering(module.name)(ctx, *operands)


def _refuse(ctx, *operands, module, shapes):
    raise NotImplementedError(
        "backend='numba' runs on CPUs, and this computation is lowered for another device; use "
        "backend='triton' or backend='xla' there"
    )


mlir.register_lowering(native_p, _refuse)
mlir.register_lowering(native_p, _lower, platform="cpu")
