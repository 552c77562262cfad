"""What the rows of a trace's values are made of."""

import dataclasses
import math

import numpy as np

from eqfuse.ops.ir.form import Role
from eqfuse.ops.transforms.fuse import polynomials
from eqfuse.ops.transforms.fuse.indices import gathered, summed
from eqfuse.ops.transforms.fuse.polynomials import Polynomial
from eqfuse.ops.transforms.fuse.trace import Trace

MOVES = frozenset(["slice", "concatenate", "reshape", "transpose", "broadcast_in_dim"])
MOVES |= frozenset(["split", "squeeze", "expand_dims", "copy"])
"""Primitives that place elements elsewhere and do nothing else."""
ARITHMETIC = frozenset(["mul", "div", "neg", "add", "add_any", "sub", "dot_general", "reduce_sum"])
"""Primitives of whose operands polynomials can be multiplied out."""


@dataclasses.dataclass(frozen=True)
class ArrayFactor:
    """An array of a trace as a factor of polynomials: a row each, [rows, ...], or one for all.

    Attributes:
      value: its number.
      axis: which of its axes counts rows; None if all rows share it.
    """

    value: int
    axis: int | None


@dataclasses.dataclass(frozen=True)
class ProductFactor:
    """The output of a form over rows: the node of this number."""

    node: int


@dataclasses.dataclass(frozen=True)
class SumFactor:
    """The sum over the edges of each node: the scatter of this number."""

    node: int


def row_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Return the shape of one row of an array, in which the axis that counts rows is 1."""
    return tuple(1 if n == axis else size for n, size in enumerate(shape))


class RowPolynomials:
    """The polynomials of the rows of a trace's values."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._rows: dict = {}
        self._multiplied = self._find_multiplied()

    def _find_multiplied(self) -> set[int]:
        """Return the values that products, gathers or sums go into: their arithmetic is followed.

        Of all others only moves are: what is computed of them is an operand as it is.
        """
        values: set[int] = set()
        for number, node in enumerate(self.trace.nodes):
            follows = node.name in MOVES | ARITHMETIC and any(v in values for v in node.inputs)
            if follows or self.starts(number):
                values.update(node.outputs)
        return values

    def starts(self, number: int) -> bool:
        """Return whether the rows of a node are followed through arithmetic."""
        rows = gathered(self.trace, number) or summed(self.trace, number)
        return self.is_product(number) or rows is not None

    def is_product(self, number: int) -> bool:
        """Return whether a node is a product of two operands over rows."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form":
            return False
        form = node.params["form"]
        roles = [o.role for o in form.inputs]
        return not form.on_graph and len(form.outputs) == 1 and roles == [Role.LEFT, Role.RIGHT]

    def of(self, value: int, axis: int) -> Polynomial:
        """Return what the rows of a value are, `axis` counting them.

        Raises:
          polynomials.TooLargeError: too many terms.
        """
        key = value, axis
        if key not in self._rows:
            self._rows[key] = self._follow(value, axis)
        return self._rows[key]

    def _shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.trace.avals[value].shape)

    def _leaf(self, value: int, axis: int | None) -> Polynomial:
        return polynomials.variable(ArrayFactor(value, axis), row_shape(self._shape(value), axis))

    def _follow(self, value: int, axis: int) -> Polynomial:
        trace = self.trace
        shape = self._shape(value)
        row = row_shape(shape, axis)
        if (number := trace.uniform(value)) is not None:
            return polynomials.constant(np.broadcast_to(number, row))
        node = trace.node(value)
        if node is None:
            return self._leaf(value, axis)
        made, place = trace.producer[value]
        if axis == 0:
            if self.is_product(made):
                if shape[0] == node.params["num_rows"]:
                    return polynomials.variable(ProductFactor(made), row)
            elif (rows := gathered(trace, made)) is not None:
                return polynomials.variable(rows, row)
            elif summed(trace, made) is not None:
                return polynomials.variable(SumFactor(made), row)
        followed = node.name in MOVES or (node.name in ARITHMETIC and value in self._multiplied)
        rule = getattr(self, f"_{node.name}", None)
        row = rule(node, place, axis) if followed and rule is not None else None
        return self._leaf(value, axis) if row is None else row

    def _operand(self, value: int, axis: int | None) -> Polynomial:
        """Return the rows of an operand; with no axis, one row that all share."""
        if axis is not None:
            return self.of(value, axis)
        key = value, None
        if key not in self._rows:
            known, number = self.trace.constant(value), self.trace.uniform(value)
            if known is None and number is not None:
                known = np.broadcast_to(number, self._shape(value))
            leaf = self._leaf(value, None)
            self._rows[key] = leaf if known is None else polynomials.constant(known)
        return self._rows[key]

    # moves: each is made of the numbers of the elements

    def _copy(self, node, place, axis):
        return self.of(node.inputs[0], axis)

    def _slice(self, node, place, axis):
        p = node.params
        strides = p["strides"] or (1,) * len(p["start_indices"])
        parts = [
            slice(None) if n == axis else slice(*bounds)
            for n, bounds in enumerate(
                zip(p["start_indices"], p["limit_indices"], strides, strict=True)
            )
        ]
        if self._shape(node.inputs[0])[axis] != self._shape(node.outputs[0])[axis]:
            return None
        operand = self.of(node.inputs[0], axis)
        return operand.take(operand.labels[tuple(parts)])

    def _split(self, node, place, axis):
        along, sizes = node.params["axis"], node.params["sizes"]
        if along == axis:
            return None
        operand = self.of(node.inputs[0], axis)
        parts = np.split(operand.labels, np.cumsum([int(s) for s in sizes])[:-1], axis=along)
        return operand.take(parts[place])

    def _concatenate(self, node, place, axis):
        along = node.params["dimension"]
        if along == axis:
            return None
        operands = [self.of(v, axis) for v in node.inputs]
        sizes = [o.shape[along] for o in operands]
        whole, start = None, 0
        for operand, size in zip(operands, sizes, strict=True):
            pad = [(0, 0)] * len(operand.shape)
            pad[along] = (start, sum(sizes) - start - size)
            part = operand.take(np.pad(operand.labels, pad, constant_values=-1))
            whole = part if whole is None else whole + part
            start += size
        return whole

    def _reshape(self, node, place, axis):
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        lead = math.prod(after[:axis])
        rows = (n for n, size in enumerate(before) if size == after[axis])
        places = [n for n in rows if math.prod(before[:n]) == lead]
        if not places or node.params.get("dimensions") is not None:
            return None
        return self.of(node.inputs[0], places[0]).reshaped(row_shape(after, axis))

    def _squeeze(self, node, place, axis):
        ndim = len(self._shape(node.inputs[0]))
        removed = {d % ndim for d in node.params["dimensions"]}
        kept = [n for n in range(ndim) if n not in removed]
        row = row_shape(self._shape(node.outputs[0]), axis)
        return self.of(node.inputs[0], kept[axis]).reshaped(row)

    def _transpose(self, node, place, axis):
        order = node.params["permutation"]
        operand = self.of(node.inputs[0], order[axis])
        return operand.take(operand.labels.transpose(order))

    def _broadcast_in_dim(self, node, place, axis):
        if len(node.inputs) > 1:
            return None
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        to = node.params["broadcast_dimensions"]
        own = to.index(axis) if axis in to else None
        if own is not None and before[own] != after[axis]:
            own = None
        if own is None and self.trace.uniform(node.inputs[0]) is None:
            operand = self._leaf(node.inputs[0], None)  # numbers of channels are weights too
        else:
            operand = self._operand(node.inputs[0], own)
        expanded = [1] * len(after)
        for n, d in enumerate(to):
            expanded[d] = operand.shape[n]
        return operand.take(
            np.broadcast_to(operand.labels.reshape(expanded), row_shape(after, axis))
        )

    # arithmetic

    def _sides(self, node, axis):
        """Return the operands of an elementwise primitive."""
        shape = self._shape(node.outputs[0])
        sides = []
        for v in node.inputs:
            own = self._shape(v)  # () for a scalar; JAX broadcasts axes of one element
            is_row = len(own) == len(shape) and own[axis] == shape[axis]
            operand = self._operand(v, axis if is_row else None)
            sides.append(operand.take(np.broadcast_to(operand.labels, row_shape(shape, axis))))
        return sides

    def _mul(self, node, place, axis):
        a, b = self._sides(node, axis)
        return a * b

    def _div(self, node, place, axis):
        number = self.trace.uniform(node.inputs[1])
        if number is None or number == 0:
            return None
        return self._sides(node, axis)[0].scaled(1.0 / float(number))

    def _neg(self, node, place, axis):
        return self._sides(node, axis)[0].scaled(-1.0)

    def _add(self, node, place, axis):
        a, b = self._sides(node, axis)
        return a + b

    _add_any = _add

    def _sub(self, node, place, axis):
        a, b = self._sides(node, axis)
        return a + b.scaled(-1.0)

    def _reduce_sum(self, node, place, axis):
        axes = tuple(node.params["axes"])
        count = len(self._shape(node.inputs[0]))
        kept = [n for n in range(count) if n not in axes]
        if kept[axis:] == []:
            return None
        operand = self.of(node.inputs[0], kept[axis])
        if operand.shape[kept[axis]] != 1:
            return None
        moved = operand.take(operand.labels.transpose(*kept, *axes))
        row = [operand.shape[n] for n in kept]
        return moved.summed(math.prod(operand.shape[n] for n in axes), row)

    def _dot_general(self, node, place, axis):
        (contract, batch) = node.params["dimension_numbers"]
        shapes = [self._shape(v) for v in node.inputs]
        free = [
            [n for n in range(len(s)) if n not in (*c, *b)]
            for s, c, b in zip(shapes, contract, batch, strict=True)
        ]
        num_batch, num_left = len(batch[0]), len(free[0])
        if axis < num_batch:
            axes = [batch[0][axis], batch[1][axis]]
        elif axis < num_batch + num_left:
            axes = [free[0][axis - num_batch], None]
        else:
            axes = [None, free[1][axis - num_batch - num_left]]
        pairs = list(zip(node.inputs, axes, strict=True))
        if any(a is None and self.trace.constant(v) is None for v, a in pairs):
            return None
        operands = [self._operand(v, a) for v, a in pairs]
        sides = zip(operands, contract, batch, free, strict=True)
        a, b = (operand.labels.transpose(*bs, *fs, *cs) for operand, cs, bs, fs in sides)
        left = [operands[0].shape[n] for n in free[0]]
        right = [operands[1].shape[n] for n in free[1]]
        common = [operands[0].shape[n] for n in batch[0]]
        summed = [operands[0].shape[n] for n in contract[0]]
        shape = (*common, *left, *right, *summed)
        if math.prod(shape) > polynomials.MOST_TERMS:
            return None
        a = a.reshape(*common, *left, *[1] * len(right), *summed)
        b = b.reshape(*common, *[1] * len(left), *right, *summed)
        a, b = (
            operands[0].take(np.broadcast_to(a, shape)),
            operands[1].take(np.broadcast_to(b, shape)),
        )
        return (a * b).summed(math.prod(summed), (*common, *left, *right))
