"""How a fused op runs on a GPU: its kernels over rows and of nodes, or blocks of rows.

They stay in this layer since what no kernel computes is composed from the definitions of `layer`.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive

from eqfuse.ops.backends.triton import form, node, primitive
from eqfuse.ops.backends.triton import rows as row_kernels
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.ir.fused import Fused, backward_form
from eqfuse.ops.primitives import choice, layer
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.layer import Call
from eqfuse.ops.primitives.rules import definitions, split, vary_alike

ROWS_OF_A_PART = 256
"""The fewest rows that a program walks for its sum of gradients of parameters."""
MOST_PARTS = 64
"""The most such sums: each is an array of the size of all parameters."""


def _launch(call: Call, kernel, named: dict, count: int, sizes, *, scalars=()) -> list:
    """Return the outputs [count, size] of a kernel, which is told the numbers `scalars`."""
    arrays, shapes = [named[name] for name in kernel.inputs], [(count, size) for size in sizes]
    programs = -(-count // kernel.rows) * kernel.shares
    return launch(kernel.spec, arrays, shapes, scalars, (programs,), call.backend)


def rows_forward(*arrays, call: Call):
    """Return the outputs, from one kernel; the arguments are those of `layer.fused_p`."""
    floats, integers = split(arrays, call.fused.num_floats)
    kernel = row_kernels.forward(call.fused, floats[0].dtype.name)
    named, n = call.fused.named(floats, integers), call.num_rows
    return _launch(call, kernel, named, n, call.fused.sizes, scalars=(n,))


def rows_backward(*arrays, call: Call, wanted, given):
    """Return cotangents of the wanted operands.

    One kernel for those of the product's inputs; those of nodes it writes for each row, and another
    sums them. One more, or two, for the gradients of the parameters.
    """
    fused = call.fused
    floats, [z], cotangents, integers = split(arrays, fused.num_floats, 1, sum(given))
    of_inputs, of_parameters, of_skip = fused.operands(wanted)
    names = fused.cotangents(given)
    named = fused.named(floats, integers)
    named |= {"z": z} | dict(zip(names, cotangents, strict=True))
    gated = "ct_out" in names
    dinputs, dz = [], list(cotangents)
    if any(of_inputs) or gated:
        kernel = row_kernels.backward(fused, tuple(of_inputs), given, floats[0].dtype.name)
        outputs = backward_form(fused.form, tuple(of_inputs)).outputs if any(of_inputs) else ()
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * gated
        n = call.num_rows
        results = _launch(call, kernel, named, n, sizes, scalars=(n,))
        dinputs = [
            _of_nodes(call, o.index, rows, integers) if o.index.is_node else rows
            for o, rows in zip(outputs, results, strict=False)
        ]
        dz = results[len(outputs) :] if gated else dz
    gradients = []
    if any(of_parameters):
        dz_named = named | {f"dz_{a}": d for a, d in zip(fused.arrays, dz, strict=True)}
        gradients = _gradients(call, tuple(of_parameters), dz_named, floats[0].dtype.name)
    return [*dinputs, *gradients, *(dz if of_skip else [])]


def _gradients(call: Call, wanted, named: dict, dtype: str) -> list:
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    linear_form = call.fused.linear.linear_form
    weights = [w for w, is_wanted in zip(linear_form.inputs[1:], wanted, strict=True) if is_wanted]
    parts = max(1, min(MOST_PARTS, call.num_rows // ROWS_OF_A_PART))
    kernel = row_kernels.gradients(call.fused, wanted, dtype, parts > 1)
    shapes = [linear_form.shape(w, call.num_rows) for w in weights]
    results = launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [(parts, *shape) for shape in shapes] if parts > 1 else shapes,
        (call.num_rows, parts),
        (parts * kernel.shares,),
        call.backend,
    )
    return results if parts == 1 else primitive.reduced(weights, results, dtype, call.backend)


def node_forward(*arrays, call: Call):
    """Return the outputs and the sums of nodes, from one kernel."""
    floats, integers = split(arrays, call.fused.num_floats)
    dtype = floats[0].dtype.name
    lanes = form.edge_lanes(call.fused.form, dtype, call.num_rows, call.num_nodes)
    kernel = node.forward(call.fused, dtype, lanes)
    named = call.fused.named(floats, integers)
    return _launch(call, kernel, named, call.num_nodes, call.sizes)


def node_backward(*arrays, call: Call, wanted, given):
    """Return cotangents of the wanted operands of what follows the sums; see `Fused.epilogue`.

    One kernel for that of the sums, which writes that of the pre-activation too; the gradients of
    parameters are the Linear's.
    """
    fused = call.fused
    [of_sums], of_parameters, of_skip = fused.operands(wanted)
    if not of_sums:
        return definitions[layer.backward_p](*arrays, call=call, wanted=wanted, given=given)
    floats, [z], cotangents, integers = split(arrays, fused.num_floats, 1, sum(given))
    names = fused.cotangents(given)
    gated = "ct_out" in names
    named = fused.named(floats, integers)
    named |= {"z": z} | dict(zip(names, cotangents, strict=True))
    kernel = node.backward(fused, given, floats[0].dtype.name, 4)
    sizes = [floats[0].shape[1], *[fused.linear.size_out] * gated]
    dm, *dz = _launch(call, kernel, named, call.num_rows, sizes)
    dz = dz or list(cotangents)
    gradients = []
    if any(of_parameters):
        gradients = _composed_gradients(call, of_parameters, floats, dz, integers)
    return [dm, *gradients, *(dz if of_skip else [])]


KERNELS = {
    (layer.fused_p, Kernels.ROWS): rows_forward,
    (layer.fused_p, Kernels.NODES): node_forward,
    (layer.fused_p, Kernels.VALUE): node_forward,
    (layer.backward_p, Kernels.ROWS): rows_backward,
    (layer.backward_p, Kernels.EPILOGUE): node_backward,
}


def _composed_gradients(call: Call, wanted, floats, dz, integers):
    """Return the gradients of the wanted parameters, by the kernels of the Linear."""
    fused = call.fused
    plain = Fused.build(fused.form, fused.linear, None, False)
    inputs, parameters, _ = fused.operands(floats)
    wanted = (*(False for _ in inputs), *wanted)
    call = dataclasses.replace(call, fused=plain)
    given = (True,) * len(dz)
    return layer.backward(call, wanted, given, [*inputs, *parameters], dz[0], dz, integers)


def run_in_blocks(primitive: Primitive, arrays, call: Call, **params) -> list:
    """Evaluate a primitive of `layer` by its definition, in blocks of rows.

    Args:
      arrays, params: its operands and parameters.
    """
    inputs, outputs = _indices(call, **params)
    floats, [], integers = split(arrays, len(inputs), 0)
    index, nodes = call.fused.split(integers)
    by_row = [] if index is None else [index]

    def block(first, count: int):
        """Return the outputs of some rows, of those that each row adds to the sum of them all."""

        def rows(array):
            return lax.dynamic_slice_in_dim(array, first, count)

        def operand(array, index: Index):
            if index is Index.SHARED:
                return array
            return array[rows(nodes[f"{index.value}s"])] if index.is_node else rows(array)

        found = map(operand, floats, inputs)
        found = [*found, *map(rows, by_row)]
        return definitions[primitive](*found, call=_apart(call, count), **params)

    results = _loop(call, block, outputs, floats)
    return [
        _of_nodes(call, index, rows, integers) if index.is_node else rows
        for index, rows in zip(outputs, results, strict=True)
    ]


def _loop(call: Call, block, outputs: list[Index], operands) -> list:
    """Return the outputs of all blocks: rows one behind the other, sums of what all rows share."""
    size = choice.BLOCK
    if call.num_rows <= size:
        return block(0, call.num_rows)
    blocks, rest = divmod(call.num_rows, size)
    shapes = jax.eval_shape(functools.partial(block, count=size), 0)

    def initial(shape, index: Index):
        if index is not Index.SHARED:
            return jnp.zeros((call.num_rows, *shape.shape[1:]), shape.dtype)
        return jnp.zeros(shape.shape, jnp.promote_types(shape.dtype, jnp.float32))

    def add(first, totals, count: int):
        found = block(first, count)
        return [
            t + r if i is Index.SHARED else lax.dynamic_update_slice_in_dim(t, r, first, 0)
            for t, r, i in zip(totals, found, outputs, strict=True)
        ]

    totals = [initial(s, i) for s, i in zip(shapes, outputs, strict=True)]
    totals = vary_alike([*totals, *operands])[: len(outputs)]
    totals = lax.fori_loop(0, blocks, lambda n, t: add(n * size, t, size), totals)
    totals = add(blocks * size, totals, rest) if rest else totals
    return [t.astype(s.dtype) for t, s in zip(totals, shapes, strict=True)]


def _apart(call: Call, count: int) -> Call:
    """Return the call of the parts, on so many rows that have their own row of every node."""
    form = call.fused.form
    form = form.indexed({n: Index.ROW for n, o in enumerate(form.inputs) if o.index.is_node})
    fused = dataclasses.replace(call.fused, form=form)
    return Call(fused, count, 0, call.backend)


def _indices(call: Call, wanted=None, given=(), active=None, reached=None):
    """Return the indices of the operands and of the outputs of a primitive of `layer`."""
    fused = call.fused
    floats = [o.index for o in fused.form.inputs]
    floats += [Index.SHARED] * len(fused.linear.parameters) + [Index.ROW] * fused.skip

    def some(indices, which) -> list[Index]:
        return list(itertools.compress(indices, which))

    if wanted is None:  # the op or its tangent
        tangents = [] if active is None else [Index.ROW, *some(floats, active)]
        return floats + tangents, [Index.ROW] * len(fused.sizes)
    operands, outputs = floats + [Index.ROW] * (1 + sum(given)), some(floats, wanted)
    if active is None:  # its backward
        return operands, outputs
    if reached is None:  # the tangent of that
        return operands + some(operands, active), outputs
    return operands + some(outputs, reached), some(operands, active)


def _of_nodes(call: Call, index: Index, rows, integers):
    """Return a gradient [rows, size] summed by node."""
    size = rows.shape[1]
    segment = (Segment(0, size, 1, 1),)
    identity = (Path((SegmentRef(0, 0),), SegmentRef(0, 0), (((0, 0), 1.0),)),)
    source = Operand("rows", size, segment, True)
    total = Operand("total", size, segment, True, index)
    return layer.product(call, Form((source,), (total,), identity), [rows], integers)[0]
