"""Native kernels inside a JAX computation."""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import functions, layer, machine
from eqfuse.ops.backends.llvm import linear as native_linear
from eqfuse.ops.backends.llvm.form import generate
from eqfuse.ops.backends.llvm.linear import is_wide, transposed, width_of
from eqfuse.ops.ir.form import Form, Index
from eqfuse.ops.ir.gate import Activated
from eqfuse.ops.ir.linear import LinearForm, Rows, Weights
from eqfuse.ops.ir.program import Extent, Program

native_p = Primitive("eqfuse_native")
native_p.multiple_results = True


def run(form: Form, inputs, indices, num_rows: int, num_nodes: int) -> list[jax.Array]:
    """Return the outputs of a form, computed by its native kernel.

    Args:
      form: what to compute; at least one path and one row.
      inputs: an array for each input of the form, of one dtype. float16 and bfloat16 are computed
        in float32.
      indices: the index arrays by name.
    """
    dtype = inputs[0].dtype
    wide = dtype if dtype.name in ("float32", "float64") else jnp.dtype("float32")
    row = max((o.size for o in form.outputs if o.index is Index.ROW), default=0) * wide.itemsize
    here = machine.machine()
    module = generate(form, wide.name, here, here.num_parts(row * num_rows))
    shapes = [(o.index.count(num_rows, num_nodes), o.size) for o in form.outputs]
    shapes += [(num_nodes, width) for width in module.copies]
    results = native_p.bind(
        *(a.astype(wide) for a in inputs),
        *(indices[name] for name in module.index_arrays),
        module=module,
        shapes=tuple(shapes),
    )
    return [r.astype(dtype) for r in results[: len(form.outputs)]]


def linear(linear_form: LinearForm, arrays, index, num_rows: int) -> list[jax.Array]:
    """Return the outputs of a linear form, computed by its native kernel.

    The arguments are those of the definition.

    Matrices of 256 x 256 and more for scalars, of 512 x 512 and more for others, are XLA's.
    """
    if is_wide(linear_form):
        return xla.evaluate_linear_form(linear_form, arrays, index, num_rows)
    dtype = arrays[0].dtype
    wide = dtype if dtype.name in ("float32", "float64") else jnp.dtype("float32")
    module = native_linear.generate(linear_form, wide.name, machine.machine())
    num_sets = max(1, linear_form.num_sets)

    def flat(operand, array):
        return array if isinstance(operand, Rows) else array.reshape(num_sets, -1)

    inputs = [flat(o, a) for o, a in zip(linear_form.inputs, arrays, strict=True)]
    for i in transposed(linear_form):
        inputs.append(jnp.swapaxes(arrays[i], -1, -2).reshape(num_sets, -1))
    indices = []
    if index is not None:
        index = index.astype(jnp.int32)
        indices.append(index)
    if "order" in module.index_arrays:
        counts = jnp.zeros(num_sets + 1, jnp.int32).at[index + 1].add(1)
        indices += [jnp.argsort(index).astype(jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)]
    rows = [num_rows if isinstance(o, Rows) else num_sets for o in linear_form.outputs]
    widths = [width_of(o) for o in linear_form.outputs]
    shapes = [*zip(rows, widths, strict=True), *((num_rows, width) for width in module.copies)]
    results = native_p.bind(
        *(a.astype(wide) for a in inputs), *indices, module=module, shapes=tuple(shapes)
    )
    return [
        r.astype(dtype).reshape(linear_form.shape(o, num_rows))
        for o, r in zip(linear_form.outputs, results, strict=False)
    ]


def by_rows(
    program: Program, arrays, indices, num_rows: int, num_nodes: int
) -> list[jax.Array] | None:
    """Return the outputs of a program, computed by its native kernel, block by block of rows.

    Args:
      program: what to compute; one that `runs_by_rows`.
      arrays: an array for each input, of one dtype, float32 or float64.
      indices: the index arrays by name.
    Returns:
      None where its steps are faster alone.
    """
    parts = layer.num_parts(program, num_rows, num_nodes)
    if not parts or not has_steps(program) or arrays[0].dtype.name not in ("float32", "float64"):
        return None
    module = layer.generate(program, machine.machine(), parts)
    counts = {Extent.WHOLE: 1, Extent.ROWS: num_rows, Extent.NODES: num_nodes}
    shapes = [(counts[array.extent], array.size) for array in program.arrays]
    inputs = [a.reshape(shapes[n]) for n, a in enumerate(arrays)]
    inputs += [arrays[n].T.reshape(1, -1) for n in layer.transposed_weights(program)]
    inputs += [indices[name] for name in module.index_arrays]
    results = [shapes[n] for n in program.outputs]
    results += [(parts, width) for width in module.copies]
    results = native_p.bind(*inputs, module=module, shapes=tuple(results))
    outputs = zip((program.operands[n] for n in program.outputs), results, strict=False)
    return [r.reshape(o.shape) if isinstance(o, Weights) else r for o, r in outputs]


def has_steps(program: Program) -> bool:
    """Return whether native kernels have all steps of a program."""
    activated = (s.form for s in program.form_steps if isinstance(s.form, Activated))
    return all(map(functions.is_written, activated))


@native_p.def_abstract_eval
def _abstract(*args, module, shapes, dtypes=None):
    dtypes = dtypes or (args[0].dtype,) * len(shapes)  # one dtype, if none are given
    return [
        args[0].update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def _lower(ctx, *operands, module, **params):
    machine.register(module.name, module.text)
    return jax.ffi.ffi_lowering(module.name)(ctx, *operands)


def _refuse(ctx, *operands, module, **params):
    raise ValueError(
        "backend='llvm' runs on CPUs, and this computation is lowered for another device; use "
        "backend='triton' or backend='xla' there"
    )


mlir.register_lowering(native_p, _refuse)
mlir.register_lowering(native_p, _lower, platform="cpu")
