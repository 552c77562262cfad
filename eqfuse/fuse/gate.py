"""Match the gate behind a Linear: which activations and products of its elements follow."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import NamedTuple

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from eqfuse.fuse.drafts import monomials
from eqfuse.fuse.polynomials import Polynomial, Unfit, variable
from eqfuse.fuse.rows import ROWS, ArrayFactor, RowPolynomials, row_shape
from eqfuse.ops.backends import xla
from eqfuse.ops.backends.activations import scaled
from eqfuse.ops.ir.fused import IDENTITY, Gate, Part, Tile
from eqfuse.ops.ir.linear import Linear
from eqfuse.ops.transforms.trace import FLOATS, Trace


def rounding(dtype) -> float:
    """Return by how much a factor of one may be off: e3nn multiplies by a coefficient and back."""
    return min(1e-6, 16 * float(jnp.finfo(dtype).eps))


class GateMatch(NamedTuple):
    """A gate, the value of the trace that is added before it, if one is, and the one it gives."""

    gate: Gate
    skip: int | None
    value: int


def gate_behind(trace: Trace, z: int, linear: Linear) -> GateMatch | None:
    """Return the gate of z or, as in NequIP, of z and a skip; None if there is none."""
    befores = [(z, None)]
    for node in trace.nodes:
        if node.name == "add" and z in node.inputs and len(set(node.inputs)) == 2:
            [skip] = set(node.inputs) - {z}
            befores.append((node.outputs[0], skip))
    for before, skip in reversed(befores):
        if any(trace.avals[v] != trace.avals[z] for v in (before, z if skip is None else skip)):
            continue
        rows = _GateRows(trace, before)
        for value in rows.candidates():
            try:
                return GateMatch(_gate(rows, value, linear), skip, value)
            except Unfit:
                continue
    return None


@functools.lru_cache(maxsize=256)
def _template(name: str, shape: tuple[int, ...], dtype) -> ClosedJaxpr:
    return jax.make_jaxpr(xla.FUNCTIONS[name])(jax.ShapeDtypeStruct(shape, dtype))


@dataclasses.dataclass(frozen=True)
class ActivationFactor:
    """A function of the elements of an array, as a factor of polynomials."""

    name: str
    value: int
    axes: tuple[int, ...]


class _GateRows(RowPolynomials):
    """Rows of what follows a pre-activation z, [rows, size], with activations as factors."""

    def __init__(self, trace: Trace, z: int):
        self.z, self._activations = z, {}
        count, behind = trace.avals[z].shape[0], {z}
        for node in trace.nodes:
            if not behind.isdisjoint(node.inputs):
                avals = ((v, trace.avals[v]) for v in node.outputs)
                behind.update(v for v, aval in avals if count in getattr(aval, "shape", ()))
        for of, name in itertools.product(sorted(behind), xla.FUNCTIONS):
            aval = trace.avals[of]
            if aval.dtype.name in FLOATS:
                template = _template(name, tuple(aval.shape), aval.dtype)
                for value in trace.found(template, [of]) or ():
                    self._activations.setdefault(value, (name, of))
        super().__init__(trace)

    def starts(self, number: int) -> bool:
        outputs = self.trace.nodes[number].outputs
        return any(v == self.z or v in self._activations for v in outputs)

    def _follow(self, value: int, axes: tuple[int, ...] | None) -> Polynomial:
        if value not in self._activations:
            return super()._follow(value, axes) if value != self.z else self._leaf(value, axes)
        name, of = self._activations[value]
        row = row_shape(self.trace.avals[value].shape, axes)
        return variable(ActivationFactor(name, of, axes), row)

    def candidates(self) -> list[int]:
        """Return the candidates for the result of a gate, the last first."""
        count = self.trace.avals[self.z].shape[0]
        own = self.trace.avals[self.z].dtype
        avals = {v: self.trace.avals[v] for v in self._multiplied if v != self.z}
        rows = (v for v, a in avals.items() if a.ndim == 2 and a.shape[0] == count)
        return sorted((v for v in rows if avals[v].dtype == own), reverse=True)


def _by_element(row: Polynomial) -> list[dict]:
    """Return (scale, elements) of the terms of each element of a row, by their factors."""
    by_key = monomials(row)
    return [{k: m[n] for k, m in by_key.items() if m[n]} for n in range(row.size)]


def _gate(rows: _GateRows, value: int, linear: Linear) -> Gate:
    """Return the gate that a value is, by what each of its elements is made of, or raise Unfit."""
    row, most = rows.of(value), rounding(rows.trace.avals[rows.z].dtype)
    own = (ArrayFactor(rows.z, ROWS),)

    def element(terms: dict, scale: float = 1.0) -> int:
        """Return the element of z that is all of these terms."""
        if list(terms) != [own] or abs(terms[own][0] / scale - 1) > most:
            raise Unfit("no gate")
        return terms[own][1][0]

    @functools.cache
    def activated(act: ActivationFactor) -> list[int]:
        return [element(terms) for terms in _by_element(rows.of(act.value, act.axes))]

    lines, scales = [], {}  # lines: (activation, element of z, that of the gate)
    for terms in _by_element(row):
        factors = [zip(key, index, strict=True) for key, (_, index) in terms.items()]
        acts = {f for of_term in factors for f in of_term if isinstance(f[0], ActivationFactor)}
        if not acts:
            lines.append((IDENTITY, element(terms), None))
            continue
        if len(acts) > 1:
            raise Unfit("no gate")
        [(act, number)] = acts
        rest = {}
        for key, (scale, index) in terms.items():
            kept = [n for n, name in enumerate(key) if name != act]
            if len(kept) != len(key) - 1:
                raise Unfit("no gate")
            rest[tuple(key[n] for n in kept)] = scale, tuple(index[n] for n in kept)
        scale, gating = next(iter(rest.values()))[0], activated(act)[number]
        if list(rest) == [()]:
            lines.append((scaled(xla.FUNCTIONS[act.name], scale), gating, None))
        else:
            scales.setdefault(act, []).append(scale)
            lines.append((act, element(rest, scale), gating))
    of_act = {}
    for act, values in scales.items():
        mean = float(np.mean(values))
        if (np.abs(np.array(values) / mean - 1) > most).any():
            raise Unfit("no gate")
        of_act[act] = scaled(xla.FUNCTIONS[act.name], mean)
    tiles = _tiles([(of_act.get(act, act), part, gate) for act, part, gate in lines], linear)
    _check(tiles, linear)
    irreps = e3nn.Irreps(
        [(t.part.mul, (linear.blocks_out[t.part.block].dim // 2, 1)) for t in tiles]
    )
    return Gate(tiles, irreps)


def _tiles(lines: list[tuple], linear: Linear) -> tuple[Tile, ...]:
    """Return the tiles of a gate, of as many channels each as are treated alike."""
    blocks = linear.blocks_out
    places = [(n, u, k) for n, b in enumerate(blocks) for u in range(b.mul) for k in range(b.dim)]
    tiles: list[Tile] = []
    start = 0
    while start < len(lines):
        act, part, gate = lines[start]
        block, channel, component = places[part]
        dim = blocks[block].dim
        gating = None if gate is None else Part(*places[gate][:2], 1)
        is_whole = lines[start : start + dim] == [(act, part + k, gate) for k in range(dim)]
        is_scalar = dim == 1 or act == IDENTITY if gating is None else blocks[gating.block].dim == 1
        if component or not is_whole or not is_scalar:
            raise Unfit("no gate")
        tile = Tile(Part(block, channel, 1), start, act, gating)
        if tiles and _follows(tiles[-1], tile):
            parts = {"part": tiles[-1].part, "gate": tiles[-1].gate}
            longer = {n: p and dataclasses.replace(p, mul=p.mul + 1) for n, p in parts.items()}
            tiles[-1] = dataclasses.replace(tiles[-1], **longer)
        else:
            tiles.append(tile)
        start += dim
    return tuple(tiles)


def _follows(first: Tile, second: Tile) -> bool:
    before = [p and (p.block, p.first + p.mul) for p in (first.part, first.gate)]
    after = [p and (p.block, p.first) for p in (second.part, second.gate)]
    return first.act == second.act and before == after


def _check(tiles: tuple[Tile, ...], linear: Linear) -> None:
    """Refuse what activates nothing, and what reads a channel twice, or not at all."""
    parts = [p for t in tiles for p in (t.part, t.gate) if p is not None]
    channels = sorted((p.block, u) for p in parts for u in range(p.first, p.first + p.mul))
    expected = [(n, u) for n, b in enumerate(linear.blocks_out) for u in range(b.mul)]
    if channels != expected or all(t.act == IDENTITY for t in tiles):
        raise Unfit("no gate")
