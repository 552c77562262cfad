"""Forms of the tensor products of irreps, in e3nn-jax's order, normalisation and layout.

Every block of an output gets its place in the row directly: sorting and regrouping are offsets and
strides of segments, and no array is ever permuted.
"""

import collections
import functools

import e3nn_jax as e3nn

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Path, Segment
from eqfuse.ops.ir.product_parts import (
    OUT,
    Columns,
    Group,
    Operands,
    Product,
    W,
    X,
    Y,
    columns_of,
    coupling,
    groups,
    regrouped,
    renumbered,
)

UNROLLED_MUL = 4
"""Up to this multiplicity of the smaller operand, its channels become components of the form."""
UNROLLED_TERMS = 2048
"""Up to so many terms they do on request, whatever the multiplicity."""


@functools.cache
def tensor_product(
    irreps_x: e3nn.Irreps,
    irreps_y: e3nn.Irreps,
    filter_ir_out: tuple[e3nn.Irrep, ...] | None,
    normalization: str,
    regroup: bool = True,
    weighted: bool = False,
    zero_x: tuple[bool, ...] | None = None,
    zero_y: tuple[bool, ...] | None = None,
    on_graph: bool = False,
    unroll: bool = False,
    scalar_first: bool = False,
) -> Product:
    """Return the form of `e3nn.tensor_product`: inputs x, y (and w), output out.

    The operand with the larger multiplicities runs along the channels; those of the other become
    components. `weighted` adds a weight for every irrep of the output, in its order. `on_graph`
    reads x through the senders and sums the output to the receivers. Where both operands have
    multiplicities over `UNROLLED_MUL`, the product has `channel_columns`, over rows and without
    weights; or not, with `unroll`, up to `UNROLLED_TERMS` terms. `scalar_first` puts what the
    scalar of y gives before the rest of each block of the output.
    """
    x_groups = groups(irreps_x, zero_x or (False,) * len(irreps_x), regroup)
    y_groups = groups(irreps_y, zero_y or (False,) * len(irreps_y), regroup)
    mul_x, mul_y = (max((g.mul for g in side), default=1) for side in (x_groups, y_groups))
    first = (_scalar(irreps_y),) if scalar_first else ()
    blocks = _blocks(x_groups, y_groups, filter_ir_out, first)
    many = min(mul_x, mul_y) > UNROLLED_MUL
    if many and not (unroll and _num_terms(blocks, normalization) <= UNROLLED_TERMS):
        return _expanded(blocks, normalization, regroup)
    # the channels of y lie side by side in the output
    x_channels = mul_x > mul_y if many else mul_x >= mul_y

    operands, paths, zeros = Operands(), [], []
    offset = irrep = 0
    for ir, gx, gy in blocks:
        terms = coupling(gx.ir, gy.ir, ir, normalization)
        weighted_terms = tuple(((i, j, 0, k), c) for (i, j, k), c in terms)
        for x, y, places in _unrolled(gx, gy, x_channels):
            first, step, mul = places  # the irreps of this path among those of the block
            factors = [operands.ref(X, x), operands.ref(Y, y)]
            if weighted:
                factors.append(operands.ref(W, Segment(irrep + first, mul, 1, step)))
            out = Segment(offset + first * ir.dim, mul, ir.dim, step * ir.dim)
            paths.append(
                Path(tuple(factors), operands.ref(OUT, out), weighted_terms if weighted else terms)
            )
        zeros.append(gx.zero or gy.zero)
        offset += gx.mul * gy.mul * ir.dim
        irrep += gx.mul * gy.mul

    irreps_out = e3nn.Irreps([(gx.mul * gy.mul, ir) for ir, gx, gy in blocks])
    x_index = Index.SENDER if on_graph else Index.ROW
    inputs = [
        operands.operand(X, irreps_x.dim, x_channels, x_index),
        operands.operand(Y, irreps_y.dim, not x_channels, Index.ROW),
    ]
    if weighted:
        inputs.append(operands.operand(W, irrep, True, Index.ROW))
    out_index = Index.RECEIVER if on_graph else Index.ROW
    output = operands.operand(OUT, irreps_out.dim, True, out_index)
    form = renumbered(Form(tuple(inputs), (output,), ()), paths)
    irreps_out, zeros = regrouped(irreps_out, zeros) if regroup else (irreps_out, tuple(zeros))
    return Product(form, irreps_out, zeros)


def _blocks(x_groups, y_groups, filter_ir_out, first) -> list[tuple[e3nn.Irrep, Group, Group]]:
    """Return irrep, x and y of the blocks of the output, sorted stably by irrep, as e3nn does.

    Of one irrep, those of the irreps `first` of y come before the others.
    """
    blocks = [
        (ir, gx, gy)
        for gx in x_groups
        for gy in y_groups
        for ir in gx.ir * gy.ir
        if filter_ir_out is None or ir in filter_ir_out
    ]
    return sorted(blocks, key=lambda block: (block[0], block[2].ir not in first))


@functools.cache
def product_irreps(
    irreps_x: e3nn.Irreps,
    irreps_y: e3nn.Irreps,
    filter_ir_out: tuple[e3nn.Irrep, ...] | None,
    zero_x: tuple[bool, ...],
    zero_y: tuple[bool, ...],
    channelwise: bool = False,
) -> e3nn.Irreps:
    """Return irreps of a regrouped product, without those zero by structure; makes no form."""
    muls, nonzero = collections.Counter(), set()
    for (mul_x, ir_x), x_is_zero in zip(irreps_x, zero_x, strict=True):
        for (mul_y, ir_y), y_is_zero in zip(irreps_y, zero_y, strict=True):
            mul = mul_x if channelwise else mul_x * mul_y
            for ir in ir_x * ir_y if mul else ():
                muls[ir] += mul
                if not (x_is_zero or y_is_zero):
                    nonzero.add(ir)
    irs = [ir for ir in sorted(nonzero) if filter_ir_out is None or ir in filter_ir_out]
    return e3nn.Irreps([(muls[ir], ir) for ir in irs])


def _scalar(irreps: e3nn.Irreps) -> e3nn.Irrep:
    """Return the irrep of the one scalar that irreps begin with."""
    scalar = e3nn.Irrep("0e")
    if not irreps or irreps[0].ir != scalar or irreps.count(scalar) != 1:
        raise ValueError(f"scalar_first is for y that begins with its only 0e, got {irreps}")
    return scalar


def _num_terms(blocks, normalization: str) -> int:
    """Return terms of the product with the multiplicities of one side unrolled."""
    return sum(
        min(gx.mul, gy.mul) * len(coupling(gx.ir, gy.ir, ir, normalization))
        for ir, gx, gy in blocks
    )


def _unrolled(gx: Group, gy: Group, x_channels: bool):
    """Yield, for every path of a block, segments of x and y, and (first, step, mul) in it.

    Irrep (u, v) of a block is its number u * mul_y + v.
    """
    d_x, d_y = gx.ir.dim, gy.ir.dim
    for px in gx.pieces:
        for py in gy.pieces:
            if px.zero or py.zero or not px.mul or not py.mul:
                continue
            if x_channels:
                x = Segment(px.offset, px.mul, d_x, d_x)
                for v in range(py.mul):
                    y = Segment(py.offset + v * d_y, 1, d_y, d_y)
                    yield x, y, (px.channel * gy.mul + py.channel + v, gy.mul, px.mul)
            else:
                y = Segment(py.offset, py.mul, d_y, d_y)
                for u in range(px.mul):
                    x = Segment(px.offset + u * d_x, 1, d_x, d_x)
                    yield x, y, ((px.channel + u) * gy.mul + py.channel, 1, py.mul)


def _expanded(blocks, normalization: str, regroup: bool) -> Product:
    """Return products of operands with many channels, repeated for every pair (u, v)."""
    operands, paths, zeros, columns = Operands(), [], [], ([], [])
    places, sizes, offset = {}, [0, 0], 0
    for ir, gx, gy in blocks:
        mul = gx.mul * gy.mul
        zero = gx.zero or gy.zero
        zeros.append(zero)
        if (gx, gy) not in places:
            places[gx, gy] = tuple(sizes)
            for side, group, other in ((0, gx, gy), (1, gy, gx)):
                columns[side].append(Columns(columns_of(group), other.mul, axis=1 - side))
                sizes[side] += columns[side][-1].size
        if mul and not zero:
            x, y = (
                Segment(start, mul, g.ir.dim, g.ir.dim)
                for start, g in zip(places[gx, gy], (gx, gy), strict=True)
            )
            out = operands.ref(OUT, Segment(offset, mul, ir.dim, ir.dim))
            factors = (operands.ref(X, x), operands.ref(Y, y))
            paths.append(Path(factors, out, coupling(gx.ir, gy.ir, ir, normalization)))
        offset += mul * ir.dim
    irreps_out = e3nn.Irreps([(gx.mul * gy.mul, ir) for ir, gx, gy in blocks])
    inputs = tuple(operands.operand(n, sizes[n], True, Index.ROW) for n in (X, Y))
    output = operands.operand(OUT, irreps_out.dim, True, Index.ROW)
    form = renumbered(Form(inputs, (output,), ()), paths)
    irreps_out, zeros = regrouped(irreps_out, zeros) if regroup else (irreps_out, tuple(zeros))
    return Product(form, irreps_out, zeros, tuple(map(tuple, columns)))
