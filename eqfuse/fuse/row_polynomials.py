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
factor is a product and the rows are summed, `match.py` makes a form of them.
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
from eqfuse.ops.transforms.trace import (
    FLOATS,
    VIEWS,
    Node,
    Trace,
    computed,
    free_axes,
    matmul_views,
)

OF_ONE = frozenset(["slice", "split", "reshape", "squeeze", "transpose", "copy"])
MOVES = OF_ONE | {"concatenate", "broadcast_in_dim", "gather"}
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


class RowPolynomials:
    """The polynomials of the rows of a trace's values: of moves, gathers, products and sums."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self._rows: dict = {}
        # products, gathers or sums go into these values, and their arithmetic is followed; of all
        # others only moves are: what is computed of them is an operand as it is
        self._multiplied: set[int] = set()
        for node in trace.nodes:
            follows = node.name in FOLLOWED and not self._multiplied.isdisjoint(node.inputs)
            if follows or self.starts(node):
                self._multiplied.update(node.outputs)

    def starts(self, node: Node) -> bool:
        """Return whether the rows of a node are followed through arithmetic."""
        is_moved = gathered(self.trace, node) or summed(self.trace, node)
        return self.is_product(node) or is_moved is not None

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
        row = self._row_of_node(trace.producer[value], value, axes)
        return self._leaf(value, axes) if row is None else row

    def _row_of_node(self, node: Node, value: int, axes: tuple[int, ...]) -> Polynomial | None:
        """Return the rows of an output of a node; None if they are elements of their own."""
        if axes == ROWS and (rows := gathered(self.trace, node)) is not None:
            return variable(rows, row_shape(self._shape(value), axes))
        if self._group_of_product(node, axes) is not None:
            return None
        if node.name in OF_ONE:
            return self._moved(node, value, axes)
        is_multiplied = not self._multiplied.isdisjoint(node.outputs)
        if node.name in OPERATORS and is_multiplied:
            return OPERATORS[node.name](*self._sides(node, axes))
        if node.name in MOVES or (node.name in FOLLOWED and is_multiplied):
            return getattr(self, f"_{node.name}")(node, axes)
        return None

    def _moved(self, node, value, axes) -> Polynomial | None:
        """Follow an array whose elements, or some, are in other places of each row."""
        before, after, own = self._shape(node.inputs[0]), self._shape(value), axes
        if node.name in ("reshape", "squeeze"):
            own = self.before_reshape(node, axes)
        elif node.name == "transpose":
            own = tuple(node.params["permutation"][a] for a in axes)
        elif any(before[a] != after[a] for a in axes):
            own = None
        if own is None:
            return None
        operand = self.of(node.inputs[0], own)
        if node.name not in VIEWS:
            return operand.take(operand.labels.reshape(row_shape(after, axes)))
        views = VIEWS[node.name](operand.labels, **node.params)
        return operand.take(views[node.outputs.index(value)])

    def _gather(self, node, axes):
        """Follow known elements of each row, such as vectors in the order y, z, x."""
        d, sizes = node.params["dimension_numbers"], list(node.params["slice_sizes"])
        indices = self.trace.constant(node.inputs[1])
        kept = [n for n in range(len(sizes)) if n not in d.collapsed_slice_dims]
        if indices is None or not set(axes) <= set(d.offset_dims) or d.operand_batching_dims:
            return None
        own, before = [kept[d.offset_dims.index(a)] for a in axes], self._shape(node.inputs[0])
        if any(n in d.start_index_map or sizes[n] != before[n] for n in own):
            return None
        sizes = row_shape(sizes, own)
        operand, params = self.of(node.inputs[0], tuple(own)), {"slice_sizes": sizes}
        [labels] = computed(node, [operand.labels, indices], fill_value=-1, **params)
        return None if (labels < 0).any() else operand.take(labels)

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

    def _broadcast_in_dim(self, node, axes):
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
        [labels] = VIEWS[node.name](operand.labels, row_shape(after, axes), to)
        return operand.take(labels)

    def _concatenate(self, node, axes) -> Polynomial | None:
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

    def product(self, factor) -> tuple[Node, int] | None:
        """Return the product over rows that a factor is, and how many rows of it are one row."""
        node = self.trace.producer.get(factor.value)
        if node is None or not isinstance(factor, ArrayFactor) or factor.axes is None:
            return None
        is_product = factor.axes == ROWS and self.is_product(node)
        return (node, 1) if is_product else self._group_of_product(node, factor.axes)

    def _group_of_product(self, node, axes) -> tuple[Node, int] | None:
        """Return a product whose channels are on axes of their own, as by `mul_to_axis`."""
        made = self.trace.producer.get(node.inputs[0]) if node.name == "reshape" else None
        if made is None or not self.is_product(made):
            return None
        shape, before = self._shape(node.outputs[0]), self._shape(node.inputs[0])
        group = math.prod(shape[len(axes) : -1])
        is_grouped = group > 1 and axes == tuple(range(len(axes))) and shape[-1] == before[-1]
        return (made, group) if is_grouped else None

    def grouped(self, value: int, group: int) -> Polynomial | None:
        """Return the rows of an operand of a product, `group` of them as one; None if unknown."""
        if group == 1:
            return self.of(value)
        node, size = self.trace.producer.get(value), self._shape(value)[-1]
        if node is None or node.name != "reshape":
            return None
        [source] = node.inputs
        shape = self._shape(source)
        axes = next((n for n in range(1, len(shape)) if math.prod(shape[n:-1]) == group), None)
        if axes is None or shape[-1] != size:
            return None
        return Polynomial((1, group * size), self.of(source, tuple(range(axes))).terms)

    def _roles(self, node: Node) -> list[Role]:
        """Return the roles of the inputs of a form over rows; [] for other nodes."""
        if node.name != "eqfuse_form" or node.params["form"].on_graph:
            return []
        return [o.role for o in node.params["form"].inputs]

    def is_product(self, node: Node) -> bool:
        """Return whether a node is a product of two operands over rows."""
        if self._roles(node) != [Role.LEFT, Role.RIGHT]:
            return False
        [out, *others] = node.params["form"].outputs
        return not others and out.channels and out.index is Index.ROW

    def is_gradient(self, node: Node) -> bool:
        return Role.OUTPUT in self._roles(node)

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
        _, batch = node.params["dimension_numbers"]
        free = free_axes(node.params, [self._shape(v) for v in node.inputs])
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
        views, kept = matmul_views(node.params, [operand.labels for operand in operands])
        shape = views[0].shape
        if math.prod(shape) > MOST_TERMS:
            return None
        a, b = (operand.take(view) for operand, view in zip(operands, views, strict=True))
        return (a * b).summed(math.prod(shape[kept:]), shape[:kept])


def products_behind(trace: Trace, rows: RowPolynomials, node: Node) -> set[Node]:
    """Return the products over rows that a node is computed from, through any primitives."""

    def follow(node):
        return not rows.is_product(node) and node.name != "scatter-add"

    return set(filter(rows.is_product, trace.behind(node.inputs, follow)))
