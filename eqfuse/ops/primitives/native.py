"""Native kernels inside a JAX computation: of a form, a linear form, or a program over rows."""

import functools

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse._jax_compat import refuse_export
from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import linear as native_linear
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm import program as native_program
from eqfuse.ops.backends.llvm.form import generate
from eqfuse.ops.backends.llvm.linear import is_wide, transposed
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.program import Program

native_p = Primitive("eqfuse_native")
native_p.multiple_results = True


def run_form(form: Form, inputs, indices, num_rows: int, num_nodes) -> list[jax.Array]:
    """Return the outputs of a form of products, of one path and one row at least."""
    module = machine.write(functools.partial(generate, form, _wide(inputs[0].dtype)))
    indices = [indices[name] for name in module.index_arrays]
    shapes = form.output_shapes(num_rows, num_nodes)
    copied = [form.inputs[i].index.count(num_rows, num_nodes) for i in module.copied]
    copies = list(zip(copied, module.copies, strict=True))
    return _computed(module, inputs, indices, shapes, copies)


def run_linear(linear_form: Form, arrays, index, num_rows: int) -> list[jax.Array]:
    """Return the outputs of a form with matrices, by its native kernel; large ones are XLA's."""
    if is_wide(linear_form):
        return xla.evaluate_linear_form(linear_form, arrays, index, num_rows)
    generate = functools.partial(native_linear.generate, linear_form, _wide(arrays[0].dtype))
    module = machine.write(generate)
    num_sets = max(1, linear_form.num_sets)
    operands = zip(linear_form.inputs, arrays, strict=True)
    inputs = [a.reshape(num_sets, -1) if o.matrix else a for o, a in operands]
    for i in () if linear_form.num_sets else transposed(linear_form):
        inputs.append(jnp.swapaxes(arrays[i], -1, -2).reshape(num_sets, -1))
    indices = [of_sets(name, index, num_sets) for name in module.index_arrays]
    shapes = [(num_sets if o.matrix else num_rows, o.size) for o in linear_form.outputs]
    by_row = len(module.copies) - len(module.copied)
    counts = [num_rows] * by_row + [num_sets] * len(module.copied)
    copies = list(zip(counts, module.copies, strict=True))
    results = _computed(module, inputs, indices, shapes, copies)
    shapes = linear_form.output_shapes(num_rows)
    return [r.reshape(shape) for r, shape in zip(results, shapes, strict=True)]


def of_sets(name: str, index, num_sets: int) -> jax.Array:
    """Return an index array of a Linear, by the set of weights of each row."""
    index = index.astype(jnp.int32)
    if name == "order":
        return jnp.argsort(index).astype(jnp.int32)
    if name == "offsets":
        counts = jnp.zeros(num_sets + 1, jnp.int32).at[index + 1].add(1)
        return jnp.cumsum(counts, dtype=jnp.int32)
    return index


def _wide(dtype) -> str:
    return dtype.name if dtype.name in ("float32", "float64") else "float32"


def _computed(module, inputs, indices, shapes, copies) -> list[jax.Array]:
    """Return the results of a module in the dtype of its inputs, of which 16 bits are widened."""
    dtype = inputs[0].dtype
    inputs = [a.astype(_wide(dtype)) for a in inputs]
    results = native_p.bind(*inputs, *indices, module=module, shapes=(*shapes, *copies))
    return [r.astype(dtype) for r in results[: len(shapes)]]


def run_rows(program: Program, arrays, indices, num_rows: int, num_nodes: int) -> list[jax.Array]:
    """Return the outputs of a program, block by block of rows."""
    parts = native_program.num_parts(program, num_rows, num_nodes)
    module = machine.write(functools.partial(native_program.generate_rows, program, parts=parts))
    shapes = [(a.index.count(num_rows, num_nodes), a.size) for a in program.arrays]
    inputs = [a.reshape(shapes[n]) for n, a in enumerate(arrays)]
    inputs += [arrays[n].T.reshape(1, -1) for n in native_program.transposed_weights(program)]
    inputs += [indices[name] for name in module.index_arrays]
    matrices = [n in program.mixed and program.mixed[n].matrix for n in program.outputs]
    results = [
        (parts, shapes[n][1]) if matrix else shapes[n]
        for n, matrix in zip(program.outputs, matrices, strict=True)
    ]
    results = native_p.bind(*inputs, module=module, shapes=tuple(results))
    return [
        r.sum(0).reshape(matrix) if matrix else r
        for matrix, r in zip(matrices, results, strict=True)
    ]


@native_p.def_abstract_eval
def _abstract(*args, module, shapes, dtypes=None):
    dtypes = dtypes or (args[0].dtype,) * len(shapes)  # one dtype, if none are given
    return [
        args[0].update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def _lower(ctx, *operands, module, **params):
    refuse_export(ctx)
    name = machine.register(module.name, module.text, module.others)
    return jax.ffi.ffi_lowering(name)(ctx, *operands)


def _refuse(ctx, *operands, module, **params):
    refuse_export(ctx)
    raise ValueError(
        "backend='llvm' runs on CPUs, and this computation is lowered for another device; use "
        "backend='triton' or backend='xla' there"
    )


mlir.register_lowering(native_p, _refuse)
mlir.register_lowering(native_p, _lower, platform="cpu")
