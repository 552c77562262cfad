"""What the rows of a trace's values are made of, where elements are only moved."""

import dataclasses
import math

import jax
import numpy as np

from eqfuse.ops.transforms.fuse import polynomials
from eqfuse.ops.transforms.fuse.polynomials import Polynomial
from eqfuse.ops.transforms.fuse.trace import Trace

MOVES = frozenset(["slice", "concatenate", "reshape", "transpose", "broadcast_in_dim"])
MOVES |= frozenset(["split", "squeeze", "expand_dims", "copy", "rev", "gather"])
"""Primitives that place elements elsewhere and do nothing else."""


@dataclasses.dataclass(frozen=True)
class ArrayFactor:
    """An array of a trace as a factor of polynomials: a row each, [rows, ...], or one for all.

    Attributes:
      value: its number.
      axis: which of its axes counts rows; None if all rows share it.
    """

    value: int
    axis: int | None


def row_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Return the shape of one row of an array, in which the axis that counts rows is 1."""
    return tuple(1 if n == axis else size for n, size in enumerate(shape))


class MovedRows:
    """The polynomials of the rows of a trace's values, followed through moves."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._rows: dict = {}

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
        if (number := trace.uniform(value)) is not None:
            return polynomials.constant(
                np.broadcast_to(number, row_shape(self._shape(value), axis))
            )
        if (node := trace.node(value)) is None:
            return self._leaf(value, axis)
        made, place = trace.producer[value]
        if (row := self._of_row_primitive(made, place, axis)) is not None:
            return row
        rule = getattr(self, f"_{node.name}", None) if self._is_followed(node, value) else None
        row = None if rule is None else rule(node, place, axis)
        return self._leaf(value, axis) if row is None else row

    def _of_row_primitive(self, number: int, place: int, axis: int) -> Polynomial | None:
        """Return the rows of a node that is a factor by itself; None for others."""
        return None

    def _is_followed(self, node, value: int) -> bool:
        return node.name in MOVES

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

    def _rev(self, node, place, axis):
        if axis in node.params["dimensions"]:
            return None
        operand = self.of(node.inputs[0], axis)
        return operand.take(np.flip(operand.labels, node.params["dimensions"]))

    def _gather(self, node, place, axis):
        """Follow known elements of each row, such as components in another order."""
        d, sizes = node.params["dimension_numbers"], list(node.params["slice_sizes"])
        indices = self.trace.constant(node.inputs[1])
        removed = (*d.collapsed_slice_dims, *d.operand_batching_dims)
        kept = [n for n in range(len(sizes)) if n not in removed]
        if indices is None or axis not in d.offset_dims or d.operand_batching_dims:
            return None
        own = kept[d.offset_dims.index(axis)]
        if own in d.start_index_map or sizes[own] != self._shape(node.inputs[0])[own]:
            return None
        operand = self.of(node.inputs[0], own)
        sizes[own] = 1
        params = node.params | {"slice_sizes": tuple(sizes), "fill_value": -1}
        with jax.ensure_compile_time_eval():
            labels = np.asarray(node.eqn.primitive.bind(operand.labels, indices, **params))
        return None if (labels < 0).any() else operand.take(labels)

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
