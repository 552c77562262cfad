"""Fused ops over rows on a GPU, some rows after the other, so that no product fills the memory.

The kernels of the parts run on `choice.BLOCK` rows at a time. So runs every derivative; the
gradients of parameters are summed over blocks, in order.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.primitives import choice
from eqfuse.ops.primitives.definitions import Call, product
from eqfuse.ops.primitives.rules import definitions, split, vary_alike


def run(primitive: Primitive, arrays, call: Call, **params) -> list:
    """Return what a primitive of `fused` gives of the arrays, by its definition, in blocks of rows.

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
        of_nodes(call, index, rows, integers) if index.is_node else rows
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
    return dataclasses.replace(call, fused=fused, num_rows=count, num_nodes=0, fuses=False)


def _indices(call: Call, wanted=None, given=(), active=None, reached=None):
    """Return the indices of the operands and of the outputs of a primitive of `fused`."""
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


def of_nodes(call: Call, index: Index, rows, integers):
    """Return a gradient [rows, size] summed by node."""
    size = rows.shape[1]
    segment = (Segment(0, size, 1, 1),)
    identity = (Path((SegmentRef(0, 0),), SegmentRef(0, 0), (((0, 0), 1.0),)),)
    source = Operand("rows", size, segment, True)
    total = Operand("total", size, segment, True, index)
    return product(call, Form((source,), (total,), identity), [rows], integers)[0]
