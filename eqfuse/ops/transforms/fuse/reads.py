"""What nobody reads is not computed: blocks in front of a Linear, and rows of a product."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear import BlockRef, LinearForm, Rows
from eqfuse.ops.primitives import forms
from eqfuse.ops.transforms.fuse.rows import MOVES, ArrayFactor, ProductFactor, RowPolynomials, Unfit
from eqfuse.ops.transforms.fuse.trace import Node, TooLargeError, Trace, summed


def narrower(trace: Trace, rows: RowPolynomials, number: int) -> tuple[LinearForm, list] | None:
    """Return a Linear of the blocks of a sum or a product that it reads, and these; or None."""
    node = trace.nodes[number]
    form, value = node.params["form"], node.inputs[0]
    blocks = getattr(form.inputs[0], "blocks", ())
    order = sorted({t.x.block for t in form.terms if t.x is not None and t.x.operand == 0})
    if not order or len(order) == len(blocks):
        return None
    names = {name for key in rows.of(value).terms for name in key}
    arrays = [n.value for n in names if isinstance(n, ArrayFactor) and n.value in trace.producer]
    is_sum = any(summed(trace, trace.producer[v][0]) is not None for v in arrays)
    if not is_sum and not any(isinstance(name, ProductFactor) for name in names):
        return None
    read, sizes = [blocks[n] for n in order], [blocks[n].mul * blocks[n].dim for n in order]
    starts = np.cumsum([0, *sizes]).tolist()
    kept = (dataclasses.replace(b, offset=s) for b, s in zip(read, starts, strict=False))

    def placed(term):
        is_read = term.x is not None and term.x.operand == 0
        x = BlockRef(0, order.index(term.x.block)) if is_read else term.x
        return dataclasses.replace(term, x=x)

    inputs = Rows(starts[-1], tuple(kept)), *form.inputs[1:]
    return dataclasses.replace(form, inputs=inputs, terms=tuple(map(placed, form.terms))), read


@dataclasses.dataclass(frozen=True)
class ReadRows:
    """The rows of a product of which only some segments are computed, and the others are zero."""

    node: Node
    form: Form  # of those segments, one after the other
    places: tuple[tuple[int, int], ...]  # offset and size of each in the whole row

    @property
    def inputs(self) -> tuple[int, ...]:
        return self.node.inputs

    def compute(self, arrays: dict, shared: dict):
        operands = [arrays[v] for v in self.node.inputs]
        [out] = forms.evaluate(self.form, operands, backend=self.node.params["backend"])
        whole, parts, stop, start = self.node.params["form"].outputs[0].size, [], 0, 0
        for offset, size in (*self.places, (whole, 0)):
            parts += [jnp.zeros((len(out), offset - stop), out.dtype), out[:, start : start + size]]
            stop, start = offset + size, start + size
        return jnp.concatenate(parts, axis=1)


def read_rows(
    trace: Trace, rows: RowPolynomials, number: int, needed: set[int], read: set[int]
) -> ReadRows | None:
    """Return the rows of a product that are needed in part; None if all are.

    The needed nodes read it, and ops and the result the values in `read`.
    """
    node = trace.nodes[number]
    [value], form = node.outputs, node.params["form"]
    moved, ends = {value}, set()
    for reader in (trace.nodes[n] for n in sorted(needed)):
        if given := moved.intersection(reader.inputs):
            moved.update(reader.outputs) if reader.name in MOVES else ends.update(given)
    columns: set[int] = set()
    for end in ends | moved.intersection(read):
        try:
            terms = rows.of(end).terms
        except (Unfit, TooLargeError):
            return None
        if any(key != (ProductFactor(number),) for key in terms):
            return None
        columns.update(*(t.index[:, 0].tolist() for t in terms.values()))
    [out] = form.outputs
    elements = {n: set(_elements(s)) for n, s in enumerate(out.segments)}
    kept = [n for n, own in elements.items() if not own.isdisjoint(columns)]
    paths = [p for p in form.paths if p.output.segment in kept]
    whole = all(max(e) - min(e) + 1 == len(e) for e in elements.values())
    if not paths or len(paths) == len(form.paths) or not whole or not out.channels:
        return None
    kept.sort(key=lambda n: out.segments[n].offset)
    sizes = [len(elements[n]) for n in kept]
    starts = np.cumsum([0, *sizes]).tolist()
    segments = (
        dataclasses.replace(out.segments[n], offset=s) for n, s in zip(kept, starts, strict=False)
    )
    narrow = dataclasses.replace(out, size=starts[-1], segments=tuple(segments))
    moved = (dataclasses.replace(p.output, segment=kept.index(p.output.segment)) for p in paths)
    paths = (dataclasses.replace(p, output=o) for p, o in zip(paths, moved, strict=True))
    places = zip((out.segments[n].offset for n in kept), sizes, strict=True)
    return ReadRows(node, Form(form.inputs, (narrow,), tuple(paths)), tuple(places))


def _elements(segment) -> list[int]:
    channels = segment.channel_stride * np.arange(segment.mul)[:, None]
    return (segment.offset + channels + segment.component_stride * np.arange(segment.dim)).ravel()
