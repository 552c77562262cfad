"""Forms of the tensor products of irreps, in e3nn-jax's order, normalisation and layout.

Every block of an output gets its place in the row directly: sorting and regrouping are offsets and
strides of segments, and no array is ever permuted.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import e3nn_jax as e3nn
import numpy as np

from eqfuse.ops.ir import linear
from eqfuse.ops.ir.form import Form, Index, Operand, Path, Role, Segment, SegmentRef


@dataclasses.dataclass(frozen=True, eq=False)
class Product:
    """A form, the irreps of its output, and which of its output blocks are zero by structure.

    Where `repeated` is given, the inputs of the form are these parts of x and y, side by side, so
    that every pair of channels (u, v) is one channel.
    """

    form: Form
    irreps_out: e3nn.Irreps
    zero_flags: tuple[bool, ...]
    repeated: tuple[tuple["Repeated", ...], tuple["Repeated", ...]] | None = None


class Repeated(NamedTuple):
    """Blocks of an operand, one irrep, taken several times: each channel of x, all of y."""

    segments: tuple[Segment, ...]
    times: int


class Block(NamedTuple):
    """A block of irreps in a row, and whether it is zero by structure."""

    ir: e3nn.Irrep
    segment: Segment
    zero: bool = False

    @property
    def mul(self) -> int:
        return self.segment.mul


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks of one irrep that the product treats as one block of `mul` channels."""

    ir: e3nn.Irrep
    blocks: tuple[Block, ...]

    @property
    def mul(self) -> int:
        return sum(b.mul for b in self.blocks)

    @property
    def zero(self) -> bool:
        return all(b.zero for b in self.blocks)

    def nonzero(self) -> list[tuple[int, Segment]]:
        """Return blocks that are not zero, each with the number of its first channel."""
        firsts = itertools.accumulate((b.mul for b in self.blocks), initial=0)
        blocks = zip(firsts, self.blocks, strict=False)
        return [(first, b.segment) for first, b in blocks if b.mul and not b.zero]


def groups(irreps, zero_flags, regroup: bool) -> list[Group]:
    """Return blocks as they are, or those of one irrep as one, sorted."""
    blocks = irrep_blocks(irreps, zero_flags)
    if not regroup:
        return [Group(b.ir, (b,)) for b in blocks]
    blocks = sorted((b for b in blocks if b.mul), key=lambda b: b.ir)
    return [Group(ir, tuple(of_ir)) for ir, of_ir in itertools.groupby(blocks, lambda b: b.ir)]


@functools.cache
def coupling(
    ir1, ir2, ir_out, normalization: str
) -> tuple[tuple[tuple[int, int, int], float], ...]:
    """Return non-zero Clebsch-Gordan coefficients ((i, j, k), c) with e3nn's normalisation."""
    scale = {
        "component": math.sqrt(ir_out.dim),
        "norm": math.sqrt(ir1.dim * ir2.dim),
        "none": 1.0,
    }
    cg = np.asarray(e3nn.clebsch_gordan(ir1.l, ir2.l, ir_out.l), np.float64) * scale[normalization]
    return tuple(
        (tuple(map(int, index)), float(cg[tuple(index)])) for index in np.argwhere(abs(cg) > 1e-12)
    )


def filled(known: Iterable[Segment], size: int, channels: bool) -> tuple[Segment, ...]:
    """Return segments of a row, then others for the rest of it: with channels, of one component."""
    segments = list(known)
    free = np.ones(size, bool)
    for s in segments:
        if not free[s.elements()].all():
            raise ValueError("blocks of an operand overlap")
        free[s.elements()] = False
    width = max((s.mul for s in segments), default=1) if channels else size
    start = 0
    while start < size:
        stop = start
        while stop < size and free[stop] and stop - start < width:
            stop += 1
        if stop > start:
            mul, dim = (stop - start, 1) if channels else (1, stop - start)
            segments.append(Segment(start, mul, dim, dim))
        start = max(stop, start + 1)
    return tuple(segments)


class Operands:
    """Segments of the operands, numbered as they are first used, and paths between them."""

    def __init__(self):
        self.segments, self.paths = {}, []

    def add(self, factors: dict[int, Segment], out: Segment, terms):
        """Add a path; weights that are a factor have one component, which is not in the terms."""
        if W in factors:
            terms = tuple(((i, j, 0, k), c) for (i, j, k), c in terms)
        refs = tuple(self.ref(number, segment) for number, segment in factors.items())
        self.paths.append(Path(refs, SegmentRef(0, self.ref(OUT, out).segment), terms))

    def form(self, *operands: tuple[int, int, bool, Index]) -> Form:
        """Return the form; an operand is (number, size, has channels, index), the output last."""
        *inputs, output = (self.operand(*of) for of in operands)
        return Form(tuple(inputs), (output,), tuple(self.paths)).merged()

    def ref(self, operand: int, segment: Segment) -> SegmentRef:
        known = self.segments.setdefault(operand, {})
        return SegmentRef(operand, known.setdefault(segment, len(known)))

    def operand(self, number, size, channels, index) -> Operand:
        segments = filled(self.segments.get(number, {}), size, channels)
        name, role = NAMES[number]
        return Operand(name, size, segments, channels, index, role)


X, Y, W, OUT = range(4)
NAMES = (("x", Role.LEFT), ("y", Role.RIGHT), ("w", Role.OTHER), ("out", Role.OUTPUT))


def product_of(form: Form, irreps, zeros, regroup: bool) -> Product:
    """Return the product of a form; `regroup` merges the sorted output blocks of an irrep.

    The merged block is zero if all of them are.
    """
    irreps = e3nn.Irreps(irreps)
    if regroup:
        merged = {}
        for (mul, ir), zero in zip(irreps, zeros, strict=True):
            if mul:
                merged.setdefault(ir, []).append(zero)
        irreps, zeros = irreps.simplify(), map(all, merged.values())
    return Product(form, irreps, tuple(zeros))


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
    multiplicities over `UNROLLED_MUL`, the product is of `repeated` channels, over rows and
    without weights; or not, with `unroll`, up to `UNROLLED_TERMS` terms. `scalar_first` puts what
    the scalar of y gives before the rest of each block of the output.
    """
    x_groups, y_groups = groups(irreps_x, zero_x, regroup), groups(irreps_y, zero_y, regroup)
    mul_x, mul_y = (max((g.mul for g in side), default=1) for side in (x_groups, y_groups))
    first = (_scalar(irreps_y),) if scalar_first else ()
    blocks = _blocks(itertools.product(x_groups, y_groups), filter_ir_out)
    blocks.sort(key=lambda block: (block[0], block[2].ir not in first))  # stably, as e3nn sorts
    many = min(mul_x, mul_y) > UNROLLED_MUL
    if many:
        counts = (
            min(gx.mul, gy.mul) * len(coupling(gx.ir, gy.ir, ir, normalization))
            for ir, gx, gy in blocks
        )
        if not unroll or sum(counts) > UNROLLED_TERMS:
            return _expanded(blocks, normalization, regroup)
    # the channels of y lie side by side in the output
    x_channels = mul_x > mul_y if many else mul_x >= mul_y

    operands, zeros = Operands(), []
    offset = irrep = 0
    for ir, gx, gy in blocks:
        terms = coupling(gx.ir, gy.ir, ir, normalization)
        for x, y, places in _unrolled(gx, gy, x_channels):
            first, step, mul = places  # the irreps of this path among those of the block
            factors = {X: x, Y: y} | ({W: Segment(irrep + first, mul, 1, step)} if weighted else {})
            out = Segment(offset + first * ir.dim, mul, ir.dim, step * ir.dim)
            operands.add(factors, out, terms)
        zeros.append(gx.zero or gy.zero)
        offset += gx.mul * gy.mul * ir.dim
        irrep += gx.mul * gy.mul

    form = operands.form(
        (X, irreps_x.dim, x_channels, Index.SENDER if on_graph else Index.ROW),
        (Y, irreps_y.dim, not x_channels, Index.ROW),
        *([(W, irrep, True, Index.ROW)] if weighted else []),
        (OUT, offset, True, Index.RECEIVER if on_graph else Index.ROW),
    )
    return product_of(form, [(gx.mul * gy.mul, ir) for ir, gx, gy in blocks], zeros, regroup)


def _blocks(pairs, filter_ir_out) -> list[tuple]:
    """Return irrep, x and y of the blocks of the output that pairs (x, y) give."""
    blocks = ((ir, x, y) for x, y in pairs for ir in x.ir * y.ir)
    return [b for b in blocks if filter_ir_out is None or b[0] in filter_ir_out]


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
    pairs = itertools.product(irrep_blocks(irreps_x, zero_x), irrep_blocks(irreps_y, zero_y))
    blocks = [b for b in _blocks(pairs, filter_ir_out) if b[1].mul and b[2].mul]
    muls = collections.Counter()
    for ir, x, y in blocks:
        muls[ir] += x.mul if channelwise else x.mul * y.mul
    nonzero = {ir for ir, x, y in blocks if not (x.zero or y.zero)}
    return e3nn.Irreps([(muls[ir], ir) for ir in sorted(nonzero)])


def _scalar(irreps: e3nn.Irreps) -> e3nn.Irrep:
    """Return the irrep of the one scalar that irreps begin with."""
    scalar = e3nn.Irrep("0e")
    if not irreps or irreps[0].ir != scalar or irreps.count(scalar) != 1:
        raise ValueError(f"scalar_first is for y that begins with its only 0e, got {irreps}")
    return scalar


def _unrolled(gx: Group, gy: Group, x_channels: bool):
    """Yield, for every path of a block, segments of x and y, and (first, step, mul) in it.

    Irrep (u, v) of a block is its number u * mul_y + v.
    """
    for (first_x, x), (first_y, y) in itertools.product(gx.nonzero(), gy.nonzero()):
        if x_channels:
            for v in range(y.mul):
                place = first_x * gy.mul + first_y + v, gy.mul, x.mul
                yield x, y.part(v, 1), place
        else:
            for u in range(x.mul):
                place = (first_x + u) * gy.mul + first_y, 1, y.mul
                yield x.part(u, 1), y, place


def _expanded(blocks, normalization: str, regroup: bool) -> Product:
    """Return products of operands with many channels, repeated for every pair (u, v)."""
    repeated, sizes, places, pairs = ([], []), [0, 0], {}, []
    for ir, gx, gy in blocks:
        if (gx, gy) not in places:
            places[gx, gy] = []
            for side, group, other in ((0, gx, gy), (1, gy, gx)):
                segments = tuple(b.segment for b in group.blocks)
                repeated[side].append(Repeated(segments, other.mul))
                segment = Segment.mul_ir(sizes[side], gx.mul * gy.mul, group.ir.dim)
                places[gx, gy].append(Block(group.ir, segment, group.zero))
                sizes[side] += gx.mul * gy.mul * group.ir.dim
        pairs.append((ir, *places[gx, gy]))
    product = _channelwise(pairs, *sizes, normalization, regroup=regroup)
    return dataclasses.replace(product, repeated=tuple(map(tuple, repeated)))


@functools.cache
def elementwise_tensor_product(
    irreps_x: e3nn.Irreps,
    irreps_y: e3nn.Irreps,
    filter_ir_out: tuple[e3nn.Irrep, ...] | None,
    normalization: str,
    zero_x: tuple[bool, ...] | None = None,
    zero_y: tuple[bool, ...] | None = None,
) -> Product:
    """Return the form of `e3nn.elementwise_tensor_product` (uuu): both operands per channel."""
    if irreps_x.num_irreps != irreps_y.num_irreps:
        raise ValueError(
            "elementwise_tensor_product: the inputs must have the same number of irreps, "
            f"got {irreps_x.num_irreps} ({irreps_x}) and {irreps_y.num_irreps} ({irreps_y})"
        )
    left, right = irrep_blocks(irreps_x, zero_x), irrep_blocks(irreps_y, zero_y)
    pairs = []
    while left and right:  # long blocks are cut, as e3nn aligns its operands
        mul = min(left[0].mul, right[0].mul)
        pairs.append((_cut(left, mul), _cut(right, mul)))
    blocks = _blocks(pairs, filter_ir_out)
    return _channelwise(blocks, irreps_x.dim, irreps_y.dim, normalization, regroup=False)


@functools.cache
def channelwise_tensor_product(
    irreps_x: e3nn.Irreps,
    irreps_y: e3nn.Irreps,
    filter_ir_out: tuple[e3nn.Irrep, ...] | None,
    normalization: str,
    zero_x: tuple[bool, ...] | None = None,
    zero_y: tuple[bool, ...] | None = None,
    on_graph: bool = False,
    weighted: bool = False,
) -> Product:
    """Return the form of every block of x times every block of y (uuu), sorted and merged by irrep.

    `on_graph` reads y through the receivers. `weighted` adds a weight for each channel of each
    block of the output, one row for all, and adds up the blocks of an irrep.
    """
    if len({mul for mul, _ in (*irreps_x, *irreps_y)}) > 1:
        raise ValueError(
            "channelwise_tensor_product: all irreps must have the same multiplicity, "
            f"got {irreps_x} and {irreps_y}"
        )
    pairs = itertools.product(irrep_blocks(irreps_x, zero_x), irrep_blocks(irreps_y, zero_y))
    blocks = sorted(_blocks(pairs, filter_ir_out), key=lambda block: block[0])
    y_index = Index.RECEIVER if on_graph else Index.ROW
    options = {"y_index": y_index, "regroup": not weighted, "weighted": weighted}
    return _channelwise(blocks, irreps_x.dim, irreps_y.dim, normalization, **options)


def _channelwise(
    blocks,
    size_x: int,
    size_y: int,
    normalization: str,
    *,
    regroup: bool,
    y_index: Index = Index.ROW,
    weighted: bool = False,
) -> Product:
    """Return the form of products of (irrep, block of x, block of y), channel by channel."""
    irreps_out = e3nn.Irreps([(x.mul, ir) for ir, x, _ in blocks])
    slices = irreps_out.slices()
    if weighted:
        irreps_out = e3nn.Irreps(list(dict.fromkeys((mul, ir) for mul, ir in irreps_out)))
        places = dict(zip((ir for _, ir in irreps_out), irreps_out.slices(), strict=True))
        slices = [places[ir] for ir, _, _ in blocks]
    operands, zeros, weights = Operands(), [], 0
    for place, (ir, x, y) in zip(slices, blocks, strict=True):
        zeros.append(x.zero or y.zero)
        if x.mul and not zeros[-1]:
            factors = {X: x.segment, Y: y.segment}
            factors |= {W: Segment(weights, x.mul, 1, 1)} if weighted else {}
            out = Segment.mul_ir(place.start, x.mul, ir.dim)
            operands.add(factors, out, coupling(x.ir, y.ir, ir, normalization))
        weights += x.mul
    form = operands.form(
        (X, size_x, True, Index.ROW),
        (Y, size_y, True, y_index),
        *([(W, weights, True, Index.SHARED)] if weighted else []),
        (OUT, irreps_out.dim, True, Index.ROW),
    )
    if weighted:
        zero_of = zip((ir for ir, _, _ in blocks), zeros, strict=True)
        nonzero = {ir for ir, zero in zero_of if not zero}
        zeros = [ir not in nonzero or not mul for mul, ir in irreps_out]
    return product_of(form, irreps_out, zeros, regroup)


def irrep_blocks(irreps, zero_flags=None) -> list[Block]:
    flags = zero_flags or (False,) * len(irreps)
    pairs = zip(irreps, linear.blocks(irreps), flags, strict=True)
    return [Block(ir, segment, zero) for (_, ir), segment, zero in pairs]


def _cut(blocks: list[Block], mul: int) -> Block:
    """Take the first `mul` channels off the first block."""
    ir, s, zero = blocks.pop(0)
    if s.mul > mul:
        blocks.insert(0, Block(ir, s.part(mul, s.mul - mul), zero))
    return Block(ir, s.part(0, mul), zero)


ZERO = 1e-10
"""Coefficients of e3nn's bases below this are rounding."""


def symmetric_basis(irs, ir_out: e3nn.Irrep, degree: int) -> e3nn.IrrepsArray:
    """Return symmetric maps of `degree` factors of irreps to one, [d, ..., d, maps x ir_out]."""
    irreps = e3nn.Irreps([(1, ir) for ir in irs])
    # e3nn-jax fails where there is no map at all; to the highest l there always is one
    top = max(irs, key=lambda ir: ir.l)
    keep = [ir_out, e3nn.Irrep(degree * top.l, top.p**degree)]
    maps = e3nn.reduced_symmetric_tensor_product_basis(irreps, degree, keep_ir=keep)
    return maps.filter(keep=[ir_out])


@functools.cache
def basis(irs: tuple[e3nn.Irrep, ...], ir_out: e3nn.Irrep, degree: int) -> np.ndarray:
    """Return e3nn's basis of symmetric maps: [d, ..., d, number of maps, ir_out.dim], float64."""
    maps = symmetric_basis(irs, ir_out, degree)
    return np.asarray(maps.array, np.float64).reshape(*maps.shape[:-1], -1, ir_out.dim)


@functools.cache
def contraction(irs, irs_out, mul: int, correlation: int) -> Form:
    """Return the form of `symmetric_contraction`: inputs x and w, output out, by rows."""
    paths, number = [], 0
    for out, ir in enumerate(irs_out):
        for degree in range(1, correlation + 1):
            maps = basis(irs, ir, degree)
            for k in range(maps.shape[-2]):
                for blocks, terms in _polynomials(irs, maps[..., k, :]).items():
                    factors = (*(SegmentRef(0, s) for s in blocks), SegmentRef(1, number))
                    paths.append(Path(factors, SegmentRef(0, out), terms))
                number += 1
    sides = ("x", irs, Role.LEFT), ("w", ["0e"] * number, Role.OTHER), ("out", irs_out, Role.OUTPUT)
    x, w, out = (_operand(name, of, mul, role) for name, of, role in sides)
    return Form((x, w), (out,), tuple(paths)).merged()


def _polynomials(irs, coefficients: np.ndarray):
    """Return terms of a map [d, ..., d, dim], by the blocks of x in increasing order."""
    block = [(s, i) for s, ir in enumerate(irs) for i in range(ir.dim)]
    result = collections.defaultdict(collections.Counter)
    for *places, component in np.argwhere(abs(coefficients) > ZERO).tolist():
        factors = [block[place] for place in sorted(places)]
        key = (*(i for _, i in factors), 0, component)
        result[tuple(s for s, _ in factors)][key] += float(coefficients[*places, component])
    return {blocks: tuple(terms.items()) for blocks, terms in result.items()}


def _operand(name: str, irs, mul: int, role: Role) -> Operand:
    irreps = e3nn.Irreps([(mul, ir) for ir in irs])
    return Operand(name, irreps.dim, linear.blocks(irreps), channels=True, role=role)


@functools.cache
def interpolation(widths: tuple[int, ...], order: int, half: bool = False) -> Form:
    """Return the form that reads tables by interval, which is in the place of the sender.

        out_k[e, u] = sum over n:  weights[e, n] * table_k[interval[e], n, u]

    Its inputs are the tables, [intervals, order * width] each, and the weights [rows, order]. With
    `half`, outputs are bfloat16 where these are float32.
    """
    tables, outputs, paths = [], [], []
    terms = tuple(((n, n, 0), 1.0) for n in range(order))
    for k, width in enumerate(widths):
        table, out = (Segment(0, width, order, 1, width),), (Segment(0, width, 1, 1),)
        size = order * width
        tables.append(Operand(f"table_{k}", size, table, True, Index.SENDER, Role.LEFT))
        outputs.append(Operand(f"out_{k}", width, out, True, role=Role.OUTPUT, half=half))
        factors = SegmentRef(k, 0), SegmentRef(len(widths), 0)
        paths.append(Path(factors, SegmentRef(k, 0), terms))
    segments = (Segment(0, 1, order, order),)
    weights = Operand("weights", order, segments, channels=False, role=Role.RIGHT)
    return Form((*tables, weights), tuple(outputs), tuple(paths))
