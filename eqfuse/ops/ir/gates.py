"""What follows a Linear inside a fused op: e3nn's gate, or activation of scalars, as data.

A `Tile` is a part of the pre-activation and what becomes of it: activated, gated, or left as it is.
"""

import dataclasses
from collections.abc import Callable

import e3nn_jax as e3nn

from eqfuse.ops.ir.linears import Linear


@dataclasses.dataclass(frozen=True)
class Activation:
    """f(x) / c, with f known to kernels.

    Attributes:
      name: of f.
      scale: 1 / c, with c so that the result has unit second moment for normal x, or 1.
      parity: 1 if f is even, -1 if it is odd, 0 if it is neither.
    """

    name: str
    scale: float
    parity: int


IDENTITY = Activation("identity", 1.0, -1)

Activations = Callable[[str, int], Activation]
"""Gives the activation of scalars of a parity, as ("act", 1), or of gates, as ("gate_act", -1)."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Some channels of a block: `first` to `first + mul` of the block numbered `block`."""

    block: int
    first: int
    mul: int

    def cut(self, most: int) -> list["Part"]:
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

    def cut(self, dim: int, most: int) -> list["Tile"]:
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


def scalar_activation(linear: Linear, activations: Activations) -> Gate:
    """Return `e3nn.scalar_activation` of the row: scalars activated, the rest as it is."""
    tiles, irreps = [], []
    for n, (block, (mul, ir)) in enumerate(zip(linear.blocks_out, linear.irreps_out, strict=True)):
        act = IDENTITY
        if ir.l == 0:
            act = activations("act", ir.p)
            ir = _activated(ir, act)
        tiles.append(Tile(Part(n, 0, mul), block.offset, act))
        irreps.append((mul, ir))
    return Gate(tuple(tiles), e3nn.Irreps(irreps))


def _activated(ir: e3nn.Irrep, act: Activation) -> e3nn.Irrep:
    p = ir.p if ir.p == 1 else act.parity
    if p == 0:
        raise ValueError(f"activation {act.name} of an odd scalar is neither even nor odd")
    return e3nn.Irrep(0, p)


def gate(linear: Linear, activations: Activations) -> Gate:
    """Return `e3nn.gate` of the row: its last scalars gate other irreps, the first are activated.

    Raises:
      ValueError: fewer scalars than irreps to gate.
    """
    blocks = list(enumerate(linear.irreps_out))
    vectors = [Part(n, 0, mul) for n, (mul, ir) in blocks if ir.l > 0]
    if not vectors:
        return scalar_activation(linear, activations)
    scalars = [Part(n, 0, mul) for n, (mul, ir) in blocks if ir.l == 0]
    extra = sum(p.mul for p in scalars) - sum(p.mul for p in vectors)
    if extra < 0:
        raise ValueError(
            f"a gate needs a scalar for every other irrep, and {linear.irreps_out} has "
            f"{sum(p.mul for p in scalars)} scalars for {sum(p.mul for p in vectors)}"
        )
    activated = _take(scalars, extra)
    pairs = []
    while vectors:
        mul = min(vectors[0].mul, scalars[0].mul)
        pairs += zip(_take(scalars, mul), _take(vectors, mul), strict=True)

    tiles, irreps, offset = [], [], 0
    for part in activated:
        ir = linear.irreps_out[part.block].ir
        act = activations("act", ir.p)
        tiles.append(Tile(part, offset, act))
        irreps.append((part.mul, _activated(ir, act)))
        offset += part.mul
    for gating, part in pairs:
        ir, ir_gate = (linear.irreps_out[p.block].ir for p in (part, gating))
        act = activations("gate_act", ir_gate.p)
        [ir] = _activated(ir_gate, act) * ir
        tiles.append(Tile(part, offset, act, gating))
        irreps.append((part.mul, ir))
        offset += part.mul * ir.dim
    return Gate(tuple(tiles), e3nn.Irreps(irreps))


def _take(parts: list[Part], count: int) -> list[Part]:
    """Take the first `count` channels off a list of parts."""
    taken = []
    while count > 0:
        first = parts.pop(0)
        mul = min(first.mul, count)
        taken.append(Part(first.block, first.first, mul))
        if first.mul > mul:
            parts.insert(0, Part(first.block, first.first + mul, first.mul - mul))
        count -= mul
    return taken
