"""Activations of some scalars of rows, as data: what of a gate is not multilinear."""

from __future__ import annotations

import dataclasses
import functools

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import Block, Rows
from eqfuse.ops.ir.operands import Operand, Path, Segment, SegmentRef


@dataclasses.dataclass(frozen=True)
class ActivatedPart:
    """`mul` scalars from `offset` of a row on, of which `scale * name(scalar)` is computed."""

    offset: int
    mul: int
    name: str
    scale: float


@dataclasses.dataclass(frozen=True)
class Activated:
    """Derivatives of activations of parts of rows [rows, size], part by part side by side.

    Attributes:
      rows: what is read.
      parts: of which scalars.
      orders: a result each, [rows, scalars]: 0 for the activations, 1 for their slopes, and so on.
    """

    rows: Rows
    parts: tuple[ActivatedPart, ...]
    orders: tuple[int, ...] = (0,)

    @property
    def inputs(self) -> tuple[Rows, ...]:
        return (self.rows,)

    @property
    def outputs(self) -> tuple[Rows, ...]:
        return (Rows(self.size, ()),) * len(self.orders)

    @property
    def operands(self) -> tuple[Rows, ...]:
        return self.inputs + self.outputs

    @property
    def size(self) -> int:
        """Return how many scalars are activated."""
        return sum(part.mul for part in self.parts)

    def of_orders(self, orders) -> Activated:
        """Return the same with results of these orders."""
        return dataclasses.replace(self, orders=tuple(orders))

    def places(self) -> list[tuple[int, int, int]]:
        """Return (offset, channels, components) of each part in a result."""
        places, offset = [], 0
        for part in self.parts:
            places.append((offset, part.mul, 1))
            offset += part.mul
        return places


@functools.lru_cache(maxsize=256)
def chain_rule(activated: Activated, count: int) -> Form:
    """Return the form of tangents of `count` results: (their slopes, a tangent of the rows)."""
    places = activated.places()
    slopes = [operand(f"d{n}", activated.size, places) for n in range(count)]
    tangent = operand("t", activated.rows.size, [(p.offset, p.mul, 1) for p in activated.parts])
    outputs = [operand(f"t_a{n}", activated.size, places) for n in range(count)]
    paths = [
        path_between((SegmentRef(n, s), SegmentRef(count, s)), SegmentRef(n, s), (1, 1))
        for n in range(count)
        for s in range(len(activated.parts))
    ]
    return Form((*slopes, tangent), tuple(outputs), tuple(paths))


@functools.lru_cache(maxsize=256)
def sum_form(size: int, blocks: tuple[Block, ...] = ()) -> Form:
    """Return the sum of two arrays of rows of `size`, of these blocks where a Linear has them."""
    places = [(b.offset, b.mul, b.dim) for b in blocks] or [(0, size, 1)]
    inputs = tuple(operand(name, size, places) for name in "xy")
    paths = [
        path_between((SegmentRef(n, s),), SegmentRef(0, s), (dim,))
        for n in range(2)
        for s, (_, _, dim) in enumerate(places)
    ]
    return Form(inputs, (operand("sum", size, places),), tuple(paths))


def operand(name: str, size: int, places) -> Operand:
    segments = tuple(Segment(offset, mul, dim, dim) for offset, mul, dim in places)
    return Operand(name, size, segments, True)


def path_between(factors, output: SegmentRef, dims: tuple[int, ...]) -> Path:
    """Return the product of factors of one component or of `dim`, component by component."""
    dim = max(dims)
    terms = ((*(min(k, d - 1) for d in dims), k) for k in range(dim))
    return Path(tuple(factors), output, tuple((components, 1.0) for components in terms))
