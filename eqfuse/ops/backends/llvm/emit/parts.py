"""Parts of the receivers: a fixed number, each with its own copy of what is summed by sender.

A pass over the receivers has what a node gathers at hand, for all its edges: it reads each edge
once, for gradients by sender, by receiver and by edge. What it adds to senders goes to a copy for
each part. A last pass adds the copies up in the order of the parts, so that results depend on the
number of parts and not on that of the threads. Of a copy only the rows that a part adds to are
used; a mark for each row says which.
"""

import functools

from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.layout import Copies, Layout
from eqfuse.ops.backends.llvm.emit.module import SIGNATURE, Axis, Pass, Units
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.operands import Index

NODE, ORDER, PTR = "receivers", "receiver_order", "receiver_ptr"
"""The index arrays that cut the receivers into parts."""

UNITS = 64
"""Units of work of the pass that adds the copies up."""


def is_cut(form: Form, is_long) -> bool:
    """Return whether going by receivers moves less memory than one pass by sender and another.

    Args:
      is_long: of a number of channels, see `choices.Machine`.
    """
    operands = (*form.inputs, *form.outputs)
    if not all(is_long(s.mul) for o in operands if o.channels for s in o.segments):
        return False
    size = {
        (side, index): sum(o.size for o in side_operands if o.index is index)
        for side, side_operands in (("in", form.inputs), ("out", form.outputs))
        for index in Index
    }
    scattered = [o for o in form.outputs if o.index is Index.SENDER]
    if not scattered or not all(o.channels for o in scattered):
        return False
    gathered = size["in", Index.RECEIVER]
    if size["out", Index.RECEIVER]:
        gathered += size["in", Index.SENDER] + size["in", Index.ROW]
    return gathered > size["in", Index.SENDER] + 2 * size["out", Index.SENDER]


def boundary(f: Function, unit: str, parts: int, pointers: dict[str, str] | None) -> str:
    """Return the row, or on a graph the node, that a part starts at.

    The first half of the parts are twice as long as the others: no thread is left with a long one
    at the end. On a graph their lengths are those of the edges, which nodes differ in.

    Args:
      pointers: the index arrays `NODE`, `ORDER` and `PTR` of a graph, whose nodes `%rows` counts.
    """
    half = parts // 2
    share = f.minimum(f.times(unit, 2), f.plus(unit, half))
    rows = f.load_index(pointers[PTR], "%rows") if pointers else "%rows"
    row = f.value(f"sdiv i64 {f.times(share, rows)}, {parts + half}")
    if not pointers:
        return row
    within = f.maximum(f.minimum(row, f.plus(rows, -1)), "0")
    node = f.load_index(pointers[NODE], f.load_index(pointers[ORDER], within))
    is_first = f.value(f"icmp eq i64 {unit}, 0")
    is_end = f.value(f"icmp eq i64 {unit}, {parts}")
    node = f.value(f"select i1 {is_first}, i64 0, i64 {node}")
    return f.value(f"select i1 {is_end}, i64 %rows, i64 {node}")


class Sums:
    """The copies of an output by sender, one for each part, and their marks.

    Attributes:
      width: elements for each node of the array that holds them: copies, then marks.
    """

    def __init__(self, layout: Layout, parts: int):
        self.layout, self.parts = layout, parts
        self.width = parts * (layout.size + 1)

    def places(self, f: Function, array: str, part: str) -> tuple[str, str]:
        """Return where the copy and the marks of a part are; `%rows` counts the nodes."""
        nodes = f.times(part, "%rows")
        marks = f.at(array, f.times("%rows", self.parts), self.layout.size * f.bytes)
        return f.at(array, nodes, self.layout.size * f.bytes), f.at(marks, nodes, f.bytes)

    def row(self, f: Function, copy: str, marks: str, node: str) -> str:
        """Return where the row of a node is in the copy of a part, zeroed when it is first used."""
        row, mark = f.at(copy, node, self.layout.size * f.bytes), f.at(marks, node, f.bytes)

        def begin():
            f.zero(row, self.layout.size * f.bytes)
            f.do(f"store i8 1, ptr {mark}, align 1")

        f.either(self._is_used(f, mark), lambda: None, begin)
        return row

    @staticmethod
    def _is_used(f: Function, mark: str) -> str:
        return f.value(f"icmp ne i8 {f.value(f'load i8, ptr {mark}, align 1')}, 0")

    def _add(self, f: Function, row: str, total: str):
        for elements, n in f.vector_loops(self.layout.size):
            places = [f.at(p, elements.index, f.bytes) for p in (total, row)]
            here, there = (f.load(p, n) for p in places)
            f.store(f.add(here, there, n), places[0], n)

    def write_pass(self, name: str, array: str, result: str, copies: Copies, arguments) -> Pass:
        """Return the pass that adds the copies up, in the order of the parts.

        Args:
          array, result: the keys of the copies and of the output among the arguments.
        """
        layout, size = self.layout, self.layout.size
        f = Function(f"define internal void @{name}{SIGNATURE}", copies.dtype, layout.widest)
        array, result = arguments.load(f, *array), arguments.load(f, *result)
        with f.loop("%end", start="%begin") as units:
            shares = (units.index, f.plus(units.index, 1))
            first, last = (f.value(f"sdiv i64 {f.times(s, '%rows')}, {UNITS}") for s in shares)
            with f.loop(last, start=first) as nodes:
                row = f.at(result, nodes.index, layout.operand.size * f.bytes)
                total = "%scratch" if layout.packed else row
                f.zero(total, size * f.bytes)
                with f.loop(str(self.parts)) as parts:
                    copy, marks = self.places(f, array, parts.index)
                    copy = f.at(copy, nodes.index, size * f.bytes)
                    is_used = self._is_used(f, f.at(marks, nodes.index, f.bytes))
                    add = functools.partial(self._add, f, copy, total)
                    f.either(is_used, add, lambda: None)
                if layout.packed:
                    if not layout.covers_row():
                        f.zero(row, layout.operand.size * f.bytes)
                    copies.unpack(f, layout, row, total)
        cost = 4 * size // layout.widest
        units = Units(Axis.NODES, count=UNITS)
        return Pass(name, f.text(), units, node_cost=cost, scratch=size * f.bytes)
