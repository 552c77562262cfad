"""The rows of a trace's values, followed through moves and arithmetic."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import Role
from eqfuse.ops.transforms.fuse.trace import (
    FLOATS,
    MOST_TERMS,
    Gathered,
    Polynomial,
    TooLargeError,
    Trace,
    computed,
    constant,
    free_axes,
    gathered,
    summed,
    variable,
)

MOVES = frozenset(["slice", "concatenate", "reshape", "transpose", "broadcast_in_dim"])
MOVES |= frozenset(["split", "squeeze", "copy", "rev", "gather"])
"""Primitives that place elements elsewhere and do nothing else."""


class Unfit(ValueError):
    """What is between a product and a sum is not of the kind that a form has."""

    def __init__(self, reason: str, advice: str = ""):
        super().__init__(reason)
        self.advice = advice


@dataclasses.dataclass(frozen=True)
class ArrayFactor:
    """An array of a trace as a factor of polynomials: a row each, [rows, ...], or one for all."""

    value: int
    axis: int | None  # which of its axes counts rows; None if all rows share it


def row_shape(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Return the shape of one row of an array, in which the axis that counts rows is 1."""
    return tuple(1 if n == axis else size for n, size in enumerate(shape))


class MovedRows:
    """The polynomials of the rows of a trace's values, followed through moves."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._rows: dict = {}

    def of(self, value: int, axis: int | None) -> Polynomial:
        """Return the rows of a value, which `axis` counts; None: one row for all."""
        key = value, axis
        if key not in self._rows:
            self._rows[key] = self._follow(value, axis)
        return self._rows[key]

    def _shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.trace.avals[value].shape)

    def _leaf(self, value: int, axis: int | None) -> Polynomial:
        return variable(ArrayFactor(value, axis), row_shape(self._shape(value), axis))

    def _follow(self, value: int, axis: int | None) -> Polynomial:
        trace = self.trace
        known = trace.constant(value) if axis is None else None
        if known is None and (number := trace.uniform(value)) is not None:
            known = np.broadcast_to(number, row_shape(self._shape(value), axis))
        if known is not None:
            return constant(known)
        if axis is None or value not in trace.producer:
            return self._leaf(value, axis)
        number, place = trace.producer[value]
        row = self._row_of_node(number, place, axis)
        return self._leaf(value, axis) if row is None else row

    def _row_of_node(self, number: int, place: int, axis: int) -> Polynomial | None:
        """Return the rows of an output of a node; None if they are elements of their own."""
        node = self.trace.nodes[number]
        if node.name == "concatenate":
            return self._concatenated(node, axis)
        if node.name not in MOVES:
            return None
        moved = getattr(self, f"_{node.name}")(node, place, axis)
        if moved is None:
            return None
        operand, move = moved
        return operand.take(move(operand.labels))

    # moves of one array: its rows, and where the numbers of their elements go; None if unknown

    def _copy(self, node, place, axis):
        return self.of(node.inputs[0], axis), lambda labels: labels

    def _slice(self, node, place, axis):
        p = node.params
        if self._shape(node.inputs[0])[axis] != self._shape(node.outputs[0])[axis]:
            return None
        strides = p["strides"] or (1,) * len(p["start_indices"])
        bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
        parts = tuple(slice(None) if n == axis else slice(*b) for n, b in enumerate(bounds))
        return self.of(node.inputs[0], axis), lambda labels: labels[parts]

    def _rev(self, node, place, axis):
        along = node.params["dimensions"]
        if axis in along:
            return None
        return self.of(node.inputs[0], axis), lambda labels: np.flip(labels, along)

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
        sizes[own] = 1
        operand, params = self.of(node.inputs[0], own), {"slice_sizes": tuple(sizes)}
        [labels] = computed(node, [operand.labels, indices], fill_value=-1, **params)
        return None if (labels < 0).any() else (operand, lambda _: labels)

    def _split(self, node, place, axis):
        along, sizes = node.params["axis"], node.params["sizes"]
        if along == axis:
            return None
        bounds = np.cumsum([int(s) for s in sizes])[:-1]
        return self.of(node.inputs[0], axis), lambda a: np.split(a, bounds, axis=along)[place]

    def _reshape(self, node, place, axis):
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        lead = math.prod(after[:axis])
        rows = (n for n, size in enumerate(before) if size == after[axis])
        own = next((n for n in rows if math.prod(before[:n]) == lead), None)
        if own is None or (node.name == "reshape" and node.params["dimensions"] is not None):
            return None
        return self.of(node.inputs[0], own), lambda labels: labels.reshape(row_shape(after, axis))

    _squeeze = _reshape

    def _transpose(self, node, place, axis):
        order = node.params["permutation"]
        return self.of(node.inputs[0], order[axis]), lambda labels: labels.transpose(order)

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
            operand = self.of(node.inputs[0], own)
        expanded = [1] * len(after)
        for n, d in enumerate(to):
            expanded[d] = operand.shape[n]
        row = row_shape(after, axis)
        return operand, lambda labels: np.broadcast_to(labels.reshape(expanded), row)

    def _concatenated(self, node, axis) -> Polynomial | None:
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


def gathers_of(trace: Trace) -> dict[int, tuple[Gathered, np.ndarray]]:
    """Return of each node that gathers rows of nodes whose, and which of their elements.

    Slices, chunks and filters of an array that are gathered by the same indices as the array itself
    are elements of its rows.
    """
    moves = MovedRows(trace)
    alike: dict[tuple, list[tuple[int, Gathered, int]]] = {}
    for number in range(len(trace.nodes)):
        if (rows := gathered(trace, number)) is not None:
            aval = trace.avals[rows.value]
            key = rows.index, rows.mode, rows.fill, aval.shape[0], aval.dtype
            size = math.prod(aval.shape[1:])
            alike.setdefault(key, []).append((number, rows, size))
    found = {}
    for group in alike.values():
        places: dict[tuple, tuple[Gathered, int]] = {}  # the largest array has the elements
        for number, rows, size in sorted(group, key=lambda item: -item[2]):
            elements = _elements_of_arrays(moves, rows.value, size) if len(group) > 1 else {}
            known = [places.get(elements.get(n)) for n in range(size)]
            bases = {place[0] for place in known if place is not None}
            if len(bases) == 1 and None not in known:
                found[number] = bases.pop(), np.array([place for _, place in known])
                continue
            found[number] = rows, np.arange(size)
            for n, element in elements.items():
                places.setdefault(element, (rows, n))
    return found


def _elements_of_arrays(moves: MovedRows, value: int, size: int) -> dict[int, tuple]:
    """Return those elements of a row that are elements of an array's row, and which."""
    try:
        row = moves.of(value, 0)
    except TooLargeError:
        return {}
    elements = {}
    for key, terms in row.terms.items():
        if key and isinstance(key[0], ArrayFactor) and key[0].axis is not None:
            pairs = zip(terms.place.tolist(), terms.index[:, 0].tolist(), strict=True)
            elements |= {place: (key[0], element) for place, element in pairs}
    return elements


ARITHMETIC = frozenset(["mul", "div", "neg", "add", "add_any", "sub", "dot_general", "reduce_sum"])
"""Primitives of whose operands polynomials can be multiplied out."""
FOLLOWED = MOVES | ARITHMETIC | {"convert_element_type"}


@dataclasses.dataclass(frozen=True)
class ProductFactor:
    """The output of a form over rows: the node of this number."""

    node: int
    group: int = 1  # how many rows of the form, one after the other, are one row


class RowPolynomials(MovedRows):
    """The polynomials of the rows of a trace's values, of gathers, products and sums."""

    def __init__(self, trace: Trace):
        super().__init__(trace)
        # products, gathers or sums go into these values, and their arithmetic is followed; of all
        # others only moves are: what is computed of them is an operand as it is
        self._multiplied: set[int] = set()
        for number, node in enumerate(trace.nodes):
            follows = node.name in FOLLOWED and not self._multiplied.isdisjoint(node.inputs)
            if follows or self.starts(number):
                self._multiplied.update(node.outputs)

    @functools.cached_property
    def gathers(self) -> dict[int, tuple[Gathered, np.ndarray]]:
        return gathers_of(self.trace)

    def starts(self, number: int) -> bool:
        """Return whether the rows of a node are followed through arithmetic."""
        is_factor = self.is_product(number) or number in self.gathers
        return is_factor or summed(self.trace, number) is not None

    def _row_of_node(self, number: int, place: int, axis: int) -> Polynomial | None:
        node = self.trace.nodes[number]
        shape = self._shape(node.outputs[place])
        if axis == 0 and self.is_product(number) and shape[0] == node.params["num_rows"]:
            return variable(ProductFactor(number), row_shape(shape, 0))
        if axis == 0 and number in self.gathers:
            rows, elements = self.gathers[number]
            whole = variable(rows, (1, math.prod(self._shape(rows.rows)[1:])))
            return whole.take(elements.reshape(row_shape(shape, 0)))
        if axis == 0 and (group := self._group_of_product(node)) is not None:
            return variable(group, row_shape(shape, 0))
        if node.name in MOVES:
            return super()._row_of_node(number, place, axis)
        if node.name in FOLLOWED and not self._multiplied.isdisjoint(node.outputs):
            return getattr(self, f"_{node.name}")(node, axis)
        return None

    def _group_of_product(self, node) -> ProductFactor | None:
        """Return a product whose channels are on axes of their own, and taken one by one."""
        if node.name != "reshape" or node.inputs[0] not in self.trace.producer:
            return None
        made, _ = self.trace.producer[node.inputs[0]]
        shape, before = self._shape(node.outputs[0]), self._shape(node.inputs[0])
        is_grouped = len(shape) > 2 and shape[-1] == before[-1] and shape[0] != before[0]
        if not is_grouped or not self.is_product(made):
            return None
        return ProductFactor(made, math.prod(shape[1:-1]))

    def grouped(self, value: int, group: int) -> Polynomial | None:
        """Return the rows of an operand of a product, `group` of them as one; None if unknown."""
        if group == 1:
            return self.of(value, 0)
        node, (count, size) = self.trace.node(value), self._shape(value)
        if node is None or node.name != "reshape":
            return None
        [source] = node.inputs
        shape = self._shape(source)
        if shape[:1] != (count // group,) or shape[-1] != size:
            return None
        return self.of(source, 0).reshaped((1, group * size))

    def _roles(self, number: int) -> list[Role]:
        """Return the roles of the inputs of a form over rows; [] for other nodes."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form" or node.params["form"].on_graph:
            return []
        return [o.role for o in node.params["form"].inputs]

    def is_product(self, number: int) -> bool:
        """Return whether a node is a product of two operands over rows."""
        one = len(self.trace.nodes[number].outputs) == 1
        return one and self._roles(number) == [Role.LEFT, Role.RIGHT]

    def is_gradient(self, number: int) -> bool:
        return Role.OUTPUT in self._roles(number)

    # arithmetic

    def _sides(self, node, axis):
        shape = self._shape(node.outputs[0])
        sides = []
        for v in node.inputs:
            own = self._shape(v)  # () for a scalar; JAX broadcasts axes of one element
            is_row = len(own) == len(shape) and own[axis] == shape[axis]
            operand = self.of(v, axis if is_row else None)
            sides.append(operand.take(np.broadcast_to(operand.labels, row_shape(shape, axis))))
        return sides

    def _mul(self, node, axis):
        a, b = self._sides(node, axis)
        return a * b

    def _div(self, node, axis):
        number = self.trace.uniform(node.inputs[1])
        if number is None or number == 0:
            return None
        return self._sides(node, axis)[0].scaled(1.0 / float(number))

    def _convert_element_type(self, node, axis):
        """Follow to a wider dtype: all is computed in it."""
        narrow = self.trace.avals[node.inputs[0]].dtype
        wide = node.params["new_dtype"]
        if not {narrow.name, wide.name} <= FLOATS:
            return None
        if jnp.promote_types(narrow, wide) != wide:
            return None
        return self.of(node.inputs[0], axis)

    def _neg(self, node, axis):
        return self._sides(node, axis)[0].scaled(-1.0)

    def _add(self, node, axis):
        a, b = self._sides(node, axis)
        return a + b

    _add_any = _add

    def _sub(self, node, axis):
        a, b = self._sides(node, axis)
        return a + b.scaled(-1.0)

    def _reduce_sum(self, node, axis):
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

    def _dot_general(self, node, axis):
        (contract, batch) = node.params["dimension_numbers"]
        shapes = [self._shape(v) for v in node.inputs]
        free = free_axes(node.params, shapes)
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
        operands = [self.of(v, a) for v, a in pairs]
        sides = zip(operands, contract, batch, free, strict=True)
        a, b = (operand.labels.transpose(*bs, *fs, *cs) for operand, cs, bs, fs in sides)
        left = [operands[0].shape[n] for n in free[0]]
        right = [operands[1].shape[n] for n in free[1]]
        common = [operands[0].shape[n] for n in batch[0]]
        summed = [operands[0].shape[n] for n in contract[0]]
        shape = (*common, *left, *right, *summed)
        if math.prod(shape) > MOST_TERMS:
            return None
        a = a.reshape(*common, *left, *[1] * len(right), *summed)
        b = b.reshape(*common, *[1] * len(left), *right, *summed)
        a = operands[0].take(np.broadcast_to(a, shape))
        b = operands[1].take(np.broadcast_to(b, shape))
        return (a * b).summed(math.prod(summed), (*common, *left, *right))
