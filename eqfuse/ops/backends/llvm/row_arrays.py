"""The arrays of a program that runs by rows, and which of them lie in the memory of a thread."""

from eqfuse.ops.backends.llvm.layout import NODE, ORDER, PTR, Machine
from eqfuse.ops.backends.llvm.linear import is_wide, transposed
from eqfuse.ops.backends.llvm.text import NODES, ROWS, Arguments
from eqfuse.ops.ir.linear import LinearForm
from eqfuse.ops.ir.program import Extent, Program

MOST_ROWS, FEWEST_TOGETHER = 32, 8
"""Rows that go through a program together, at most and at least."""


class Arrays:
    """The arrays of a program, and where each is: an argument, a result, or in scratch memory.

    Attributes:
      arguments: the arrays that XLA hands over; local arrays and words follow them in the table.
      block: rows that go through the program together.
      scratch: bytes that a thread needs.
    """

    def __init__(self, program: Program, parts: int, machine: Machine):
        self.program, self.parts, self.scratch = program, parts, 0
        row_bytes = sum(program.arrays[n].bytes for n in program.local)
        fitting = machine.sequence_bytes // row_bytes // FEWEST_TOGETHER * FEWEST_TOGETHER
        self.block = max(FEWEST_TOGETHER, min(MOST_ROWS, fitting))
        self.transposed = transposed_weights(program)
        self.index_arrays = (NODE, ORDER, PTR) if program.on_graph else ()
        self.sums = [n for n in program.outputs if program.arrays[n].extent is Extent.WHOLE]
        self.arguments = Arguments(program.arrays[0].dtype)
        for n in program.inputs:
            self._add("array", n)
        for n in self.transposed:
            self._add("transposed", n)
        self.arguments.add_indices(self.index_arrays)
        self.arguments.end()
        for n in program.outputs:
            self._add("array", n)
        for n in self.sums:
            self._add("sum", n)
        self.local: dict[tuple, tuple[int, int]] = {}

    def add_local(self, key: tuple, row_bytes: int):
        """Add an array of a block of rows in scratch memory."""
        self.arguments.add_word(key)
        self.local[key] = (self.allocate(self.block * row_bytes), row_bytes)

    def allocate(self, size: int) -> int:
        place, self.scratch = self.scratch, self.scratch + -(-size // 64) * 64
        return place

    def _add(self, side: str, n: int):
        """Add an array that XLA hands over."""
        array = self.program.arrays[n]
        rows = -(self.parts if side == "sum" else 1)
        rows = {Extent.ROWS: ROWS, Extent.NODES: NODES}.get(array.extent, rows)
        self.arguments.add((side, n), rows, array.size, f"{side} {n} of a sequence")


def num_parts(program: Program, num_rows: int, num_nodes: int) -> int:
    """Return how many parts the rows or nodes are cut into; 0 where one kernel does not pay."""
    if any(map(is_wide, program.linear_forms)):
        return 0
    parts = 16 if num_rows < 8192 else 64
    return min(parts, num_nodes) if program.on_graph else parts


def transposed_weights(program: Program) -> tuple[int, ...]:
    """Return the inputs, weights, that some step reads transposed."""
    linear_forms = (s for s in program.multilinear if isinstance(s.form, LinearForm))
    return tuple(sorted({s.operands[i] for s in linear_forms for i in transposed(s.form)}))
