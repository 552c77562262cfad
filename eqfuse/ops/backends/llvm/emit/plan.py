"""What a pass reads and writes: the layouts of its operands, and where its scratch memory goes."""

from eqfuse.ops.backends.llvm.emit import ir
from eqfuse.ops.backends.llvm.emit.choices import Machine
from eqfuse.ops.backends.llvm.emit.layout import Layout, vectors
from eqfuse.ops.backends.llvm.emit.scalars import Scalars, split
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index, Operand

NODE_ARRAYS = {Index.SENDER: "senders", Index.RECEIVER: "receivers"}

Key = tuple[str, int]
"""An operand: "in" or "out", and its number."""


class Plan:
    """The operands of a pass, their layouts, and its scratch memory.

    Args:
      form, reduce_over, outputs: the outputs (numbers) of the form that this pass computes.
      copied: inputs that an earlier pass has packed, with the layout of the copy.
      dtype: "float32" or "float64".
      local: operands whose rows lie in the order in which the pass takes them.
      prefetches: whether a block asks for the rows of the next one that are gathered.
      parts: into how many the units are cut where outputs belong to other nodes than the units.

    Attributes:
      paths: the paths to the outputs.
      scalars: the numbers of a row.
      layouts: of the operands with channels.
      sums: outputs that belong to other nodes than the units, of which each part has a copy.
      block: rows of a block.
      scratch: bytes that a thread needs, at the places `own_place` (operands of a unit),
        `row_place` (operands of the rows of a block), `table` (of the scalars), `pointers` (to the
        rows that are read and written), `results` (to the rows of outputs in their arrays) and
        `ahead` (to the rows of the next block that are prefetched).
    """

    def __init__(
        self,
        form: Form,
        reduce_over: Index,
        outputs,
        copied,
        machine: Machine,
        dtype: str,
        local=(),
        prefetches: bool = False,
        parts: int = 0,
    ):
        self.form, self.reduce_over, self.outputs, self.copied = (
            form,
            reduce_over,
            sorted(outputs),
            copied,
        )
        self.local = frozenset(local)
        self.prefetches, self.parts = prefetches, parts
        self.machine, self.bytes = machine, ir.BYTES[dtype]
        self.widest = machine.vector_bytes // self.bytes
        self.paths = [p for p in form.paths if p.output.operand in outputs]
        self.scalars = Scalars()
        for path in self.paths:
            for _, number in split(form, path)[2]:
                if any(names for names, _ in number):
                    self.scalars.row(number)
        self._choose_layouts()
        senders = [("out", o) for o in self.outputs if form.outputs[o].index is Index.SENDER]
        self.sums = frozenset(senders if parts else ())
        self.scratch = 0
        self._allocate_all()

    def _choose_layouts(self):
        form, used, written = self.form, {}, {o: set() for o in self.outputs}
        for path in self.paths:
            for ref in path.factors:
                used.setdefault(ref.operand, set()).add(ref.segment)
            written[path.output.operand].add(path.output.segment)
        self.inputs = sorted(used)
        self.layouts = {}
        for i in self.inputs:
            operand = form.inputs[i]
            if operand.channels:
                self.layouts["in", i] = self.copied.get(i) or Layout.of(
                    operand, used[i], self.widest
                )
        for o in self.outputs:
            operand = form.outputs[o]
            if operand.channels:
                self.layouts["out", o] = Layout.of(operand, written[o], self.widest)

    def _allocate_all(self):
        own, row = {}, {}
        for side, n in self.operands():
            operand, size = self.operand(side, n), self.scratch_size(side, n)
            if size:
                (own if operand.index is self.reduce_over is not Index.ROW else row)[side, n] = size
        self.block = max(1, min(self.widest, self.machine.block_bytes // max(1, sum(row.values()))))
        self.own_place = {key: self._allocate(size) for key, size in own.items()}
        self.row_place = {key: self._allocate(size * self.block) for key, size in row.items()}
        self.row_size = row
        self.table = self._allocate(self.scalars.rows * self.widest * self.bytes)
        self.pointers = {key: self._allocate(8 * self.block) for key in self.operands()}
        self.results = {o: self._allocate(8 * self.block) for o in self.outputs}
        ahead = self._gathered() if self.prefetches else []
        self.ahead = {key: self._allocate(8 * self.block) for key in ahead}

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of the float64 sums over channels of one component, one in each lane."""
        return self.widest * ir.BYTES["float64"]

    def is_summed(self, key: Key) -> bool:
        """Return whether it is an output without channels: a sum over them, of many terms."""
        return key[0] == "out" and key not in self.layouts

    def operands(self) -> list[Key]:
        return [("in", i) for i in self.inputs] + [("out", o) for o in self.outputs]

    def operand(self, side: str, n: int) -> Operand:
        return (self.form.inputs if side == "in" else self.form.outputs)[n]

    def scratch_size(self, side: str, n: int) -> int:
        """Return bytes of scratch for a row of an operand; whole cache lines."""
        layout = self.layouts.get((side, n))
        if layout is None:
            if side == "in":
                return 0
            return sum(s.dim for s in self.operand(side, n).segments) * self.sum_bytes
        if not layout.packed or self.is_copied((side, n)) or (side, n) in self.sums:
            return 0
        return -(-layout.size * self.bytes // 64) * 64

    def is_copied(self, key: Key) -> bool:
        """Return whether an earlier pass has packed it."""
        return key[0] == "in" and key[1] in self.copied

    def row_elements(self, key: Key) -> int:
        """Return elements of a row of the array that holds an operand."""
        if key in self.sums:
            return self.layouts[key].size
        return self.copied[key[1]].size if self.is_copied(key) else self.operand(*key).size

    def _allocate(self, size: int) -> int:
        place, self.scratch = self.scratch, self.scratch + -(-size // 64) * 64
        return place

    def index_arrays(self) -> list[str]:
        """Return the index arrays that this pass reads."""
        used = {self.operand(*key).index for key in self.operands()} - {self.reduce_over}
        arrays = [
            *self.reduce_over.edge_arrays,
            *(NODE_ARRAYS[i] for i in NODE_ARRAYS if i in used),
        ]
        return [*arrays, NODE_ARRAYS[self.reduce_over]] if self.parts else arrays

    def is_owned(self, key: Key) -> bool:
        """Return whether a unit of the pass is one row of it."""
        return self.operand(*key).index is self.reduce_over is not Index.ROW

    @property
    def writes_rows(self) -> bool:
        """Return whether outputs belong to rows, and not to the unit that a pass takes."""
        return not all(self.is_owned(("out", o)) for o in self.outputs)

    def is_long(self, mul: int) -> bool:
        """Return whether a row of so many channels is long."""
        return self.machine.is_long(vectors(mul, self.widest))

    def _gathered(self) -> list[Key]:
        """Return inputs whose rows may be far apart and are read in place.

        There are none where short rows are written as well: such passes were not faster.
        """
        muls = {s.mul for layout in self.layouts.values() for s in layout.operand.segments}
        if self.reduce_over is Index.ROW or (self.writes_rows and not self.is_long(max(muls))):
            return []
        rows = [k for k in self.operands() if not self.is_owned(k) and k not in self.row_place]
        read = [k for k in rows if k[0] == "in" or k in self.sums]
        return [k for k in read if self.operand(*k).index is not Index.SHARED]

    def has_gaps(self, key: Key) -> bool:
        """Return whether elements of this output are added to by no path."""
        terms = {
            (path.output.segment, components[-1])
            for path in self.paths
            if path.output.operand == key[1]
            for components, _ in path.terms
        }
        operand = self.operand(*key)
        return len(terms) < sum(s.dim for s in operand.segments) or not operand.is_whole
