"""The rows of a trace's values, followed through moves and arithmetic.

A function exchanges the columns of gathered rows, and weights one of them:

    >>> def edges(x, w, senders):  # x [nodes, 2], w [edges, 1]
    ...     rows = x.at[senders].get(mode="clip")
    ...     return 2.0 * jnp.concatenate([rows[:, 1:], rows[:, :1] * w], axis=1)
    >>> jaxpr = jax.make_jaxpr(edges)(jnp.ones((3, 2)), jnp.ones((5, 1)), jnp.zeros(5, "i4"))
    >>> trace = Trace(jaxpr, {})
    >>> print(*(node.name for node in trace.nodes))
    lt add select_n broadcast_in_dim gather slice slice mul concatenate mul

Each row of the result is a polynomial. These are its monomials: factors, the element of the row
that each is added to, the number before it, and which element of each factor it reads.

    >>> for factors, terms in RowPolynomials(trace).of(trace.outputs[0]).terms.items():
    ...     print(*(type(f).__name__ for f in factors), terms.place, terms.scale, terms.index)
    Gathered [0] [2.] [[1]]
    ArrayFactor Gathered [1] [2.] [[0 0]]

So element 0 is twice column 1 of `x[senders]`, and element 1 twice `w` times column 0. Where one
factor is a product (`ProductFactor`) and the rows are summed, `match.py` makes a form of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator

import jax.numpy as jnp
import numpy as np

from eqfuse.fuse.moves import gathered, summed
from eqfuse.fuse.polynomials import MOST_TERMS, Polynomial, Unfit, constant, variable
from eqfuse.ops.ir.form import Index, Role
from eqfuse.ops.transforms.trace import FLOATS, Trace, computed, free_axes

MOVES = frozenset(["slice", "concatenate", "reshape", "transpose", "broadcast_in_dim"])
MOVES |= frozenset(["split", "squeeze", "copy", "gather"])
"""Primitives that place elements elsewhere and do nothing else."""


@dataclasses.dataclass(frozen=True)
class ArrayFactor:
    """An array of a trace as a factor of polynomials: a row each, [rows, ...], or one for all."""

    value: int
    axes: tuple[int, ...] | None  # which of its axes count rows, in order; None: all rows share it


def row_shape(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape of one row of an array, in which the axes that count rows are 1."""
    return tuple(1 if n in (axes or ()) else size for n, size in enumerate(shape))


ROWS = (0,)
"""The axes of an array [rows, ...]; those of one [nodes, neighbours, ...] are (0, 1)."""

OPERATORS = {"add": operator.add, "add_any": operator.add, "mul": operator.mul}
OPERATORS |= {"neg": lambda a: a.scaled(-1.0), "sub": lambda a, b: a + b.scaled(-1.0)}
ARITHMETIC = frozenset([*OPERATORS, "div", "dot_general", "reduce_sum"])
"""Primitives of whose operands polynomials can be multiplied out."""
FOLLOWED = MOVES | ARITHMETIC | {"convert_element_type"}


@dataclasses.dataclass(frozen=True)
class ProductFactor:
    """The output of a form over rows: the node of this number."""

    node: int
    group: int = 1  # how many rows of the form, one after the other, are one row


class RowPolynomials:
    """The polynomials of the rows of a trace's values: of moves, gathers, products and sums."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._rows: dict = {}
        # products, gathers or sums go into these values, and their arithmetic is followed; of all
        # others only moves are: what is computed of them is an operand as it is
        self._multiplied: set[int] = set()
        for number, node in enumerate(trace.nodes):
            follows = node.name in FOLLOWED and not self._multiplied.isdisjoint(node.inputs)
            if follows or self.starts(number):
                self._multiplied.update(node.outputs)

    def starts(self, number: int) -> bool:
        """Return whether the rows of a node are followed through arithmetic."""
        is_moved = gathered(self.trace, number) or summed(self.trace, number)
        return self.is_product(number) or is_moved is not None

    def of(self, value: int, axes: tuple[int, ...] | None = ROWS) -> Polynomial:
        """Return the rows of a value, which `axes` count; None: one row for all."""
        key = value, axes
        if axes is not None and max(axes) >= len(self._shape(value)):
            raise Unfit("a number has no rows")
        if key not in self._rows:
            self._rows[key] = self._follow(value, axes)
        return self._rows[key]

    def _shape(self, value: int) -> tuple[int, ...]:
        return tuple(self.trace.avals[value].shape)

    def _leaf(self, value: int, axes: tuple[int, ...] | None) -> Polynomial:
        return variable(ArrayFactor(value, axes), row_shape(self._shape(value), axes))

    def _follow(self, value: int, axes: tuple[int, ...] | None) -> Polynomial:
        trace = self.trace
        known = trace.constant(value) if axes is None else None
        if known is None and (number := trace.uniform(value)) is not None:
            known = np.broadcast_to(number, row_shape(self._shape(value), axes))
        if known is not None:
            return constant(known)
        if axes is None or value not in trace.producer:
            return self._leaf(value, axes)
        number, place = trace.producer[value]
        row = self._row_of_node(number, place, axes)
        return self._leaf(value, axes) if row is None else row

    def _row_of_node(self, number: int, place: int, axes: tuple[int, ...]) -> Polynomial | None:
        """Return the rows of an output of a node; None if they are elements of their own."""
        node = self.trace.nodes[number]
        shape = self._shape(node.outputs[place])
        row = row_shape(shape, axes)
        if axes == ROWS and self.is_product(number) and shape[0] == node.params["num_rows"]:
            return variable(ProductFactor(number), row)
        if axes == ROWS and (rows := gathered(self.trace, number)) is not None:
            return variable(rows, row)
        if (group := self._group_of_product(node, axes)) is not None:
            return variable(group, row)
        if node.name == "concatenate":
            return self._concatenated(node, axes)
        if node.name in MOVES:
            moved = getattr(self, f"_{node.name}")(node, place, axes)
            return moved and moved[0].take(moved[1](moved[0].labels))
        if node.name in FOLLOWED and not self._multiplied.isdisjoint(node.outputs):
            if node.name in OPERATORS:
                return OPERATORS[node.name](*self._sides(node, axes))
            return getattr(self, f"_{node.name}")(node, axes)
        return None

    # moves of one array: its rows, and where the numbers of their elements go; None if unknown

    def _copy(self, node, place, axes):
        return self.of(node.inputs[0], axes), lambda labels: labels

    def _slice(self, node, place, axes):
        p = node.params
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        if any(before[a] != after[a] for a in axes):
            return None
        strides = p["strides"] or (1,) * len(p["start_indices"])
        bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
        parts = tuple(slice(None) if n in axes else slice(*b) for n, b in enumerate(bounds))
        return self.of(node.inputs[0], axes), lambda labels: labels[parts]

    def _gather(self, node, place, axes):
        """Follow known elements of each row, such as vectors in the order y, z, x."""
        d, sizes = node.params["dimension_numbers"], list(node.params["slice_sizes"])
        indices = self.trace.constant(node.inputs[1])
        removed = (*d.collapsed_slice_dims, *d.operand_batching_dims)
        kept = [n for n in range(len(sizes)) if n not in removed]
        if indices is None or not set(axes) <= set(d.offset_dims) or d.operand_batching_dims:
            return None
        own, before = [kept[d.offset_dims.index(a)] for a in axes], self._shape(node.inputs[0])
        if any(n in d.start_index_map or sizes[n] != before[n] for n in own):
            return None
        sizes = row_shape(sizes, own)
        operand, params = self.of(node.inputs[0], tuple(own)), {"slice_sizes": sizes}
        [labels] = computed(node, [operand.labels, indices], fill_value=-1, **params)
        return None if (labels < 0).any() else (operand, lambda _: labels)

    def _split(self, node, place, axes):
        along, sizes = node.params["axis"], node.params["sizes"]
        if along in axes:
            return None
        bounds = np.cumsum([int(s) for s in sizes])[:-1]
        return self.of(node.inputs[0], axes), lambda a: np.split(a, bounds, axis=along)[place]

    def _reshape(self, node, place, axes):
        after, own = self._shape(node.outputs[0]), self.before_reshape(node, axes)
        if own is None:
            return None
        return self.of(node.inputs[0], own), lambda labels: labels.reshape(row_shape(after, axes))

    def before_reshape(self, node, axes) -> tuple[int, ...] | None:
        """Return the axes that count, before a reshape, what these count after it."""
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        if node.name == "reshape" and node.params["dimensions"] is not None:
            return None
        if axes != tuple(range(axes[0], axes[-1] + 1)):
            return None
        wanted = math.prod(after[: axes[0]]), math.prod(after[a] for a in axes)
        for n, first in itertools.product(range(1, len(before) + 1), range(len(before))):
            last = first + n
            sizes = math.prod(before[:first]), math.prod(before[first:last])
            if last <= len(before) and sizes == wanted:
                return tuple(range(first, last))
        return None

    _squeeze = _reshape

    def _transpose(self, node, place, axes):
        order = node.params["permutation"]
        own = tuple(order[a] for a in axes)
        return self.of(node.inputs[0], own), lambda labels: labels.transpose(order)

    def _broadcast_in_dim(self, node, place, axes):
        if len(node.inputs) > 1:
            return None
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        to = node.params["broadcast_dimensions"]
        own = tuple(to.index(a) for a in axes if a in to and before[to.index(a)] == after[a])
        if len(own) != len(axes):
            if math.prod(before[n] for n in own) > 1:
                return None  # an array that some of the axes share
            own = None
        if own is None and self.trace.uniform(node.inputs[0]) is None:
            operand = self._leaf(node.inputs[0], None)  # numbers of channels are weights too
        else:
            operand = self.of(node.inputs[0], own)
        expanded = [1] * len(after)
        for n, d in enumerate(to):
            expanded[d] = operand.shape[n]
        row = row_shape(after, axes)
        return operand, lambda labels: np.broadcast_to(labels.reshape(expanded), row)

    def _concatenated(self, node, axes) -> Polynomial | None:
        along = node.params["dimension"]
        if along in axes:
            return None
        operands = [self.of(v, axes) for v in node.inputs]
        sizes = [o.shape[along] for o in operands]
        whole, start = None, 0
        for operand, size in zip(operands, sizes, strict=True):
            pad = [(0, 0)] * len(operand.shape)
            pad[along] = (start, sum(sizes) - start - size)
            part = operand.take(np.pad(operand.labels, pad, constant_values=-1))
            whole = part if whole is None else whole + part
            start += size
        return whole

    def _group_of_product(self, node, axes) -> ProductFactor | None:
        """Return a product whose channels are on axes of their own, as by `mul_to_axis`."""
        if node.name != "reshape" or node.inputs[0] not in self.trace.producer:
            return None
        made, _ = self.trace.producer[node.inputs[0]]
        shape, before = self._shape(node.outputs[0]), self._shape(node.inputs[0])
        group = math.prod(shape[len(axes) : -1])
        is_grouped = group > 1 and axes == tuple(range(len(axes))) and shape[-1] == before[-1]
        return ProductFactor(made, group) if is_grouped and self.is_product(made) else None

    def grouped(self, value: int, group: int) -> Polynomial | None:
        """Return the rows of an operand of a product, `group` of them as one; None if unknown."""
        if group == 1:
            return self.of(value)
        node, size = self.trace.node(value), self._shape(value)[-1]
        if node is None or node.name != "reshape":
            return None
        [source] = node.inputs
        shape = self._shape(source)
        axes = next((n for n in range(1, len(shape)) if math.prod(shape[n:-1]) == group), None)
        if axes is None or shape[-1] != size:
            return None
        return Polynomial((1, group * size), self.of(source, tuple(range(axes))).terms)

    def _roles(self, number: int) -> list[Role]:
        """Return the roles of the inputs of a form over rows; [] for other nodes."""
        node = self.trace.nodes[number]
        if node.name != "eqfuse_form" or node.params["form"].on_graph:
            return []
        return [o.role for o in node.params["form"].inputs]

    def is_product(self, number: int) -> bool:
        """Return whether a node is a product of two operands over rows."""
        if self._roles(number) != [Role.LEFT, Role.RIGHT]:
            return False
        [out, *others] = self.trace.nodes[number].params["form"].outputs
        return not others and out.channels and out.index is Index.ROW

    def is_gradient(self, number: int) -> bool:
        return Role.OUTPUT in self._roles(number)

    # arithmetic

    def _sides(self, node, axes):
        shape = self._shape(node.outputs[0])
        sides = []
        for v in node.inputs:
            own = self._shape(v)  # () for a scalar; JAX broadcasts axes of one element
            rows = [own[a] for a in axes] if len(own) == len(shape) else []
            is_row = rows == [shape[a] for a in axes]
            if not is_row and math.prod(rows) > 1:
                raise Unfit("an array is one for some of the rows")
            operand = self.of(v, axes if is_row else None)
            sides.append(operand.take(np.broadcast_to(operand.labels, row_shape(shape, axes))))
        return sides

    def _div(self, node, axes):
        number = self.trace.uniform(node.inputs[1])
        if number is None or number == 0:
            return None
        return self._sides(node, axes)[0].scaled(1.0 / float(number))

    def _convert_element_type(self, node, axes):
        """Follow to a wider dtype: all is computed in it."""
        narrow = self.trace.avals[node.inputs[0]].dtype
        wide = node.params["new_dtype"]
        if not {narrow.name, wide.name} <= FLOATS:
            return None
        if jnp.promote_types(narrow, wide) != wide:
            return None
        return self.of(node.inputs[0], axes)

    def _reduce_sum(self, node, axes):
        along = tuple(node.params["axes"])
        count = len(self._shape(node.inputs[0]))
        kept = [n for n in range(count) if n not in along]
        operand = self.of(node.inputs[0], tuple(kept[a] for a in axes))
        moved = operand.take(operand.labels.transpose(*kept, *along))
        row = [operand.shape[n] for n in kept]
        return moved.summed(math.prod(operand.shape[n] for n in along), row)

    def _dot_general(self, node, axes):
        (contract, batch) = node.params["dimension_numbers"]
        shapes = [self._shape(v) for v in node.inputs]
        free = free_axes(node.params, shapes)
        *own, out = (self.trace.avals[v].dtype for v in (*node.inputs, *node.outputs))
        if any(jnp.promote_types(dtype, out) != out for dtype in own):
            return None  # rounded
        placed = [  # for each axes of the result, that of either operand
            *zip(*batch, strict=True),
            *((n, None) for n in free[0]),
            *((None, n) for n in free[1]),
        ]
        own = list(zip(*(placed[a] for a in axes), strict=True))
        if any(None in side and any(n is not None for n in side) for side in own):
            return None
        own = [None if None in side else side for side in own]
        pairs = list(zip(node.inputs, own, strict=True))
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


def products_behind(trace: Trace, rows: RowPolynomials, number: int) -> set[int]:
    """Return the products over rows that a node is computed from, through any primitives."""

    def follow(n):
        return not rows.is_product(n) and trace.nodes[n].name != "scatter-add"

    found = trace.behind(trace.nodes[number].inputs, follow)
    return {n for n in found if rows.is_product(n)}
