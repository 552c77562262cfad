"""Native kernels inside a JAX computation: of a form, a linear form, or what a function computes.

A definition of a fused op or of a derivative is traced to a `Program`, which is one kernel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Primitive
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import functions, layer, machine
from eqfuse.ops.backends.llvm import linear as native_linear
from eqfuse.ops.backends.llvm.form import generate
from eqfuse.ops.backends.llvm.linear import is_wide, transposed
from eqfuse.ops.ir.form import INDEX_ARRAYS, Form
from eqfuse.ops.ir.fused import Activated, sum_form
from eqfuse.ops.ir.program import Array, Extent, FormStep, Program

native_p = Primitive("eqfuse_native")
native_p.multiple_results = True


def run(form: Form, inputs, indices, num_rows: int, num_nodes: int) -> list[jax.Array]:
    """Return the outputs of a form of products, of one path and one row at least."""
    module = generate(form, _wide(inputs[0].dtype), machine.machine())
    indices = [indices[name] for name in module.index_arrays]
    shapes = form.output_shapes(num_rows, num_nodes)
    return _computed(module, inputs, indices, shapes, [(num_nodes, n) for n in module.copies])


def linear(linear_form: Form, arrays, index, num_rows: int) -> list[jax.Array]:
    """Return the outputs of a form with matrices, by its native kernel; large ones are XLA's."""
    if is_wide(linear_form):
        return xla.evaluate_linear_form(linear_form, arrays, index, num_rows)
    module = native_linear.generate(linear_form, _wide(arrays[0].dtype), machine.machine())
    num_sets = max(1, linear_form.num_sets)
    operands = zip(linear_form.inputs, arrays, strict=True)
    inputs = [a.reshape(num_sets, -1) if o.matrix else a for o, a in operands]
    for i in transposed(linear_form):
        inputs.append(jnp.swapaxes(arrays[i], -1, -2).reshape(num_sets, -1))
    indices = []
    if index is not None:
        index = index.astype(jnp.int32)
        indices.append(index)
    if "order" in module.index_arrays:
        counts = jnp.zeros(num_sets + 1, jnp.int32).at[index + 1].add(1)
        indices += [jnp.argsort(index).astype(jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)]
    shapes = [(num_sets if o.matrix else num_rows, o.size) for o in linear_form.outputs]
    results = _computed(module, inputs, indices, shapes, [(num_rows, n) for n in module.copies])
    shapes = linear_form.output_shapes(num_rows)
    return [r.reshape(shape) for r, shape in zip(results, shapes, strict=True)]


def _wide(dtype) -> str:
    return dtype.name if dtype.name in ("float32", "float64") else "float32"


def _computed(module, inputs, indices, shapes, copies) -> list[jax.Array]:
    """Return the results of a module in the dtype of its inputs, of which 16 bits are widened."""
    dtype = inputs[0].dtype
    inputs = [a.astype(_wide(dtype)) for a in inputs]
    results = native_p.bind(*inputs, *indices, module=module, shapes=(*shapes, *copies))
    return [r.astype(dtype) for r in results[: len(shapes)]]


def by_rows(program: Program, arrays, indices, num_rows: int, num_nodes: int) -> list[jax.Array]:
    """Return the outputs of a program, block by block of rows."""
    parts = layer.num_parts(program, num_rows, num_nodes)
    module = layer.generate(program, machine.machine(), parts)
    counts = {Extent.WHOLE: 1, Extent.ROWS: num_rows, Extent.NODES: num_nodes}
    shapes = [(counts[array.extent], array.size) for array in program.arrays]
    inputs = [a.reshape(shapes[n]) for n, a in enumerate(arrays)]
    inputs += [arrays[n].T.reshape(1, -1) for n in layer.transposed_weights(program)]
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


FORMS = ("eqfuse_form", "eqfuse_linear_form", "eqfuse_activation")
SUMS = ("add", "add_any")


class Traced(NamedTuple):
    """The program that a function computes: in order, the outputs that are not known without it."""

    program: Program
    read: tuple[int, ...]  # the numbers of the arguments that are its inputs
    constants: tuple[float | None, ...]  # the number that each output is everywhere, or None
    passed: tuple[int | None, ...]  # the argument that each output is, or None


def traced(function, arguments, num_integers: int) -> Traced | None:
    """Return the program of forms, linear forms and sums that a function computes, or None.

    The last `num_integers` arguments are index arrays, which go to every form on a graph unchanged.
    """
    closed = jax.make_jaxpr(function)(*(jax.typeof(a) for a in arguments))
    num_floats = len(arguments) - num_integers
    indices = closed.jaxpr.invars[num_floats:]
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    read = tuple(n for n in range(num_floats) if used[n])
    numbers = {v: n for n, v in enumerate(jaxpr.invars[: len(read)])}
    arrays: dict[int, Array] = {}
    constants: dict = {}
    blocks = _blocks(jaxpr)
    steps = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "broadcast_in_dim" and isinstance(eqn.invars[0], Literal):
            constants[eqn.outvars[0]] = np.asarray(eqn.invars[0].val).item()
            continue
        form = _form(eqn, blocks)
        if form is None:
            return None
        reads, rest = eqn.invars[: len(form.inputs)], eqn.invars[len(form.inputs) :]
        if any(isinstance(v, Literal) or v not in numbers for v in reads):
            return None
        if rest and rest != indices:
            return None
        for v in eqn.outvars:
            numbers[v] = len(numbers)
        operands, writes = (tuple(numbers[v] for v in side) for side in (reads, eqn.outvars))
        steps.append(FormStep(form, operands, writes))
        for v, operand in zip((*reads, *eqn.outvars), form.operands, strict=True):
            array = Array.of(operand, v.aval.dtype.name)
            if arrays.setdefault(numbers[v], array) != array:  # a sum of weights
                return None
    if any(isinstance(v, Literal) for v in jaxpr.outvars):
        return None
    passed = dict(zip(jaxpr.invars, read, strict=False))
    computed = [v for v in jaxpr.outvars if v not in constants and v not in passed]
    if any(v not in numbers for v in computed) or len(arrays) < len(numbers):
        return None
    described = tuple(array for _, array in sorted(arrays.items()))
    outputs = tuple(numbers[v] for v in computed)
    program = Program(described, tuple(range(len(read))), outputs, tuple(steps))
    known = (tuple(of.get(v) for v in jaxpr.outvars) for of in (constants, passed))
    return Traced(program, read, *known)


def _blocks(jaxpr) -> dict:
    """Return the blocks of the arrays that linear forms read or write as rows."""
    blocks = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "eqfuse_linear_form":
            form = eqn.params["form"]
            arrays = (*eqn.invars[: len(form.inputs)], *eqn.outvars)
            rows = zip(arrays, form.operands, strict=True)
            blocks |= {v: o.segments for v, o in rows if not o.matrix}
    return blocks


def _form(eqn, blocks: dict):
    """Return the form that an equation computes; None where it is none."""
    if eqn.primitive.name in FORMS:
        return eqn.params["form"]
    operands = (*eqn.invars, *eqn.outvars)
    shapes = {v.aval.shape for v in operands}
    if eqn.primitive.name not in SUMS or len(shapes) > 1 or len(next(iter(shapes))) != 2:
        return None
    known = {blocks[v] for v in operands if not isinstance(v, Literal) and v in blocks}
    if len(known) > 1:
        return None
    return sum_form(eqn.outvars[0].aval.shape[1], *known)


def run_natively(function, arrays, call) -> list:
    """Evaluate the definition of a `layer.Call` by one kernel where it is a program.

    Its arguments are floating point arrays and, for a form on a graph, the index arrays.
    """
    n = len(arrays) - len(INDEX_ARRAYS) * call.fused.form.on_graph
    found = traced(function, arrays, len(arrays) - n)
    if found is None or not found.program.runs_by_rows:
        return function(*arrays)
    forms = [step.form for step in found.program.form_steps]
    if any(max(f.orders) > functions.HIGHEST for f in forms if isinstance(f, Activated)):
        return function(*arrays)
    indices = dict(zip(INDEX_ARRAYS, arrays[n:], strict=False))
    operands = [arrays[k] for k in found.read]
    results = iter(by_rows(found.program, operands, indices, call.num_rows, call.num_nodes))
    outputs = []
    shapes = jax.eval_shape(function, *arrays)
    for out, constant, passed in zip(shapes, found.constants, found.passed, strict=True):
        if passed is not None:
            outputs.append(arrays[passed])
        elif constant is not None:
            outputs.append(jnp.full(out.shape, constant, out.dtype))
        else:
            outputs.append(next(results))
    return outputs


@native_p.def_abstract_eval
def _abstract(*args, module, shapes, dtypes=None):
    dtypes = dtypes or (args[0].dtype,) * len(shapes)  # one dtype, if none are given
    return [
        args[0].update(shape=shape, dtype=jnp.dtype(dtype), weak_type=False)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def _lower(ctx, *operands, module, **params):
    name = machine.register(module.name, module.text)
    return jax.ffi.ffi_lowering(name)(ctx, *operands)


def _refuse(ctx, *operands, module, **params):
    raise ValueError(
        "backend='llvm' runs on CPUs, and this computation is lowered for another device; use "
        "backend='triton' or backend='xla' there"
    )


mlir.register_lowering(native_p, _refuse)
mlir.register_lowering(native_p, _lower, platform="cpu")
