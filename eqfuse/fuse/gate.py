"""Match the gate behind a Linear: which activations and products of its elements follow.

Gates are those of e3nn-jax's `gate` and `scalar_activation`, and any that is written by hand: of
NequIP behind sums of messages, and of SEGNN in lagrangebench and eqnn-jax behind products of rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.fuse.drafts import monomials
from eqfuse.fuse.polynomials import Polynomial, Unfit
from eqfuse.fuse.row_polynomials import ARITHMETIC, ROWS, ArrayFactor, RowPolynomials
from eqfuse.ops.backends.activations import UnknownActivationError, traced
from eqfuse.ops.ir.functions import FUNCTIONS
from eqfuse.ops.ir.fused import IDENTITY, Activation, Gate, Part, Tile
from eqfuse.ops.ir.linear import Linear
from eqfuse.ops.transforms.trace import FLOATS, Node, Trace, bind

ELEMENTWISE = FUNCTIONS.keys() | {"add_any", "select_n", "clamp"}
"""Primitives that activations are made of, where one operand is an array and others numbers."""


def rounding(dtype) -> float:
    """Return by how much a factor of one may be off: e3nn multiplies by a coefficient and back."""
    return min(1e-6, 16 * float(jnp.finfo(dtype).eps))


def gates_behind(trace: Trace, z: int, linear: Linear) -> list[tuple[Gate, tuple, int]]:
    """Return the gate of z or, as in NequIP, of z and a skip, the skip, and the value it gives.

    The list is empty if there is none, and so is the skip.
    """
    befores: list[tuple] = [(z, ())]
    for node in trace.nodes:
        if node.name == "add" and z in node.inputs and len(set(node.inputs)) == 2:
            befores.append((node.outputs[0], tuple(set(node.inputs) - {z})))
    for before, skip in reversed(befores):
        if any(trace.avals[v] != trace.avals[z] for v in (before, *skip)):
            continue
        rows = _GateRows(trace, before)
        for value in rows.candidates():
            try:
                return [(_gate(rows, value, linear), skip, value)]
            except (Unfit, UnknownActivationError):
                continue
    return []


class _GateRows(RowPolynomials):
    """Rows of what follows a pre-activation z, [rows, size], with activations as factors."""

    def __init__(self, trace: Trace, z: int):
        self.z, count, behind = z, trace.avals[z].shape[0], {z}
        self.roots: dict[int, int] = {}  # of values: the array that they are made of by element
        self.activations, curved = set(), set()
        for node in trace.nodes:
            if behind.isdisjoint(node.inputs):
                continue
            avals = ((v, trace.avals[v]) for v in node.outputs)
            behind.update(v for v, aval in avals if count in getattr(aval, "shape", ()))
            arrays = [v for v in node.inputs if trace.uniform(v) is None]
            roots = {self.roots.get(v, v) for v in arrays} & behind
            shapes = {trace.avals[v].shape for v in (*arrays, *node.outputs)}
            if node.name not in ELEMENTWISE or len(roots) != 1 or len(shapes) != 1:
                continue
            [root], [value] = roots, node.outputs
            if trace.avals[root].dtype.name not in FLOATS or not behind.issuperset(arrays):
                continue
            self.roots[value] = root
            bends = node.name not in ARITHMETIC or (node.name == "div" and node.inputs[1] in arrays)
            if bends or not curved.isdisjoint(arrays):
                curved.add(value)
                if bends or len(arrays) > 1 or node.name not in ("mul", "div", "neg"):
                    self.activations.add(value)  # of a scaled one, polynomials follow the scale
        super().__init__(trace)

    def starts(self, node: Node) -> bool:
        return any(v == self.z or v in self.activations for v in node.outputs)

    def _follow(self, value: int, axes: tuple[int, ...] | None) -> Polynomial:
        is_leaf = value == self.z or value in self.activations
        return self._leaf(value, axes) if is_leaf else super()._follow(value, axes)

    def candidates(self) -> list[int]:
        """Return the candidates for the result of a gate, the last first."""
        own = self.trace.avals[self.z]
        avals = {v: self.trace.avals[v] for v in self._multiplied if v != self.z}
        rows = (v for v, a in avals.items() if a.ndim == 2 and a.shape[0] == own.shape[0])
        return sorted((v for v in rows if avals[v].dtype == own.dtype), reverse=True)

    def function(self, value: int) -> Callable:
        """Return the function of a number that an activation is of each element of its root."""
        root, made, numbers, todo = self.roots[value], set(), {}, [value]
        while todo:
            v = todo.pop()
            if (number := self.trace.uniform(v)) is not None:
                numbers[v] = number
            elif v != root:
                made.add(self.trace.producer[v])
                todo += self.trace.producer[v].inputs
        nodes = [node for node in self.trace.nodes if node in made]

        def function(x):
            known = {root: x}
            for v, n in numbers.items():
                is_real = jnp.issubdtype(n.dtype, jnp.floating)
                known[v] = jnp.asarray(n, x.dtype if is_real else n.dtype)
            for node in nodes:
                [known[node.outputs[0]]] = bind(node, map(known.get, node.inputs))
            return known[value]

        return function


def _gate(rows: _GateRows, value: int, linear: Linear) -> Gate:
    """Return the gate that a value is, by what each of its elements is made of, or raise Unfit."""
    most = rounding(rows.trace.avals[rows.z].dtype)
    own = (ArrayFactor(rows.z, ROWS),)

    def elements(row: Polynomial) -> list[tuple]:
        """Return (factors, (scale, elements of them)) of each element of a row."""
        found: dict[int, tuple] = {}
        for key, (scale, index) in monomials(row).items():
            own = np.flatnonzero(scale)
            if not found.keys().isdisjoint(own):
                raise Unfit("no gate")
            found |= {n: (key, (scale[n], tuple(index[n]))) for n in own}
        if len(found) < row.size:
            raise Unfit("no gate")
        return [found[n] for n in range(row.size)]

    @functools.cache
    def scalars(act: ArrayFactor) -> list[int]:
        """Return the elements of z that are activated."""
        found = elements(rows.of(rows.roots[act.value], act.axes))
        if any(key != own or abs(scale - 1) > most for key, (scale, _) in found):
            raise Unfit("no gate")
        return [index[0] for _, (_, index) in found]

    lines: list[tuple] = []  # (value of the activation, element of z, that of the gate)
    scales: dict[int | None, list[float]] = {}
    for key, (scale, index) in elements(rows.of(value)):
        acts = [n for n, f in enumerate(key) if f.value in rows.activations]
        act, gating = None, None
        if acts:
            act, gating = key[acts[0]].value, scalars(key[acts[0]])[index[acts[0]]]
            key, index = (of[: acts[0]] + of[acts[0] + 1 :] for of in (key, index))
        if key not in (own, ()):
            raise Unfit("no gate")
        lines.append((act, index[0], gating) if key else (act, gating, None))
        scales.setdefault(act, []).append(scale)
    activations = {None: IDENTITY}
    dtype = "float64" if jax.config.jax_enable_x64 else "float32"
    for act, of_act in scales.items():
        mean = 1.0 if act is None else float(np.mean(of_act))
        if (np.abs(np.array(of_act) / mean - 1) > most).any():
            raise Unfit("no gate")
        if act is not None:
            function = rows.function(act)
            activations[act] = Activation(traced(function, dtype), mean, 0, function)
    tiles = _tiles([(activations[act], part, gate) for act, part, gate in lines], linear)
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
        start += dim
        if tiles and tiles[-1].act == act:
            last = [tiles[-1].part, tiles[-1].gate]
            longer = [p and dataclasses.replace(p, mul=p.mul + 1) for p in last]
            ends = [p and (p.block, p.first + p.mul) for p in last]
            if ends == [p and (p.block, p.first) for p in (tile.part, tile.gate)]:
                tiles[-1] = dataclasses.replace(tiles[-1], part=longer[0], gate=longer[1])
                continue
        tiles.append(tile)
    return tuple(tiles)


def _check(tiles: tuple[Tile, ...], linear: Linear) -> None:
    """Refuse what activates nothing, and what reads a channel twice, or not at all."""
    parts = [p for t in tiles for p in (t.part, t.gate) if p is not None]
    channels = sorted((p.block, u) for p in parts for u in range(p.first, p.first + p.mul))
    expected = [(n, u) for n, b in enumerate(linear.blocks_out) for u in range(b.mul)]
    if channels != expected or all(t.act == IDENTITY for t in tiles):
        raise Unfit("no gate")
