"""What nobody reads of a product on a graph, such as a Linear to scalars, is not computed."""

from __future__ import annotations

import numpy as np

from eqfuse.fuse.polynomials import Unfit
from eqfuse.fuse.row_polynomials import FOLLOWED, RowPolynomials
from eqfuse.ops.ir.form import Segment, SegmentRef
from eqfuse.ops.transforms.trace import Node


def readers(rows: RowPolynomials, value: int, nodes: list[Node]) -> tuple[set[int], list[Node]]:
    """Return what moves and arithmetic make of a value's rows, and the nodes that read any of it.

    Those alone that are in `nodes`. A sum over rows, or a product of two of them, reads them.
    """
    made, others = {value}, []
    [[own]] = rows.of(value).terms or [[None]]
    for node in nodes:
        if made.isdisjoint(node.inputs):
            continue
        if node.name in FOLLOWED and all(_is_of(rows, v, own, made) for v in node.outputs):
            made.update(node.outputs)
        else:
            others.append(node)
    return made, others


def _is_of(rows: RowPolynomials, value: int, own, made: set[int]) -> bool:
    """Return whether all that the rows of a value have of those that are made is `own`."""
    try:
        row = rows.of(value)
    except Unfit:
        return False
    others = {name for key in row.terms for name in key} - {own}
    return {name.value for name in others}.isdisjoint({*made, value})


def columns_read(rows: RowPolynomials, value: int, nodes: list[Node], read: set[int]) -> set[int]:
    """Return which elements of the rows of a value are read.

    The needed `nodes` read it, and ops and the result the values in `read`.
    """
    [[own]] = rows.of(value).terms or [[None]]
    made, others = readers(rows, value, nodes)
    ends: list[tuple] = [(v, None) for v in made & read]
    for node in others:
        ends += [(v, _read_by(node, v)) for v in made.intersection(node.inputs)]
    columns: set[int] = set()
    for end, wanted in ends:
        for key, terms in rows.of(end).terms.items():
            is_read = slice(None) if wanted is None else np.isin(terms.place, wanted)
            for n in (n for n, name in enumerate(key) if name == own):
                columns.update(terms.index[is_read, n].tolist())
    return columns


def _read_by(node: Node, value: int) -> list[int] | None:
    """Return the elements of the rows of an operand that a node reads; None for all."""
    if node.name != "eqfuse_linear_form" or value in node.inputs[1:]:
        return None
    form = node.params["form"]
    blocks = [() if o.matrix else o.segments for o in form.inputs]
    refs = {x for t in form.terms for x in (t.x, t.z) if isinstance(x, SegmentRef)}
    read = [blocks[r.operand][r.segment] for r in refs if r.operand < len(blocks)]
    return [n for b in read for n in range(b.offset, b.offset + b.mul * b.dim)]


def elements_of(segment: Segment, channels: bool = True) -> list[int]:
    return segment.elements()[: segment.mul if channels else 1].ravel().tolist()
