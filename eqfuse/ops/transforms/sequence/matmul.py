"""Small matmuls as steps: products of all pairs, and sums of these."""

from __future__ import annotations

import math

from eqfuse.ops.ir.steps import Copy, Elementwise, Reduce
from eqfuse.ops.transforms.fuse.trace import Node
from eqfuse.ops.transforms.sequence.values import NoStepError, Values, dtype_of, strides_of

MOST_PRODUCTS = 1 << 15
"""Products of one matmul: they fit in the cache of a core. A larger one is faster as XLA's."""


def dot_general(values: Values, node: Node) -> None:
    """Add the steps of a matmul, of any axes.

    Raises:
      NoStepError: it is large, or of other dtypes than floats of one kind.
    """
    (contracted, batch) = node.params["dimension_numbers"]
    [out] = node.outputs
    dtype = dtype_of(values.aval(out))
    if any(dtype_of(values.aval(v)) != dtype for v in node.inputs) or "float" not in dtype:
        raise NoStepError("a matmul of other dtypes than one kind of floats")
    shapes = [values.aval(v).shape for v in node.inputs]
    free = [
        [n for n in range(len(shape)) if n not in (*c, *b)]
        for shape, c, b in zip(shapes, contracted, batch, strict=True)
    ]
    sizes = [shapes[0][n] for n in (*batch[0], *free[0])] + [shapes[1][n] for n in free[1]]
    over = [shapes[0][n] for n in contracted[0]]
    count = math.prod(sizes + over)
    if count > MOST_PRODUCTS:
        raise NoStepError("matmuls so large that they are XLA's")
    # zero along the axes that an operand does not have
    axes = [[*batch[0], *free[0], *[None] * len(free[1]), *contracted[0]]]
    axes += [[*batch[1], *[None] * len(free[0]), *free[1], *contracted[1]]]
    operands = []
    for value, own, shape in zip(node.inputs, axes, shapes, strict=True):
        strides = tuple(0 if n is None else strides_of(shape)[n] for n in own)
        operands.append(values.new(count, dtype))
        copied = tuple(sizes + over), strides, strides_of(sizes + over)
        values.steps.append(Copy((values.array(value),), operands[-1], *copied))
    products = values.new(count, dtype)
    values.steps.append(Elementwise("mul", tuple(operands), products))
    strides, kept = strides_of(sizes + over), len(sizes)
    sides = tuple(sizes), strides[:kept], tuple(over), strides[kept:]
    values.steps.append(Reduce("add", (products,), values.result(out), *sides))
