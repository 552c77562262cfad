"""A gate, e3nn's, or activation of scalars, and the op of product, Linear and gate, as data.

    z = Linear(product(x, y, w)) + skip,    out = gate(z)

A `Tile` is a part of the pre-activation and what becomes of it: activated, gated, or left as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import e3nn_jax as e3nn

from eqfuse.ops.ir.form import INDEX_ARRAYS, Form, Index, Operand, Path, Segment, SegmentRef
from eqfuse.ops.ir.linear import Linear


@dataclasses.dataclass(frozen=True)
class Steps:
    """A function of a number x, its slope and its curvature, as steps: values `v0`, `v1`, ...

    A step is one of `functions.FUNCTIONS` and its operands: "x", values of steps before, or numbers
    as Python writes them.
    """

    results: tuple[str, ...]
    steps: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def evaluate(self, orders, x, number: Callable, apply: Callable) -> list:
        """Return the derivatives of these orders at x.

        Only the steps that they need are computed, each once, by `apply(function, operands)`;
        `number` makes a constant.
        """
        values = {"x": x}

        def value(name: str):
            if name not in values:
                if not name.startswith("v"):
                    return number(float(name))
                function, operands = self.steps[int(name[1:])]
                values[name] = apply(function, [value(o) for o in operands])
            return values[name]

        return [value(self.results[order]) for order in orders]


@dataclasses.dataclass(frozen=True)
class Activation:
    """f(x) / c. Two are equal if their steps are."""

    steps: Steps
    scale: float  # 1 / c, with c so that the result has unit second moment for normal x, or 1
    parity: int  # 1 if f is even, -1 if it is odd, 0 if it is neither
    call: Callable = dataclasses.field(compare=False)  # f, of arrays of JAX


IDENTITY = Activation(Steps(("x", "1.0", "0.0")), 1.0, -1, lambda x: x)

Activations = Callable[[str, int], Activation]
"""Gives the activation of scalars of a parity, as ("act", 1), or of gates, as ("gate_act", -1)."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Some channels of a block: `first` to `first + mul` of the block numbered `block`."""

    block: int
    first: int
    mul: int

    def cut(self, most: int) -> list[Part]:
        """Return parts of at most so many channels."""
        stop = self.first + self.mul
        starts = range(self.first, stop, most)
        return [Part(self.block, start, min(most, stop - start)) for start in starts]


@dataclasses.dataclass(frozen=True)
class Tile:
    """A part of the pre-activation, and where act(part) or act(gate) * part is in the output."""

    part: Part
    offset: int
    act: Activation
    gate: Part | None = None

    def cut(self, dim: int, most: int) -> list[Tile]:
        """Return tiles of at most so many channels, of `dim` components."""
        parts = self.part.cut(most)
        gates = self.gate.cut(most) if self.gate else [None] * len(parts)
        return [
            Tile(part, self.offset + (part.first - self.part.first) * dim, self.act, gate)
            for part, gate in zip(parts, gates, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Gate:
    """What becomes of each tile of a pre-activation: e3nn's gate, scalar activation, or nothing."""

    tiles: tuple[Tile, ...]
    irreps_out: e3nn.Irreps


def gate(z: e3nn.Irreps, activations: Activations, gated: bool = True) -> Gate:
    """Return `e3nn.gate` of the row: the last scalars gate other irreps, the rest is activated.

    Where it is not `gated`, `e3nn.scalar_activation`: what is no scalar stays as it is.
    """
    blocks = [Part(n, 0, mul) for n, (mul, _) in enumerate(z)]
    vectors = [p for p in blocks if z[p.block].ir.l > 0]
    lines: list[tuple[Part, Part | None]] = [(p, None) for p in blocks]
    if gated and vectors:
        scalars = [p for p in blocks if z[p.block].ir.l == 0]
        counts = [sum(p.mul for p in parts) for parts in (scalars, vectors)]
        if counts[0] < counts[1]:
            raise ValueError(
                f"a gate needs a scalar for every other irrep, and {z} has {counts[0]} scalars for "
                f"{counts[1]}"
            )
        lines = [(p, None) for p in _take(scalars, counts[0] - counts[1])]
        while vectors:
            mul = min(vectors[0].mul, scalars[0].mul)
            lines += zip(_take(vectors, mul), _take(scalars, mul), strict=True)
    tiles, irreps, offset = [], [], 0
    for part, gating in lines:
        ir, act = z[part.block].ir, IDENTITY
        if gating is not None:
            ir_gate = z[gating.block].ir
            act = activations("gate_act", ir_gate.p)
            [ir] = _activated(ir_gate, act) * ir
        elif ir.l == 0:
            act = activations("act", ir.p)
            ir = _activated(ir, act)
        tiles.append(Tile(part, offset, act, gating))
        irreps.append((part.mul, ir))
        offset += part.mul * ir.dim
    return Gate(tuple(tiles), e3nn.Irreps(irreps))


def _activated(ir: e3nn.Irrep, act: Activation) -> e3nn.Irrep:
    p = ir.p if ir.p == 1 else act.parity
    if p == 0:
        raise ValueError(f"activation {act.call!r} of an odd scalar is neither even nor odd")
    return e3nn.Irrep(0, p)


def _take(parts: list[Part], count: int) -> list[Part]:
    """Take the first `count` channels off a list of parts."""
    taken = []
    while count > 0:
        first = parts.pop(0)
        own, *rest = first.cut(min(first.mul, count))
        taken.append(own)
        if rest:
            parts.insert(0, Part(first.block, rest[0].first, first.mul - own.mul))
        count -= own.mul
    return taken


@dataclasses.dataclass(frozen=True)
class Activated:
    """Activations of some scalars of rows [rows, size], and their derivatives of some orders.

    Each result is [rows, scalars], the parts side by side.
    """

    rows: Operand
    parts: tuple[tuple[Segment, Activation], ...]
    orders: tuple[int, ...] = (0,)  # of each result: 0 activations, 1 slopes

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return (self.rows,)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return (Operand("a", self.size, (), True),) * len(self.orders)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.inputs + self.outputs

    @property
    def size(self) -> int:
        return sum(scalars.mul for scalars, _ in self.parts)

    def of_orders(self, orders) -> Activated:
        return dataclasses.replace(self, orders=tuple(orders))

    def places(self) -> list[Segment]:
        """Return where each part is in a result."""
        muls = [scalars.mul for scalars, _ in self.parts]
        offsets = itertools.accumulate(muls, initial=0)
        return [Segment.mul_ir(*place, 1) for place in zip(offsets, muls, strict=False)]


@functools.lru_cache(maxsize=256)
def chain_rule(activated: Activated, count: int) -> Form:
    """Return the form of tangents of `count` results: (their slopes, a tangent of the rows)."""
    places = activated.places()
    slopes = [operand(f"d{n}", activated.size, places) for n in range(count)]
    tangent = operand("t", activated.rows.size, [scalars for scalars, _ in activated.parts])
    outputs = [operand(f"t_a{n}", activated.size, places) for n in range(count)]
    paths = [
        path_between((SegmentRef(n, s), SegmentRef(count, s)), SegmentRef(n, s), (1, 1))
        for n in range(count)
        for s in range(len(activated.parts))
    ]
    return Form((*slopes, tangent), tuple(outputs), tuple(paths))


@functools.lru_cache(maxsize=256)
def sum_form(size: int, blocks: tuple[Segment, ...] = ()) -> Form:
    """Return the sum of two arrays of rows of `size`, of these blocks where a Linear has them."""
    places = blocks or [Segment.mul_ir(0, size, 1)]
    inputs = tuple(operand(name, size, places) for name in "xy")
    paths = [
        path_between((SegmentRef(n, s),), SegmentRef(0, s), (place.dim,))
        for n in range(2)
        for s, place in enumerate(places)
    ]
    return Form(inputs, (operand("sum", size, places),), tuple(paths))


def operand(name: str, size: int, segments) -> Operand:
    return Operand(name, size, tuple(segments), True)


def path_between(factors, output: SegmentRef, dims: tuple[int, ...]) -> Path:
    """Return the product of factors of one component or of `dim`, component by component."""
    dim = max(dims)
    terms = ((*(min(k, d - 1) for d in dims), k) for k in range(dim))
    return Path(tuple(factors), output, tuple((components, 1.0) for components in terms))


@dataclasses.dataclass(frozen=True)
class GateForms:
    """A gate as activations and forms."""

    activated: Activated  # of the rows of z
    value: Form  # (activations, z) -> out
    tangent: Form  # (slopes, activations, z, tangent of z) -> tangent of out


@functools.lru_cache(maxsize=256)
def forms_of(gate: Gate, linear: Linear) -> GateForms:
    """Return the activations and forms of a gate that follows a Linear, of one array."""
    [rows] = linear.linear_form.outputs
    parts, z_places, out_places = [], [], []
    values, tangents = [], []  # paths
    for tile in gate.tiles:
        z, own = len(z_places), linear.place(tile.part)
        z_places.append(own)
        out, dim = SegmentRef(0, len(out_places)), own.dim
        out_places.append(Segment.mul_ir(tile.offset, own.mul, dim))
        if tile.gate is None and tile.act == IDENTITY:
            values.append(path_between((SegmentRef(1, z),), out, (dim,)))
            tangents.append(path_between((SegmentRef(3, z),), out, (dim,)))
            continue
        a, scalars = len(parts), linear.place(tile.gate or tile.part)
        parts.append((scalars, tile.act))
        if tile.gate is None:
            values.append(path_between((SegmentRef(0, a),), out, (1,)))
            tangents.append(path_between((SegmentRef(0, a), SegmentRef(3, z)), out, (1, 1)))
            continue
        gating = len(z_places)
        z_places.append(scalars)
        values.append(path_between((SegmentRef(0, a), SegmentRef(1, z)), out, (1, dim)))
        slopes = SegmentRef(0, a), SegmentRef(2, z), SegmentRef(3, gating)
        tangents.append(path_between(slopes, out, (1, dim, 1)))
        tangents.append(path_between((SegmentRef(1, a), SegmentRef(3, z)), out, (1, dim)))
    activated = Activated(rows, tuple(parts))

    def named(name: str) -> Operand:
        if name in ("z", "t_z"):
            return operand(name, rows.size, z_places)
        return operand(name, activated.size, activated.places())

    outputs = (operand("out", gate.irreps_out.dim, out_places),)
    value = Form(tuple(map(named, "az")), outputs, tuple(values))
    inputs = tuple(map(named, ("d", "a", "z", "t_z")))
    return GateForms(activated, value, Form(inputs, outputs, tuple(tangents)))


@dataclasses.dataclass(frozen=True)
class Fused:
    """A product, a Linear and a gate as one op.

    Its operands are the form's inputs, the Linear's parameters and, if there is one, the skip.
    """

    form: Form  # the product; its one output is what the Linear reads
    linear: Linear
    gate: Gate | None
    skip: bool  # whether a row [rows, linear.size_out] is added before the gate

    @classmethod
    def build(cls, form: Form, linear: Linear, gate: Gate | None, skip: bool) -> Fused:
        """Return the op, without those paths of the product that the Linear does not read."""
        [out] = form.outputs
        read = [b for n, b in enumerate(linear.blocks_in) if linear.reads(n)]
        paths = tuple(
            p for p in form.paths if any(b.holds(out.segments[p.output.segment]) for b in read)
        )
        return cls(dataclasses.replace(form, paths=paths), linear, gate, skip)

    @property
    def summed(self) -> bool:
        """Return whether the product is summed over the edges of a node."""
        return self.form.outputs[0].index is Index.RECEIVER

    @property
    def num_floats(self) -> int:
        return len(self.form.inputs) + len(self.linear.parameters) + self.skip

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the rows of the outputs."""
        gated = () if self.gate is None else (self.gate.irreps_out.dim,)
        return (*gated, self.linear.size_out)

    @property
    def outputs(self) -> list[str]:
        return ["z"] if self.gate is None else ["out", "z"]

    def cotangents(self, given) -> list[str]:
        """Return names of the cotangents of the outputs that are given, in their order."""
        return [f"ct_{name}" for name in itertools.compress(self.outputs, given)]

    def operands(self, floats):
        """Return (inputs of the form, parameters of the Linear, skip or None)."""
        n = len(self.form.inputs)
        m = n + len(self.linear.parameters)
        return list(floats[:n]), list(floats[n:m]), (floats[m] if self.skip else None)

    def named(self, floats, integers) -> dict:
        """Return the operands by the names that kernels use."""
        inputs, parameters, skip = self.operands(floats)
        named = dict(zip([o.name for o in self.form.inputs], inputs, strict=True))
        named |= {f"p{n}": p for n, p in enumerate(parameters)}
        return named | {"skip": skip} | dict(zip(INDEX_ARRAYS, integers, strict=False))
