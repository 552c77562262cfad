"""Native kernels inside a JAX computation: of a form, a linear form, or a program over rows."""

import functools

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from eqfuse._jax_compat import refuse_export
from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm import program as native_program
from eqfuse.ops.backends.llvm.form import generate
from eqfuse.ops.backends.llvm.linear import is_wide, transposed
from eqfuse.ops.backends.llvm.text import Module
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.program import Program

native_p = Primitive("eqfuse_native")
native_p.multiple_results = True


def run_form(form: Form, inputs, indices, num_rows: int, num_nodes) -> list[jax.Array]:
    """Return the outputs of a form of products, of one path and one row at least."""
    module = machine.write(functools.partial(generate, form, _wide(inputs[0].dtype)))
    indices = [indices[name] for name in module.index_arrays]
    return _computed(module, inputs, indices, num_rows, num_nodes)[: len(form.outputs)]


def run_linear(linear_form: Form, arrays, index, num_rows: int) -> list[jax.Array]:
    """Return the outputs of a form with matrices, by its native kernel; large ones are XLA's."""
    if is_wide(linear_form):
        return xla.evaluate_linear_form(linear_form, arrays, index, num_rows)
    module = machine.write(functools.partial(generate, linear_form, _wide(arrays[0].dtype)))
    num_sets = max(1, linear_form.num_sets)
    operands = zip(linear_form.inputs, arrays, strict=True)
    inputs = [a.reshape(num_sets, -1) if o.matrix else a for o, a in operands]
    for i in () if linear_form.num_sets else transposed(linear_form):
        inputs.append(jnp.swapaxes(arrays[i], -1, -2).reshape(num_sets, -1))
    indices = [of_sets(name, index, num_sets) for name in module.index_arrays]
    results = _computed(module, inputs, indices, num_rows, num_sets)
    shapes = linear_form.output_shapes(num_rows)
    return [r.reshape(shape) for r, shape in zip(results, shapes, strict=False)]


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


def _computed(module: Module, inputs, indices, num_rows: int, num_nodes) -> list[jax.Array]:
    """Return the results of a module in the dtype of its inputs, of which 16 bits are widened."""
    dtype, counts = inputs[0].dtype, {"num_rows": num_rows, "num_nodes": num_nodes}
    inputs = [a.astype(_wide(dtype)) for a in inputs]
    results = native_p.bind(*inputs, *indices, module=module, **counts)
    return [r.astype(dtype) for r in results]


def run_rows(program: Program, arrays, indices, num_rows: int, num_nodes: int) -> list[jax.Array]:
    """Return the outputs of a program, block by block of rows."""
    parts = native_program.num_parts(program, num_rows, num_nodes)
    module = machine.write(functools.partial(native_program.generate_rows, program, parts=parts))
    shapes = [(a.index.count(num_rows, num_nodes), a.size) for a in program.arrays]
    inputs = [a.reshape(shapes[n]) for n, a in enumerate(arrays)]
    inputs += [arrays[n].T.reshape(1, -1) for n in native_program.transposed_weights(program)]
    inputs += [indices[name] for name in module.index_arrays]
    matrices = [n in program.mixed and program.mixed[n].matrix for n in program.outputs]
    results = native_p.bind(*inputs, module=module, num_rows=num_rows, num_nodes=num_nodes)
    return [
        r.sum(0).reshape(matrix) if matrix else r
        for matrix, r in zip(matrices, results, strict=True)
    ]


@native_p.def_abstract_eval
def _abstract(*args, module: Module, num_rows: int, num_nodes):
    arrays = [(r.shape(num_rows, num_nodes), jnp.dtype(r.dtype)) for r in module.results]
    return [args[0].update(shape=shape, dtype=d, weak_type=False) for shape, d in arrays]


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
