"""What the two kernels of a fused op on a graph share: a program with the rows of its node.

A row of a node times a matrix: threads side by side have columns, warps have some of the rows each,
and at the end their sums are added, always in one order. What one thread has written and another
reads lies in memory, with a barrier between.
"""

import dataclasses

from eqfuse.ops.backends.triton.emit.emitter import DenseEmitter, power_of_two
from eqfuse.ops.backends.triton.emit.form_kernel import ADDED
from eqfuse.ops.backends.triton.emit.form_operands import WARP
from eqfuse.ops.backends.triton.spec import KernelSpec
from eqfuse.ops.ir.fused import Fused
from eqfuse.ops.ir.linear_form import Term

COLUMNS = WARP
"""Columns of a tile of a matrix: those that a warp loads at once."""
MOST_ROWS = 16
"""Rows of a tile for each warp, at most: loads that a thread has on the way."""
SUMS = 48
"""Sums of rows that a thread has, at most."""


@dataclasses.dataclass(frozen=True)
class NodeKernel:
    """A kernel of which each program has a node, and the names of its inputs."""

    spec: KernelSpec
    inputs: tuple[str, ...]


class NodeEmitter(DenseEmitter):
    """Writes what a program does with the rows of its node, whose number is `node`."""

    def __init__(self, fused: Fused, dtype: str, threads: int):
        super().__init__(dtype)
        self.fused, self.linear, self.warps = fused, fused.linear, max(1, threads // WARP)
        blocks = (*self.linear.blocks_in, *self.linear.blocks_out)
        self.row = "node"
        self.columns = min(COLUMNS, power_of_two(max(b.mul for b in blocks)))
        self.sums: set[int] = set()
        self.parameters = [f"p{n}" for n in range(len(self.linear.parameters))]
        self.integers = ["set_index"] if fused.num_sets else []

    def kernel(self, stem: str, note: str, inputs, integers, outputs) -> NodeKernel:
        """Return the kernel of the lines so far."""
        names = (*inputs, *integers)
        types = dict.fromkeys(outputs, self.dtype)
        spec = self.spec(stem, note, names, integers, (), types, self.warps, self.sums)
        return NodeKernel(spec, names)

    def read_set(self):
        """Read which set of weights the node has, if there are several."""
        if self.fused.num_sets:
            self.emit("set_index = tl.load(set_index_ptr + node).to(tl.int64)")

    def weights(self, term: Term) -> str:
        """Return the pointer to a matrix or a bias."""
        shape, pointer = self.linear.parameters[term.w - 1].shape, f"p{term.w - 1}_ptr"
        if not self.fused.num_sets:
            return pointer
        return f"{pointer} + set_index * {shape[0] if len(shape) == 1 else shape[0] * shape[1]}"

    def column_groups(self, mul: int, dim: int) -> tuple[str, list[int]]:
        """Return a loop over `mul` columns, and where in a turn of it each tile begins.

        Some tiles share the loads of the row of `dim` components that they are multiplied with.
        """
        starts = range(0, mul, self.columns)[: 4 if dim == 1 else 2]
        step = len(starts) * self.columns
        return f"for column in tl.range(0, {mul}, {step}, num_stages=1):", list(starts)

    def column(self, start: int) -> str:
        """Return the numbers of the columns of a tile."""
        return self.name(f"column + {start} + tl.arange(0, {self.columns})")

    def mask_of(self, v: str, mul: int) -> str:
        """Return which columns of a tile a part of so many has."""
        return f"{v} < {mul}"

    def times(self, row, matrix, starts: list[int], dim: int, size: int, scale: float):
        """Return scale * row times a matrix, [columns] for each tile and component.

        Args:
          row: called with the numbers of rows of the matrix and a component, gives an address.
          matrix: called with the numbers of rows and the start of a tile, gives the tile.
          size: rows of the matrix.
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
                continue
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
