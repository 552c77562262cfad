"""Forms of the products of matching channels (uuu), in e3nn-jax's normalisation and layout."""

import dataclasses
import functools

import e3nn_jax as e3nn

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Path, Segment
from eqfuse.ops.ir.product_parts import (
    OUT,
    Operands,
    Product,
    W,
    X,
    Y,
    coupling,
    regrouped,
    renumbered,
)


@functools.cache
def elementwise_tensor_product(
    irreps_x: e3nn.Irreps,
    irreps_y: e3nn.Irreps,
    filter_ir_out: tuple[e3nn.Irrep, ...] | None,
    normalization: str,
    zero_x: tuple[bool, ...] | None = None,
    zero_y: tuple[bool, ...] | None = None,
) -> Product:
    """Return the form of `e3nn.elementwise_tensor_product` (uuu): both operands per channel.

    Raises:
      ValueError: operands of different numbers of irreps.
    """
    if irreps_x.num_irreps != irreps_y.num_irreps:
        raise ValueError(
            "elementwise_tensor_product: the inputs must have the same number of irreps, "
            f"got {irreps_x.num_irreps} ({irreps_x}) and {irreps_y.num_irreps} ({irreps_y})"
        )
    pairs = _aligned(_blocks(irreps_x, zero_x), _blocks(irreps_y, zero_y))
    blocks = [(ir, x, y) for x, y in pairs for ir in x[0] * y[0]]
    return _channelwise(blocks, irreps_x, irreps_y, filter_ir_out, normalization)


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

    Raises:
      ValueError: blocks of different multiplicities.
    """
    if len({mul for mul, _ in (*irreps_x, *irreps_y)}) > 1:
        raise ValueError(
            "channelwise_tensor_product: all irreps must have the same multiplicity, "
            f"got {irreps_x} and {irreps_y}"
        )
    blocks = [
        (ir, x, y)
        for x in _blocks(irreps_x, zero_x)
        for y in _blocks(irreps_y, zero_y)
        for ir in x[0] * y[0]
    ]
    blocks.sort(key=lambda block: block[0])  # stably, as e3nn sorts
    y_index = Index.RECEIVER if on_graph else Index.ROW
    if weighted:
        return _weighted(blocks, irreps_x, irreps_y, filter_ir_out, normalization, y_index)
    product = _channelwise(blocks, irreps_x, irreps_y, filter_ir_out, normalization, y_index)
    irreps_out, zeros = regrouped(product.irreps_out, product.zero_flags)
    return dataclasses.replace(product, irreps_out=irreps_out, zero_flags=zeros)


def _channelwise(
    blocks, irreps_x, irreps_y, filter_ir_out, normalization: str, y_index: Index = Index.ROW
) -> Product:
    """Return the form of products, channel by channel, of (irrep, block of x, block of y)."""
    operands, paths, zeros, irreps_out, offset = Operands(), [], [], [], 0
    for ir, (ir_x, x, x_zero), (ir_y, y, y_zero) in blocks:
        if filter_ir_out is not None and ir not in filter_ir_out:
            continue
        out = Segment(offset, x.mul, ir.dim, ir.dim)
        offset += x.mul * ir.dim
        irreps_out.append((x.mul, ir))
        zeros.append(x_zero or y_zero)
        if not zeros[-1] and x.mul:
            factors = (operands.ref(X, x), operands.ref(Y, y))
            terms = coupling(ir_x, ir_y, ir, normalization)
            paths.append(Path(factors, operands.ref(OUT, out), terms))
    irreps_out = e3nn.Irreps(irreps_out)
    inputs = (
        operands.operand(X, irreps_x.dim, True, Index.ROW),
        operands.operand(Y, irreps_y.dim, True, y_index),
    )
    output = operands.operand(OUT, irreps_out.dim, True, Index.ROW)
    form = renumbered(Form(inputs, (output,), ()), paths)
    return Product(form, irreps_out, tuple(zeros))


def _weighted(blocks, irreps_x, irreps_y, filter_ir_out, normalization, y_index) -> Product:
    """Return the form of weighted products, of which those of an irrep are added."""
    blocks = [b for b in blocks if filter_ir_out is None or b[0] in filter_ir_out]
    mul = blocks[0][1][1].mul if blocks else 0
    irreps_out = e3nn.Irreps([(mul, ir) for ir in dict.fromkeys(ir for ir, _, _ in blocks)])
    starts = dict(zip((ir for _, ir in irreps_out), irreps_out.slices(), strict=True))
    operands, paths, nonzero = Operands(), [], set()
    for k, (ir, (ir_x, x, x_zero), (ir_y, y, y_zero)) in enumerate(blocks):
        if x_zero or y_zero or not mul:
            continue
        nonzero.add(ir)
        factors = [operands.ref(X, x), operands.ref(Y, y)]
        factors.append(operands.ref(W, Segment(k * mul, mul, 1, 1)))
        out = Segment(starts[ir].start, mul, ir.dim, ir.dim)
        terms = coupling(ir_x, ir_y, ir, normalization)
        terms = tuple(((i, j, 0, m), c) for (i, j, m), c in terms)
        paths.append(Path(tuple(factors), operands.ref(OUT, out), terms))
    inputs = (
        operands.operand(X, irreps_x.dim, True, Index.ROW),
        operands.operand(Y, irreps_y.dim, True, y_index),
        operands.operand(W, len(blocks) * mul, True, Index.SHARED),
    )
    output = operands.operand(OUT, irreps_out.dim, True, Index.ROW)
    form = renumbered(Form(inputs, (output,), ()), paths)
    return Product(form, irreps_out, tuple(ir not in nonzero for _, ir in irreps_out))


def _blocks(irreps, zero_flags):
    offset, blocks = 0, []
    for (mul, ir), zero in zip(irreps, zero_flags or (False,) * len(irreps), strict=True):
        blocks.append((ir, Segment(offset, mul, ir.dim, ir.dim), zero))
        offset += mul * ir.dim
    return blocks


def _aligned(left, right):
    """Yield pairs of blocks of equal multiplicity, long ones cut, as e3nn aligns its operands."""
    left, right = list(left), list(right)
    while left and right:
        mul = min(left[0][1].mul, right[0][1].mul)
        yield _cut(left, mul), _cut(right, mul)


def _cut(blocks, mul: int):
    """Take the first `mul` channels off the first block."""
    ir, segment, zero = blocks.pop(0)
    if segment.mul > mul:
        rest = dataclasses.replace(
            segment, offset=segment.offset + mul * ir.dim, mul=segment.mul - mul
        )
        blocks.insert(0, (ir, rest, zero))
    return ir, dataclasses.replace(segment, mul=mul), zero
