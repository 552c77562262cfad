"""How a fused op runs on a GPU: its kernels over rows and of nodes, or blocks of rows."""

import dataclasses
import functools
from itertools import compress

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive

from eqfuse.ops.backends.triton import form, node, primitive
from eqfuse.ops.backends.triton import rows as row_kernels
from eqfuse.ops.backends.triton.primitive import launch
from eqfuse.ops.ir.form import (
    Form,
    Index,
    Operand,
    Path,
    Segment,
    SegmentRef,
    backward_form,
)
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.primitives import choice, layer
from eqfuse.ops.primitives.choice import Kernels
from eqfuse.ops.primitives.layer import Call
from eqfuse.ops.primitives.rules import definitions, split, vary_alike

ROWS_OF_A_PART = 256  # the fewest that a program walks for its sum of gradients of parameters
MOST_PARTS = 64  # such sums: each is an array of the size of all parameters


def _launch(call: Call, kernel, named: dict, count: int, sizes, *, scalars=()) -> list:
    """Return the outputs [count, size] of a kernel."""
    arrays, shapes = [named[name] for name in kernel.inputs], [(count, size) for size in sizes]
    programs = -(-count // kernel.rows) * kernel.shares
    return launch(kernel.spec, arrays, shapes, scalars, (programs,))


def rows_forward(*arrays, call: Call):
    """Return the outputs, from one kernel."""
    floats, integers = split(arrays, call.fused.num_floats)
    kernel = row_kernels.forward(call.fused, floats[0].dtype.name)
    named, n = call.fused.named(floats, integers), call.num_rows
    return _launch(call, kernel, named, n, call.fused.sizes, scalars=(n,))


def _operands_of_backward(fused: Fused, arrays, given):
    """Return floats, cotangents and integers, and all by the names that kernels use."""
    floats, [z], cotangents, integers = split(arrays, fused.num_floats, 1, sum(given))
    named = fused.named(floats, integers) | {"z": z}
    named |= dict(zip(fused.cotangents(given), cotangents, strict=True))
    return floats, cotangents, integers, named


def rows_backward(*arrays, call: Call, wanted, given):
    """Return cotangents of the wanted operands.

    One kernel for those of the product's inputs; those of nodes it writes for each row, and another
    sums them. One more, or two, for the gradients of the parameters.
    """
    fused, n = call.fused, call.num_rows
    floats, dz, integers, named = _operands_of_backward(fused, arrays, given)
    of_inputs, of_parameters, of_skip = fused.operands(wanted)
    gated, dtype = "ct_out" in named, floats[0].dtype.name
    dinputs, gradients = [], []
    if any(of_inputs) or gated:
        kernel = row_kernels.backward(fused, tuple(of_inputs), given, dtype)
        outputs = backward_form(fused.form, tuple(of_inputs)).outputs if any(of_inputs) else ()
        sizes = [o.size for o in outputs] + [fused.linear.size_out] * gated
        results = _launch(call, kernel, named, n, sizes, scalars=(n,))
        dinputs = [
            _of_nodes(call, o.index, rows, integers) if o.index.is_node else rows
            for o, rows in zip(outputs, results, strict=False)
        ]
        dz = results[len(outputs) :] if gated else dz
    if any(of_parameters):
        named |= {f"dz_{a}": d for a, d in zip(fused.arrays, dz, strict=True)}
        gradients = _gradients(call, tuple(of_parameters), named, dtype)
    return [*dinputs, *gradients, *(dz if of_skip else [])]


def _gradients(call: Call, wanted, named: dict, dtype: str) -> list:
    """Return the gradients of the wanted parameters, from the cotangent of the pre-activation."""
    linear_form = call.fused.linear.linear_form
    weights = list(compress(linear_form.inputs[1:], wanted))
    parts = max(1, min(MOST_PARTS, call.num_rows // ROWS_OF_A_PART))
    kernel = row_kernels.gradients(call.fused, wanted, dtype, parts > 1)
    shapes = [linear_form.shape(w, call.num_rows) for w in weights]
    results = launch(
        kernel.spec,
        [named[name] for name in kernel.inputs],
        [(parts, *shape) for shape in shapes] if parts > 1 else shapes,
        (call.num_rows, parts),
        (parts * kernel.shares,),
    )
    return results if parts == 1 else primitive.reduced(weights, results, dtype)


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
    fused, composed = call.fused, definitions[layer.backward_p]
    [of_sums], of_parameters, of_skip = fused.operands(wanted)
    if not of_sums:
        return composed(*arrays, call=call, wanted=wanted, given=given)
    floats, cotangents, integers, named = _operands_of_backward(fused, arrays, given)
    kernel = node.backward(fused, given, floats[0].dtype.name, 4)
    sizes = [floats[0].shape[1], *[fused.linear.size_out] * ("ct_out" in named)]
    dm, *dz = _launch(call, kernel, named, call.num_rows, sizes)
    dz, gradients = dz or cotangents, []
    if any(of_parameters):
        plain = dataclasses.replace(call, fused=Fused.build(fused.form, fused.linear, None, False))
        operands = [*floats[: plain.fused.num_floats], dz[0], *dz, *integers]
        wanted = (False, *of_parameters)
        gradients = composed(*operands, call=plain, wanted=wanted, given=(True,) * len(dz))
    return [dm, *gradients, *(dz if of_skip else [])]


KERNELS = {
    (layer.fused_p, Kernels.ROWS): rows_forward,
    (layer.fused_p, Kernels.NODES): node_forward,
    (layer.fused_p, Kernels.VALUE): node_forward,
    (layer.backward_p, Kernels.ROWS): rows_backward,
    (layer.backward_p, Kernels.EPILOGUE): node_backward,
}


def run_in_blocks(primitive: Primitive, arrays, call: Call, **params) -> list:
    """Evaluate a primitive of `layer` by its definition, in blocks of rows.

    Rows of a block have their own row of every node.
    """
    inputs, outputs = _indices(call, **params)
    floats, integers = split(arrays, len(inputs))
    index, nodes = call.fused.split(integers)
    by_row = [] if index is None else [index]
    form = call.fused.form
    form = form.indexed({n: Index.ROW for n, o in enumerate(form.inputs) if o.index.is_node})
    fused = dataclasses.replace(call.fused, form=form)

    def block(first, count: int):
        """Return the outputs of some rows, of those that each row adds to the sum of them all."""

        def rows(array):
            return lax.dynamic_slice_in_dim(array, first, count)

        def operand(array, index: Index):
            if index is Index.SHARED:
                return array
            return array[rows(nodes[f"{index.value}s"])] if index.is_node else rows(array)

        found = [*map(operand, floats, inputs), *map(rows, by_row)]
        part = Call(fused, count, 0, call.backend)
        return definitions[primitive](*found, call=part, **params)

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


def _indices(call: Call, wanted=None, given=(), active=None, reached=None):
    """Return the indices of the operands and of the outputs of a primitive of `layer`."""
    fused = call.fused
    floats = [o.index for o in fused.form.inputs]
    floats += [Index.SHARED] * len(fused.linear.parameters) + [Index.ROW] * fused.skip

    if wanted is None:  # the op or its tangent
        tangents = [] if active is None else [Index.ROW, *compress(floats, active)]
        return floats + tangents, [Index.ROW] * len(fused.sizes)
    operands, outputs = floats + [Index.ROW] * (1 + sum(given)), list(compress(floats, wanted))
    if active is None:  # its backward
        return operands, outputs
    if reached is None:  # the tangent of that
        return [*operands, *compress(operands, active)], outputs
    return [*operands, *compress(outputs, reached)], list(compress(operands, active))


def _of_nodes(call: Call, index: Index, rows, integers):
    """Return a gradient [rows, size] summed by node."""
    size = rows.shape[1]
    segment = (Segment(0, size, 1, 1),)
    identity = (Path((SegmentRef(0, 0),), SegmentRef(0, 0), (((0, 0), 1.0),)),)
    source = Operand("rows", size, segment, True)
    total = Operand("total", size, segment, True, index)
    return layer.product(call, Form((source,), (total,), identity), [rows], integers)[0]
