"""What a sequence reads and writes: its arrays, and which of them lie in the memory of a thread."""

from eqfuse.ops.backends.llvm.emit import ir
from eqfuse.ops.backends.llvm.emit.arguments import NODES, ROWS, Arguments
from eqfuse.ops.backends.llvm.emit.linear_layouts import is_wide, transposed, width_of
from eqfuse.ops.ir.form import Index
from eqfuse.ops.ir.linear_form import LinearForm, Weights
from eqfuse.ops.ir.sequence import StepSequence

MOST_ROWS, FEWEST_TOGETHER, CACHE = 32, 8, 1 << 20
"""Rows that go through a sequence together, and the bytes of all that lies between the steps."""

FEWEST_ROWS = 256
"""Rows from which on a sequence is one kernel."""

ORDER, PTR, NODE = "receiver_order", "receiver_ptr", "receivers"


class Arrays:
    """The arrays of a sequence, and where each is: an argument, a result, or in scratch memory.

    Attributes:
      arguments: the arrays that XLA hands over; local arrays and words follow them in the table.
      block: rows that go through the sequence together.
      scratch: bytes that a thread needs.
    """

    def __init__(self, sequence: StepSequence, parts: int, dtype: str):
        self.sequence, self.parts, self.scratch = sequence, parts, 0
        row_bytes = ir.BYTES[dtype] * sum(sequence.operands[n].size for n in sequence.local)
        fitting = CACHE // row_bytes // FEWEST_TOGETHER * FEWEST_TOGETHER
        self.block = max(FEWEST_TOGETHER, min(MOST_ROWS, fitting))
        self.transposed = transposed_weights(sequence)
        self.index_arrays = (NODE, ORDER, PTR) if sequence.on_graph else ()
        self.sums = [n for n in sequence.outputs if isinstance(sequence.operands[n], Weights)]
        self.arguments = Arguments(dtype)
        for n in range(sequence.num_inputs):
            self._add("array", n)
        for n in self.transposed:
            self._add("transposed", n)
        self.arguments.add_indices(self.index_arrays)
        self.arguments.end()
        for n in sequence.outputs:
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
        operand = self.sequence.operands[n]
        if isinstance(operand, Weights):
            rows, width = -(self.parts if side == "sum" else 1), width_of(operand)
        else:
            by_node = getattr(operand, "index", Index.ROW) is not Index.ROW
            rows, width = NODES if by_node else ROWS, operand.size
        self.arguments.add((side, n), rows, width, f"{side} {n} of a sequence")


def num_parts(sequence: StepSequence, num_rows: int, num_nodes: int) -> int:
    """Into how many parts the rows or nodes are cut; 0 where a kernel of its own does not pay."""
    linear_forms = [s.what for s in sequence.steps if isinstance(s.what, LinearForm)]
    if num_rows < FEWEST_ROWS or any(is_wide(linear_form) for linear_form in linear_forms):
        return 0
    parts = 16 if num_rows < 8192 else 64
    return min(parts, num_nodes) if sequence.on_graph else parts


def transposed_weights(sequence: StepSequence) -> tuple[int, ...]:
    """Return the inputs, weights, that some step reads transposed."""
    linear_forms = (s for s in sequence.steps if isinstance(s.what, LinearForm))
    return tuple(sorted({s.reads[i] for s in linear_forms for i in transposed(s.what)}))
