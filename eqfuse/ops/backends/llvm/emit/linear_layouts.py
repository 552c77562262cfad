"""The terms of a linear form by what they add to, and the arrays of its native kernel."""

import dataclasses
import math

from eqfuse.ops.backends.llvm.emit import ir
from eqfuse.ops.backends.llvm.emit.arguments import NODES, ROWS, Arguments
from eqfuse.ops.backends.llvm.emit.choices import Machine
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import Copies, Layout, padded
from eqfuse.ops.backends.llvm.emit.module import SIGNATURE
from eqfuse.ops.ir.linear_form import Block, LinearForm, Rows, Term, Weights
from eqfuse.ops.ir.operands import Operand, Segment

Lanes = tuple[int, int]
"""A vector of channels: the first, and how many."""

Key = tuple[str, int | str]
"""An array of a kernel: "in", "transposed", "index", "out" or "copy", and which."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A row, and its position in the order in which a kernel takes them; i64."""

    position: str
    row: str


@dataclasses.dataclass(frozen=True)
class MatrixProduct:
    """A term that adds to a block of rows: scale * weights * source.

    Attributes:
      source: (operand, block), or None for a bias.
      weights: "in" or "transposed", and the number of the input.
    """

    source: tuple[int, Block] | None
    weights: tuple[str, int]
    scale: float


class Layouts:
    """The terms of a linear form by what they add to, and the arrays of its kernel.

    Arguments of the kernel: the inputs, weights as [sets, elements]; those of `transposed`; index
    arrays. Results: the outputs, alike; copies, [rows, elements], of the blocks of rows that
    gradients of weights read with their channels side by side.

    Rows of `local` inputs and outputs, by number, are those of a block that a sequence works on: by
    position, not by row, and each component with its channels side by side.
    """

    def __init__(self, linear_form: LinearForm, dtype: str, machine: Machine, local=()):
        self.linear_form, self.dtype, self.registers = linear_form, dtype, machine.registers
        self.local = frozenset(local)
        self.widest = machine.vector_bytes // ir.BYTES[dtype]
        self.copies = Copies(dtype, self.widest)
        self.gradients: dict[int, list[Term]] = {}
        self.products: dict[int, dict[Block, list[MatrixProduct]]] = {}
        for term in linear_form.terms:
            self._sort(term)
        read = [(t.z.operand, self.block(t.z)) for terms in self.gradients.values() for t in terms]
        apart = (key for key in dict.fromkeys(read) if key[0] not in self.local)
        self.packed = [key for key in apart if key[1].dim > 1]
        self.index_arrays = ("index",) * bool(linear_form.num_sets)
        self.index_arrays += ("order", "offsets") * bool(linear_form.num_sets and self.gradients)
        self.arguments = Arguments(dtype)
        for i, operand in enumerate(linear_form.inputs):
            self._add("in", i, operand)
        for i in transposed(linear_form):
            self._add("transposed", i, linear_form.inputs[i])
        self.arguments.add_indices(self.index_arrays)
        self.arguments.end()
        for o, operand in enumerate(linear_form.outputs):
            self._add("out", o, operand)
        for n, (_, block) in enumerate(self.packed):
            self.arguments.add(
                ("copy", n), ROWS, self.copy_width(block), f"copy {n} of a linear form"
            )

    def _add(self, side: str, n: int, operand: Rows | Weights):
        rows = ROWS if isinstance(operand, Rows) else NODES
        self.arguments.add((side, n), rows, width_of(operand), f"{side} {n} of a linear form")

    def _sort(self, term: Term):
        o = self.linear_form.output_of(term)
        if isinstance(self.linear_form.outputs[o], Weights):
            self.gradients.setdefault(o, []).append(term)
            return
        forward = term.z.operand >= len(self.linear_form.inputs)
        source, target = (term.x, term.z) if forward else (term.z, term.x)
        product = MatrixProduct(
            source and (source.operand, self.block(source)),
            ("in" if forward else "transposed", term.w),
            term.scale,
        )
        blocks = self.products.setdefault(o, {})
        blocks.setdefault(self.block(target), []).append(product)

    def block(self, slot) -> Block:
        return self.linear_form.operands[slot.operand].blocks[slot.block]

    def function(self, name: str) -> Function:
        return Function(f"define internal void @{name}{SIGNATURE}", self.dtype)

    def array(self, f: Function, side: str, n) -> str:
        return self.arguments.load(f, side, n)

    def operand(self, f: Function, n: int) -> str:
        """Return the array of an input or an output."""
        inputs = len(self.linear_form.inputs)
        return self.array(f, "in", n) if n < inputs else self.array(f, "out", n - inputs)

    def lanes(self, mul: int, most: int) -> list[list[Lanes]]:
        """Return `mul` channels as vectors of powers of two, at most `most` of them together."""
        result, start = [], 0
        while start < mul:
            result.append((start, min(self.widest, 1 << ((mul - start).bit_length() - 1))))
            start += result[-1][1]
        return [result[n : n + most] for n in range(0, len(result), most)]

    def start(self, f: Function, n: int, array: str, place: Place) -> str:
        """Return where the row at a place of an input or an output starts."""
        index = place.position if n in self.local else place.row
        return f.at(array, index, self.linear_form.operands[n].size * f.bytes)

    def strides(self, n: int, block: Block) -> tuple[int, int]:
        """Return elements from a channel to the next, and from a component to the next."""
        return (1, block.mul) if n in self.local else (block.dim, 1)

    def copy_width(self, block: Block) -> int:
        """Return elements of a block with its channels side by side, padded to whole vectors."""
        return block.dim * padded(block.mul, self.widest)

    def layout(self, block: Block, size: int) -> Layout:
        segment = Segment(block.offset, block.mul, block.dim, block.dim, 1)
        return Layout(Operand("rows", size, (segment,), True), (0,), True, self.widest)


def transposed(linear_form: LinearForm) -> tuple[int, ...]:
    """Return the weights that are read transposed: those of terms whose output is x."""
    n = len(linear_form.inputs)
    return tuple(sorted({t.w for t in linear_form.terms if t.x is not None and t.x.operand >= n}))


def is_wide(linear_form: LinearForm) -> bool:
    """Return whether XLA's matmuls, which are blocked for every cache, are faster."""
    dims = {b.dim for o in linear_form.operands if isinstance(o, Rows) for b in o.blocks}
    least = 256 if dims == {1} else 512
    shapes = [o.shape for o in linear_form.operands if isinstance(o, Weights)]
    return not linear_form.num_sets and any(len(s) == 2 and min(s) >= least for s in shapes)


def width_of(operand: Rows | Weights) -> int:
    """Return elements of a row, or of the weights of one set."""
    return operand.size if isinstance(operand, Rows) else math.prod(operand.shape)


def write_copies(layouts: Layouts, f: Function, order: str | None = None) -> int:
    """Copy the blocks of `packed` to [dim, mul]; what that costs a row.

    Rows `%begin` to `%end`, or what `order` has there; copies are in that order.
    """
    cost = 0
    sources = [layouts.operand(f, n) for n, _ in layouts.packed]
    targets = [layouts.array(f, "copy", n) for n in range(len(layouts.packed))]
    with f.loop("%end", start="%begin") as rows:
        row = f.load_index(order, rows.index) if order else rows.index
        for (n, block), source, target in zip(layouts.packed, sources, targets, strict=True):
            size, width = layouts.linear_form.operands[n].size, layouts.copy_width(block)
            copy = f.at(target, rows.index, width * f.bytes)
            row_start = layouts.start(f, n, source, Place(rows.index, row))
            layouts.copies.pack(f, layouts.layout(block, size), row_start, copy)
            cost += 4 * width // layouts.widest
    return cost
