"""Match the gate behind a Linear, as e3nn writes it, in what its result is made of."""

from __future__ import annotations

import dataclasses

import e3nn_jax as e3nn
import numpy as np

from eqfuse.ops.backends.xla import activations
from eqfuse.ops.ir.gates import IDENTITY, Activation, Gate, Part, Tile
from eqfuse.ops.ir.linears import Linear
from eqfuse.ops.transforms.fuse import polynomials
from eqfuse.ops.transforms.fuse.activations import activation_values
from eqfuse.ops.transforms.fuse.layouts import Unfit
from eqfuse.ops.transforms.fuse.moves import ArrayFactor, row_shape
from eqfuse.ops.transforms.fuse.polynomials import Polynomial, Terms
from eqfuse.ops.transforms.fuse.rows import RowPolynomials
from eqfuse.ops.transforms.fuse.trace import Trace

ROUNDING = 1e-6
"""By how much a factor of one may be off, for e3nn multiplies by a Clebsch-Gordan coefficient."""


@dataclasses.dataclass(frozen=True)
class Activated:
    """A function of the elements of an array, as a factor of polynomials."""

    name: str
    value: int
    axis: int


class GateRows(RowPolynomials):
    """Rows of what follows a pre-activation z, in which activations are factors.

    Attributes:
      z: a value of the trace, [rows, size].
    """

    def __init__(self, trace: Trace, z: int):
        self.z = z
        self._activations = activation_values(trace, z)
        super().__init__(trace)

    def starts(self, number: int) -> bool:
        outputs = self.trace.nodes[number].outputs
        return any(v == self.z or v in self._activations for v in outputs)

    def _follow(self, value: int, axis: int) -> Polynomial:
        if value not in self._activations:
            return super()._follow(value, axis) if value != self.z else self._leaf(value, axis)
        name, of = self._activations[value]
        row = row_shape(self.trace.avals[value].shape, axis)
        return polynomials.variable(Activated(name, of, axis), row)

    def candidates(self) -> list[int]:
        """Return what may be the result of a gate, the last first."""
        count = self.trace.avals[self.z].shape[0]
        shapes = {v: getattr(self.trace.avals[v], "shape", ()) for v in self._multiplied}
        rows = (v for v, s in shapes.items() if v != self.z and s[:1] == (count,) and len(s) == 2)
        return sorted(rows, reverse=True)


@dataclasses.dataclass(frozen=True)
class GateMatch:
    """A gate, what is added before it, and what it gives.

    Attributes:
      skip: an array of rows; None if nothing is added.
      columns: of the skip, in the order of the pre-activation; -1 for none.
      value: of the trace.
    """

    gate: Gate
    skip: ArrayFactor | None
    columns: np.ndarray | None
    value: int


def gate_behind(trace: Trace, z: int, linear: Linear) -> GateMatch | None:
    """Return the gate whose pre-activation is z, or z and a skip; None if there is none."""
    rows = GateRows(trace, z)
    for value in rows.candidates():
        try:
            return _gate(rows, value, linear)
        except (Unfit, polynomials.TooLargeError):
            continue
    return None


class _Sums:
    """What is added to each element of z, wherever it is read: always the same."""

    def __init__(self, rows: GateRows, size: int):
        self.z = ArrayFactor(rows.z, 0)
        self.size = size
        self.skip: ArrayFactor | None = None
        self.columns = np.full(size, -2)  # -2: not known yet, -1: nothing is added

    def elements(self, terms: dict, count: int, scale=None) -> np.ndarray:
        """Return of which elements of z the elements of a row are made, which may be scaled.

        Args:
          terms: by one factor, `z` or the skip.
        Raises:
          Unfit: they are made of something else.
        """
        others = [name for name in terms if name != self.z]
        if self.z not in terms or len(others) > 1:
            raise Unfit("more than a skip is added before the gate")
        indices = {}
        for name, t in terms.items():
            index = np.full(count, -1)
            expected = np.ones(len(t.place)) if scale is None else scale[t.place]
            if (np.abs(t.scale / expected - 1) > ROUNDING).any():
                raise Unfit("what is added before the gate is scaled")
            if len(np.unique(t.place)) < len(t.place):
                raise Unfit("elements are added up before the gate")
            index[t.place] = t.index
            indices[name] = index
        own = indices[self.z]
        if scale is None and (own < 0).any():
            raise Unfit("elements of the gate are not those of the Linear")
        read = own >= 0
        added = np.full(count, -1)
        for name in others:
            if (
                self.skip not in (None, name)
                or not isinstance(name, ArrayFactor)
                or name.axis is None
            ):
                raise Unfit("more than a skip is added before the gate")
            self.skip, added = name, indices[name]
        if (added[~read] >= 0).any():
            raise Unfit("rows are added to the gate")
        for element, column in zip(own[read], added[read], strict=True):
            if self.columns[element] not in (-2, column):
                raise Unfit("an element of the Linear is read with a skip and without")
            self.columns[element] = column
        return own


@dataclasses.dataclass
class _Line:
    """What an element of the result is: act(gate) * part, with numbers of elements of z."""

    act: Activation
    part: int
    gate: int | None


def _gate(rows: GateRows, value: int, linear: Linear) -> GateMatch:
    row = rows.of(value, 0)
    sums = _Sums(rows, linear.size_out)
    lines: list[_Line | None] = [None] * row.size
    for act, terms in _by_activation(row).items():
        if act is None:
            own = sums.elements(terms, row.size, np.ones(row.size))
            _put(lines, own, lambda place, element: _Line(IDENTITY, element, None))
            continue
        inner = rows.of(act.value, act.axis)
        of = sums.elements(
            {k[0]: _single(t) for k, t in inner.terms.items() if len(k) == 1}, inner.size
        )
        if any(len(k) != 1 for k in inner.terms):
            raise Unfit("an activation of products")
        _put_activated(lines, act, terms, of, sums)
    if any(line is None for line in lines) or not any(line.act is not IDENTITY for line in lines):
        raise Unfit("no gate")
    gate = Gate(*_tiles(lines, linear))
    _check_whole(gate, linear)
    columns = None if sums.skip is None else np.maximum(sums.columns, -1)
    return GateMatch(gate, sums.skip, columns, value)


def _single(terms: Terms, column: int = 0) -> Terms:
    """Return terms of one of their factors alone, whose `index` is a vector."""
    return Terms(terms.place, terms.scale, terms.index[:, column])


def _by_activation(row: Polynomial) -> dict:
    """Return terms by their activation, None for none, and by the other factor, None for none.

    With an activation and another factor, (its elements, the other's terms).
    """
    by_activation: dict = {}
    for key, terms in row.terms.items():
        acts = [n for n, name in enumerate(key) if isinstance(name, Activated)]
        others = [n for n in range(len(key)) if n not in acts]
        if len(acts) > 1 or len(others) > 1 or not key:
            raise Unfit("products of activations")
        act = key[acts[0]] if acts else None
        other = key[others[0]] if others else None
        column = others[0] if others else acts[0]
        single = _single(terms, column)
        if acts and others:
            single = (terms.index[:, acts[0]], single)
        by_activation.setdefault(act, {})[other] = single
    return by_activation


def _put(lines, elements, make) -> None:
    for place in np.flatnonzero(elements >= 0):
        if lines[place] is not None:
            raise Unfit("parts of a gate are added up")
        lines[place] = make(int(place), int(elements[place]))


def _put_activated(lines, act: Activated, terms: dict, of, sums: _Sums) -> None:
    """Set the lines of those elements that have this activation as a factor."""

    def activation(scale) -> Activation:
        return Activation(act.name, float(scale), activations.parity(act.name))

    alone = terms.pop(None, None)
    if alone is not None:
        elements, scale = np.full(len(lines), -1), np.ones(len(lines))
        elements[alone.place], scale[alone.place] = of[alone.index], alone.scale
        _put(lines, elements, lambda place, element: _Line(activation(scale[place]), element, None))
    if not terms:
        return
    gates, scale = np.full(len(lines), -1), np.ones(len(lines))
    for index, single in terms.values():
        known = gates[single.place]
        if ((known >= 0) & (known != of[index])).any():
            raise Unfit("an element is gated twice")
        gates[single.place], scale[single.place] = of[index], single.scale
    own = sums.elements({name: single for name, (_, single) in terms.items()}, len(lines), scale)
    mean = float(np.mean(scale[gates >= 0]))
    if (np.abs(scale[gates >= 0] / mean - 1) > ROUNDING).any():
        raise Unfit("gates are scaled differently")
    _put(lines, own, lambda place, element: _Line(activation(mean), element, int(gates[place])))


def _tiles(lines: list[_Line], linear: Linear) -> tuple[tuple[Tile, ...], e3nn.Irreps]:
    """Return the tiles of a gate, and the irreps of its result, whose parities are not known."""
    blocks = linear.blocks_out
    block_of = np.concatenate([np.full(b.mul * b.dim, n) for n, b in enumerate(blocks)])
    tiles: list[Tile] = []
    irreps = []
    place = 0
    while place < len(lines):
        line = lines[place]
        number = int(block_of[line.part])
        block = blocks[number]
        channel, component = divmod(line.part - block.offset, block.dim)
        same = [
            (m.act, m.part - n, m.gate) == (line.act, line.part, line.gate)
            for n, m in enumerate(lines[place : place + block.dim])
        ]
        if component or len(same) < block.dim or not all(same):
            raise Unfit("components of an irrep are gated differently")
        if line.gate is None and line.act is not IDENTITY and block.dim > 1:
            raise Unfit("an activation of a vector")
        gate = None if line.gate is None else _channel(line.gate, block_of, blocks)
        part = Part(number, channel, 1)
        last = tiles[-1] if tiles else None
        joined = last and last.act == line.act and _follows(last.part, part)
        if joined and (gate or last.gate):
            joined = gate and last.gate and _follows(last.gate, gate)
        if joined:
            gate_of = last.gate and _longer(last.gate)
            tiles[-1] = Tile(_longer(last.part), last.offset, line.act, gate_of)
            irreps[-1] = (irreps[-1][0] + 1, irreps[-1][1])
        else:
            tiles.append(Tile(part, place, line.act, gate))
            irreps.append((1, e3nn.Irrep(block.dim // 2, 1)))
        place += block.dim
    return tuple(tiles), e3nn.Irreps(irreps)


def _channel(element: int, block_of, blocks) -> Part:
    number = int(block_of[element])
    if blocks[number].dim != 1:
        raise Unfit("a gate that is no scalar")
    return Part(number, element - blocks[number].offset, 1)


def _follows(first: Part, second: Part) -> bool:
    return (first.block, first.first + first.mul) == (second.block, second.first)


def _longer(part: Part) -> Part:
    return dataclasses.replace(part, mul=part.mul + 1)


def _check_whole(gate: Gate, linear: Linear) -> None:
    """Refuse a gate that reads a channel twice, or not at all."""
    parts = [p for t in gate.tiles for p in (t.part, t.gate) if p is not None]
    channels = sorted((p.block, u) for p in parts for u in range(p.first, p.first + p.mul))
    expected = [(n, u) for n, b in enumerate(linear.blocks_out) for u in range(b.mul)]
    if channels != expected:
        raise Unfit("a gate that reads a channel twice, or not at all")
