"""The value of a fused op on a graph as the text of a Triton kernel: a program owns a node.

It walks the edges as the kernel of the product does, writes their sums, and goes on with the
Linear, the skip and the gate.
"""

import dataclasses
import functools

from eqfuse.ops.backends.triton import form
from eqfuse.ops.backends.triton.epilogue import (
    FusedEmitter,
    FusedKernel,
    Place,
    write_gated,
)
from eqfuse.ops.backends.triton.form import ADDED, WARP, TaskEmitter
from eqfuse.ops.backends.triton.text import power_of_two
from eqfuse.ops.ir.form import Form, Term
from eqfuse.ops.ir.fused import Fused, Part

COLUMNS = WARP  # of a tile of a matrix: those that a warp loads at once
MOST_ROWS = 16  # of a tile for each warp: loads that a thread has on the way
SUMS = 48  # of rows that a thread has, at most


@functools.lru_cache(maxsize=256)
def forward(fused: Fused, dtype: str, edge_lanes: int = 1) -> FusedKernel:
    """Return the kernel that writes the outputs of an op, and the sums of nodes last."""
    [out] = fused.form.outputs
    sums = (dataclasses.replace(out, name="m"),)
    [task] = form.tasks(Form(fused.form.inputs, sums, fused.form.paths), dtype, edge_lanes)
    walk = TaskEmitter(dataclasses.replace(task, all_channels=True))
    walk.emit_all()
    blocks = (*fused.linear.blocks_in, *fused.linear.blocks_out)
    columns = min(COLUMNS, power_of_two(max(b.mul for b in blocks)))
    t = FusedEmitter(fused, dtype, columns, max(1, walk.leading * walk.lanes // WARP))
    t.lines += walk.lines
    t.emit("node = receiver")
    t.emit("tl.debug_barrier()")
    for n, block in enumerate(fused.linear.blocks_out):
        _write_mixed(t, Part(n, 0, block.mul))
    if fused.gate:
        t.emit("tl.debug_barrier()")
        for tile in fused.gate.tiles:
            write_gated(t, tile)
    read = [fused.form.inputs[i].name for i in walk.inputs]
    inputs = [*read, *t.parameters, *(["skip"] if fused.skip else [])]
    note = f"{fused.form!r}\nsummed by node, mixed to {fused.linear.irreps_out}"
    t.sums |= walk.sums
    outputs = dict.fromkeys([*fused.outputs, "m"], dtype)
    scalars = ["num_nodes"] * bool(walk.ends())
    return t.kernel("fused_node", note, inputs, walk.index_arrays(), outputs, scalars)


def _write_mixed(t: FusedEmitter, part: Part):
    """Write a block of the pre-activation: the Linear of the sums, bias and skip."""
    dim = t.linear.blocks_out[part.block].dim
    starts = range(0, part.mul, t.columns)[: 4 if dim == 1 else 2]
    step = len(starts) * t.columns
    with t.block(f"for column in tl.range(0, {part.mul}, {step}, num_stages=1):"):
        places = [Place(t, part, t.column(start)) for start in starts]
        added = []
        for place in places:
            terms: list[list[str]] = [[] for _ in range(dim)]
            for bias in t.linear.biases(part.block):
                terms[0].append(place.load(f"{t.parameter(bias)} + {place.v}"))
            if t.fused.skip:
                for k, more in enumerate(terms):
                    more.append(place.load(place.of_z("skip", k)))
            added.append(terms)
        results = [_times_matrix(t, term, starts, dim) for term in t.linear.into(part.block)]
        if not results:
            zeros = f"tl.zeros([{t.columns}], {t.real})"
            results = [[[t.name(zeros) for _ in range(dim)] for _ in starts]]
        found, *others = results
        for other in others:
            for sums, more in zip(found, other, strict=True):
                for total, value in zip(sums, more, strict=True):
                    t.emit(f"{total} += {value}")
        for place, values, terms in zip(places, found, added, strict=True):
            for k, (value, more) in enumerate(zip(values, terms, strict=True)):
                place.store(place.of_z("z", k), " + ".join([value, *more]))


def _times_matrix(t: FusedEmitter, term: Term, starts, dim: int) -> list[list[str]]:
    """Return a term of the Linear of the sums, [columns] for each tile and component.

    A tile of the matrix begins at each of the columns `starts`.
    """
    source, width = t.linear.blocks_in[term.x.segment], t.linear.blocks_out[term.z.segment].mul
    size = t.fused.form.outputs[0].size
    rows = SUMS // (dim * len(starts))
    rows = min(MOST_ROWS, max(1, power_of_two(rows + 1) // 2)) * t.warps
    rows = min(rows * WARP // t.columns, power_of_two(source.mul))
    zeros = f"tl.zeros([{rows}, {t.columns}], {t.real})"
    totals = [[t.name(zeros) for _ in range(dim)] for _ in starts]
    with t.block(f"for at in tl.range(0, {source.mul}, {rows}, num_stages=1):"):
        u = t.name(f"at + tl.arange(0, {rows})")
        present = f"{u}[:, None] < {source.mul}"
        row = f"m_ptr + node * {size} + {source.offset} + {u}[:, None] * {source.dim}"
        values = [t.load(f"{row} + {k}", present) for k in range(dim)]
        for start, sums in zip(starts, totals, strict=True):
            v = t.column(start)
            place = f"{u}[:, None] * {width} + {v}[None, :]"  # neighbours of a row at once
            mask = f"({present}) & ({v}[None, :] < {width})"
            tile = t.load(f"{t.parameter(term)} + {place}", mask)
            for value, total in zip(values, sums, strict=True):
                t.emit(f"{total} += {value} * {tile}")
    names = [name for sums in totals for name in sums]
    for first in range(0, len(names), ADDED):
        t.reduce(names[first : first + ADDED], 0, "_sum")
    scaled = "" if term.scale == 1.0 else f"{term.scale!r} * "
    return [[t.name(f"{scaled}{name}_sum") for name in sums] for sums in totals]
