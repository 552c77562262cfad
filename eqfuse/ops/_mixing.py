"""What follows a product inside a fused op: e3nn's Linear, and e3nn's gate, as data.

`Mixing` is a Linear from the product's output to a row of blocks; `Tile` is a part of that row and
what becomes of it: activated, gated, or left as it is. Pure descriptions, and their evaluation in
jax.numpy, which is the definition that the kernels are checked against.
"""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops import _activation
from eqfuse.ops._activation import Activation
from eqfuse.ops._build import Product


@dataclasses.dataclass(frozen=True)
class Matrix:
    """One matrix of a Linear, [mul_in, mul_out], as it lies in the packed weights.

    out[v, k] += scale * sum over u:  weights[start + u * mul_out + v] * in[u, k]
    """

    start: int
    name: str
    block_in: int
    block_out: int
    scale: float
    std: float


@dataclasses.dataclass(frozen=True)
class Block:
    """`mul` channels of `dim` components at `offset` of a row, mul_ir."""

    offset: int
    mul: int
    dim: int


@dataclasses.dataclass(frozen=True)
class Mixing:
    """A Linear. `biases` are (start, name, block_out) for blocks of scalars that have one."""

    blocks_in: tuple[Block, ...]
    blocks_out: tuple[Block, ...]
    matrices: tuple[Matrix, ...]
    biases: tuple[tuple[int, str, int], ...]
    num_weights: int
    irreps_out: e3nn.Irreps

    @property
    def size_out(self) -> int:
        return self.irreps_out.dim

    def shapes(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """Shape and standard deviation of each parameter, by e3nn's name, in packed order."""
        shapes = {
            m.name: ((self.blocks_in[m.block_in].mul, self.blocks_out[m.block_out].mul), m.std)
            for m in self.matrices
        }
        return shapes | {name: ((self.blocks_out[b].mul,), 0.0) for _, name, b in self.biases}


def _blocks(irreps) -> tuple[Block, ...]:
    offsets = np.cumsum([0] + [mul_ir.dim for mul_ir in irreps])
    return tuple(Block(int(o), mul, ir.dim) for o, (mul, ir) in zip(offsets, irreps, strict=False))


@functools.cache
def linear(
    irreps_in: e3nn.Irreps,
    zero_flags: tuple[bool, ...],
    irreps_out: e3nn.Irreps,
    force_irreps_out: bool,
    biases: bool,
    path_normalization,
    gradient_normalization,
) -> Mixing:
    """The Linear that `e3nn.flax.Linear` applies to a regrouped input, with its parameter names."""
    kept = [m for m, zero in zip(irreps_in, zero_flags, strict=True) if not zero]
    merged = e3nn.Irreps(kept).regroup()
    irreps_out = irreps_out.simplify()
    if not force_irreps_out:
        irreps_out = irreps_out.filter(keep=merged)
    functional = e3nn.FunctionalLinear(
        merged,
        irreps_out,
        biases=biases,
        path_normalization=path_normalization,
        gradient_normalization=gradient_normalization,
    )
    # where the merged blocks lie in the input, whose zero blocks take up room as well
    offsets = {}
    for (_, ir), block in zip(irreps_in, _blocks(irreps_in), strict=True):
        offsets.setdefault(ir, block.offset)
    matrices, with_bias, start = [], [], 0
    for i in functional.instructions:
        out = irreps_out[i.i_out]
        if i.i_in < 0:
            with_bias.append((start, f"b[{i.i_out}] {out}", i.i_out))
        else:
            name = f"w[{i.i_in},{i.i_out}] {merged[i.i_in]},{out}"
            scale, std = float(i.path_weight), float(i.weight_std)
            matrices.append(Matrix(start, name, i.i_in, i.i_out, scale, std))
        start += int(np.prod(i.path_shape))
    blocks_in = tuple(Block(offsets[ir], mul, ir.dim) for mul, ir in merged)
    return Mixing(
        blocks_in, _blocks(irreps_out), tuple(matrices), tuple(with_bias), start, irreps_out
    )


def for_product(product: Product, irreps_out, **options) -> Mixing:
    """The Linear of a product's output, whose blocks of one irrep lie side by side.

    Raises:
      ValueError: a product that was not regrouped.
    """
    irs = [ir for _, ir in product.irreps_out]
    if len(set(irs)) < len(irs):
        raise ValueError("a Linear is fused with products that are regrouped only")
    return linear(product.irreps_out, product.zero_flags, e3nn.Irreps(irreps_out), **options)


def mix(mixing: Mixing, x, weights, index=None):
    """The Linear of rows x [rows, size_in] by packed weights [num_weights], or [n, num_weights].

    Args:
      index: [rows] int32, which of n sets of weights a row takes.
    Returns:
      [rows, mixing.size_out].
    """
    parts = [None] * len(mixing.blocks_out)
    for m in mixing.matrices:
        block, out = mixing.blocks_in[m.block_in], mixing.blocks_out[m.block_out]
        w = weights[..., m.start : m.start + block.mul * out.mul]
        w = m.scale * w.reshape(*w.shape[:-1], block.mul, out.mul)
        value = x[:, block.offset : block.offset + block.mul * block.dim]
        value = value.reshape(-1, block.mul, block.dim)
        if index is None:
            value = jnp.einsum("zui,uv->zvi", value, w, precision=jax.lax.Precision.HIGHEST)
        else:
            value = jnp.einsum("zui,zuv->zvi", value, w[index], precision=jax.lax.Precision.HIGHEST)
        _add(parts, m.block_out, value)
    for start, _, b in mixing.biases:
        bias = weights[..., start : start + mixing.blocks_out[b].mul]
        bias = (
            jnp.broadcast_to(bias, (x.shape[0], bias.shape[-1])) if index is None else bias[index]
        )
        _add(parts, b, bias[:, :, None])
    rows = [
        jnp.zeros((x.shape[0], b.mul * b.dim), x.dtype) if p is None else p.reshape(x.shape[0], -1)
        for p, b in zip(parts, mixing.blocks_out, strict=True)
    ]
    return jnp.concatenate([*rows, jnp.zeros((x.shape[0], 0), x.dtype)], axis=1)


def _add(parts, b, value):
    parts[b] = value if parts[b] is None else parts[b] + value


@dataclasses.dataclass(frozen=True)
class Part:
    """Some channels of a block: `first` to `first + mul` of the block numbered `block`."""

    block: int
    first: int
    mul: int


@dataclasses.dataclass(frozen=True)
class Tile:
    """A part of the mixed row, and where it goes in the output: act(part), or act(gate) * part."""

    part: Part
    offset: int
    act: Activation
    gate: Part | None = None


@dataclasses.dataclass(frozen=True)
class Gate:
    """e3nn's gate (or scalar activation, or nothing) of a mixed row: what each tile becomes."""

    tiles: tuple[Tile, ...]
    irreps_out: e3nn.Irreps


IDENTITY = Activation("identity", 1.0)


def no_gate(mixing: Mixing) -> Gate:
    """The row as it is."""
    tiles = tuple(
        Tile(Part(n, 0, b.mul), b.offset, IDENTITY) for n, b in enumerate(mixing.blocks_out)
    )
    return Gate(tiles, mixing.irreps_out)


def scalar_activation(mixing: Mixing, even_act, odd_act, normalize_act: bool) -> Gate:
    """`e3nn.scalar_activation` of the row: scalars activated, the rest as it is."""
    tiles, irreps = [], []
    for n, (block, (mul, ir)) in enumerate(zip(mixing.blocks_out, mixing.irreps_out, strict=True)):
        act = IDENTITY
        if ir.l == 0:
            act = _activation.activation({1: even_act, -1: odd_act}[ir.p], normalize_act)
            ir = _activated(ir, act)
        tiles.append(Tile(Part(n, 0, mul), block.offset, act))
        irreps.append((mul, ir))
    return Gate(tuple(tiles), e3nn.Irreps(irreps))


def _activated(ir: e3nn.Irrep, act: Activation) -> e3nn.Irrep:
    p = ir.p if ir.p == 1 else _activation.parity(act.name)
    if p == 0:
        raise ValueError(f"activation {act.name} of an odd scalar is neither even nor odd")
    return e3nn.Irrep(0, p)


def gate(
    mixing: Mixing, even_act, odd_act, even_gate_act, odd_gate_act, normalize_act: bool
) -> Gate:
    """`e3nn.gate` of the row: the last scalars gate the other irreps, the first are activated.

    Raises:
      ValueError: fewer scalars than irreps to gate.
    """
    blocks = list(enumerate(mixing.irreps_out))
    vectors = [Part(n, 0, mul) for n, (mul, ir) in blocks if ir.l > 0]
    if not vectors:
        return scalar_activation(mixing, even_act, odd_act, normalize_act)
    scalars = [Part(n, 0, mul) for n, (mul, ir) in blocks if ir.l == 0]
    extra = sum(p.mul for p in scalars) - sum(p.mul for p in vectors)
    if extra < 0:
        raise ValueError(
            f"a gate needs a scalar for every other irrep, and {mixing.irreps_out} has "
            f"{sum(p.mul for p in scalars)} scalars for {sum(p.mul for p in vectors)}"
        )
    activated = _take(scalars, extra)
    pairs = []
    while vectors:
        mul = min(vectors[0].mul, scalars[0].mul)
        pairs += zip(_take(scalars, mul), _take(vectors, mul), strict=True)

    tiles, irreps, offset = [], [], 0
    for part in activated:
        ir = mixing.irreps_out[part.block].ir
        act = _activation.activation({1: even_act, -1: odd_act}[ir.p], normalize_act)
        tiles.append(Tile(part, offset, act))
        irreps.append((part.mul, _activated(ir, act)))
        offset += part.mul
    for gating, part in pairs:
        ir, ir_gate = (mixing.irreps_out[p.block].ir for p in (part, gating))
        act = _activation.activation({1: even_gate_act, -1: odd_gate_act}[ir_gate.p], normalize_act)
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


def apply_gate(gate: Gate, mixing: Mixing, z):
    """The output row of a mixed row z [rows, mixing.size_out]."""
    columns = [
        _read(mixing, t.part, z) * t.act(_read(mixing, t.gate, z))
        if t.gate
        else t.act(_read(mixing, t.part, z))
        for t in gate.tiles
    ]
    columns = [c.reshape(z.shape[0], c.shape[1] * c.shape[2]) for c in columns]
    return jnp.concatenate([*columns, jnp.zeros((z.shape[0], 0), z.dtype)], axis=1)


def _read(mixing: Mixing, part: Part, z):
    block = mixing.blocks_out[part.block]
    start = block.offset + part.first * block.dim
    return z[:, start : start + part.mul * block.dim].reshape(-1, part.mul, block.dim)
