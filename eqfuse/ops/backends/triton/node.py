"""A fused op on a graph as the text of a Triton kernel, in which a program owns a node.

It walks the edges as the kernel of the product does, writes their sums, and goes on with the
Linear, the skip and the gate.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from eqfuse.ops.backends.triton import form
from eqfuse.ops.backends.triton.form import ADDED, WARP, TaskEmitter
from eqfuse.ops.backends.triton.functions import activated
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.backends.triton.text import DenseEmitter, power_of_two
from eqfuse.ops.ir.form import Form, Segment
from eqfuse.ops.ir.fused import Fused, Part, Tile
from eqfuse.ops.ir.linear import Term

COLUMNS = WARP  # of a tile of a matrix: those that a warp loads at once
MOST_ROWS = 16  # of a tile for each warp: loads that a thread has on the way
SUMS = 48  # of rows that a thread has, at most


class NodeEmitter(DenseEmitter):
    """Writes what a program does with the rows of its node, whose number is `node`."""

    def __init__(self, fused: Fused, dtype: str, threads: int):
        super().__init__(dtype, fused.linear.linear_form.input_precision)
        self.fused, self.linear = fused, fused.linear
        blocks = (*fused.linear.blocks_in, *fused.linear.blocks_out)
        self.columns = min(COLUMNS, power_of_two(max(b.mul for b in blocks)))
        self.warps = max(1, threads // WARP)
        self.sums: set[int] = set()  # see `text.program`

    def weights(self, term: Term) -> str:
        """Return the pointer to a matrix or a bias."""
        pointer, shape = f"p{term.w - 1}_ptr", self.linear.parameters[term.w - 1].shape
        return f"{pointer} + set_index * {math.prod(shape)}" if self.fused.num_sets else pointer

    def column_groups(self, mul: int, dim: int) -> tuple[str, list[int]]:
        """Return a loop over `mul` columns, and where in a turn each tile begins."""
        starts = range(0, mul, self.columns)[: 4 if dim == 1 else 2]
        step = len(starts) * self.columns
        return f"for column in tl.range(0, {mul}, {step}, num_stages=1):", list(starts)

    def column(self, start: int) -> str:
        return self.name(f"column + {start} + tl.arange(0, {self.columns})")

    def times(self, row, matrix, starts: list[int], dim: int, size: int, scale: float):
        """Return scale * row times a matrix of `size` rows, [columns] for each tile and component.

        `row(u, component)` is an address, and `matrix(u, start)` a tile, of the rows u.
        """
        rows = SUMS // (dim * len(starts))
        rows = min(MOST_ROWS, max(1, power_of_two(rows + 1) // 2)) * self.warps
        rows = min(rows * WARP // self.columns, power_of_two(size))
        shape = f"[{rows}, {self.columns}]"
        totals = [
            [self.name(f"tl.zeros({shape}, {self.real})") for _ in range(dim)] for _ in starts
        ]
        with self.block(f"for at in tl.range(0, {size}, {rows}, num_stages=1):"):
            u = self.name(f"at + tl.arange(0, {rows})")
            values = [
                self.load(f"{row(f'{u}[:, None]', k)}", f"{u}[:, None] < {size}")
                for k in range(dim)
            ]
            for start, sums in zip(starts, totals, strict=True):
                tile = matrix(u, start)
                for value, total in zip(values, sums, strict=True):
                    self.emit(f"{total} += {value} * {tile}")
        names = [name for sums in totals for name in sums]
        for first in range(0, len(names), ADDED):
            some = names[first : first + ADDED]
            every, reduced = ", ".join(some), ", ".join(f"{name}_sum" for name in some)
            if len(some) == 1:
                self.emit(f"{reduced} = tl.sum({every}, 0)")
            else:
                self.sums.add(len(some))
                self.emit(f"{reduced} = tl.reduce(({every}), 0, add_{len(some)})")
        scaled = "" if scale == 1.0 else f"{scale!r} * "
        return [[self.name(f"{scaled}{name}_sum") for name in sums] for sums in totals]

    def added(self, results, starts: list[int], dim: int) -> list[list[str]]:
        """Return the sums of results of `times`, or zeros."""
        if not results:
            zeros = f"tl.zeros([{self.columns}], {self.real})"
            return [[self.name(zeros) for _ in range(dim)] for _ in starts]
        first, *others = results
        for other in others:
            for sums, more in zip(first, other, strict=True):
                for total, value in zip(sums, more, strict=True):
                    self.emit(f"{total} += {value}")
        return first


@dataclasses.dataclass(frozen=True)
class Place:
    """Columns `v` of a part of the pre-activation: where a component of them lies."""

    t: NodeEmitter
    part: Part
    v: str

    @property
    def block(self) -> Segment:
        return self.t.linear.blocks_out[self.part.block]

    @property
    def mask(self) -> str:
        return f"{self.v} < {self.part.mul}"

    def of_z(self, k: int, skip: bool = False) -> str:
        """Return the address in an array of the pre-activation, or in the skip."""
        array = self.t.linear.array_of(self.part.block)
        name = "skip" if skip else self.t.fused.arrays[array]
        size = self.t.linear.linear_form.outputs[array].size
        offset = self.block.offset + self.part.first * self.block.dim
        return f"{name}_ptr + node * {size} + {offset} + {self.v} * {self.block.dim} + {k}"

    def load(self, address: str) -> str:
        return self.t.load(address, self.mask)

    def store(self, address: str, value: str):
        self.t.emit(f"tl.store({address}, {value}, mask={self.mask})")


@functools.lru_cache(maxsize=256)
def generate(fused: Fused, dtype: str, edge_lanes: int = 1) -> tuple[KernelSpec, tuple[str, ...]]:
    """Return the kernel that writes the outputs of an op, and the sums of nodes last.

    The second result is the names of its inputs, as in `Fused.named`.
    """
    [out] = fused.form.outputs
    sums = (dataclasses.replace(out, name="m"),)
    [task] = form.tasks(Form(fused.form.inputs, sums, fused.form.paths), dtype, edge_lanes)
    walk = TaskEmitter(dataclasses.replace(task, all_channels=True))
    walk.emit_all()
    t = NodeEmitter(fused, dtype, walk.leading * walk.lanes)
    t.lines += walk.lines
    t.sums |= walk.adders
    t.emit("node = receiver")
    if fused.num_sets:
        t.emit("set_index = tl.load(set_index_ptr + node).to(tl.int64)")
    t.emit("tl.debug_barrier()")
    for n, block in enumerate(fused.linear.blocks_out):
        _write_mixed(t, Part(n, 0, block.mul))
    if fused.gate:
        t.emit("tl.debug_barrier()")
        for tile in fused.gate.tiles:
            _write_gated(t, tile)
    inputs = [fused.form.inputs[i].name for i in walk.inputs]
    inputs += [f"p{n}" for n in range(len(fused.linear.parameters))]
    integers = [*walk.index_arrays(), *(["set_index"] if fused.num_sets else [])]
    inputs += [*(["skip"] if fused.skip else []), *integers]
    note = f"{fused.form!r}\nsummed by node, mixed to {fused.linear.irreps_out}"
    outputs = dict.fromkeys([*fused.outputs, "m"], dtype)
    scalars = ["num_nodes"] * bool(walk.ends())
    spec = t.spec("fused_node", note, inputs, integers, scalars, outputs, t.warps, t.sums)
    return spec, tuple(inputs)


def _write_mixed(t: NodeEmitter, part: Part):
    """Write a block of the pre-activation: the Linear of the sums, bias and skip."""
    dim = t.linear.blocks_out[part.block].dim
    loop, starts = t.column_groups(part.mul, dim)
    with t.block(loop):
        places = [Place(t, part, t.column(start)) for start in starts]
        added = []
        for place in places:
            terms: list[list[str]] = [[] for _ in range(dim)]
            for bias in t.linear.biases(part.block):
                terms[0].append(place.load(f"{t.weights(bias)} + {place.v}"))
            if t.fused.skip:
                for k, more in enumerate(terms):
                    more.append(place.load(place.of_z(k, skip=True)))
            added.append(terms)
        for place, values, terms in zip(places, _mixed(t, part, starts), added, strict=True):
            for k, (value, more) in enumerate(zip(values, terms, strict=True)):
                place.store(place.of_z(k), " + ".join([value, *more]))


def _mixed(t: NodeEmitter, part: Part, starts: list[int]) -> list[list[str]]:
    """Return the columns of a block of the Linear of the sums."""
    [out] = t.fused.form.outputs
    dim, results = t.linear.blocks_out[part.block].dim, []
    for term in t.linear.into(part.block):
        block = t.linear.blocks_in[term.x.segment]

        def row(u: str, k: int, block=block) -> str:
            return f"m_ptr + node * {out.size} + {block.offset} + {u} * {block.dim} + {k}"

        def matrix(u: str, start: int, term=term, block=block) -> str:
            v = t.column(start)
            mask = f"({u}[:, None] < {block.mul}) & ({v}[None, :] < {part.mul})"
            return t.load(f"{t.weights(term)} + {u}[:, None] * {part.mul} + {v}[None, :]", mask)

        results.append(t.times(row, matrix, starts, dim, block.mul, term.scale))
    return t.added(results, starts, dim)


def _write_gated(t: NodeEmitter, tile: Tile):
    """Write a tile of the output, from the pre-activation in memory."""
    with t.block(f"for column in tl.range(0, {tile.part.mul}, {t.columns}, num_stages=1):"):
        v = t.column(0)
        place = Place(t, tile.part, v)
        values = [place.load(place.of_z(k)) for k in range(place.block.dim)]
        if tile.gate:
            gate = Place(t, tile.gate, v)
            act = activated(t, tile.act, gate.load(gate.of_z(0)))
            values = [f"{act} * {value}" for value in values]
        else:
            values = [activated(t, tile.act, value) for value in values]
        for k, value in enumerate(values):
            out = f"out_ptr + node * {t.fused.sizes[0]} + {tile.offset}"
            place.store(f"{out} + {v} * {place.block.dim} + {k}", value)
