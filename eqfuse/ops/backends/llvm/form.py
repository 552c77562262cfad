"""The module of a form: a pass for each of what it sums over, and the copies that they read.

On a graph the receivers may be cut into parts. Each part then adds up what it sends to the senders
in a copy of its own, and a last pass adds the copies up.
"""

import functools

from eqfuse.ops.backends.llvm.channels import Groups
from eqfuse.ops.backends.llvm.layout import Copies, Layout, Machine, Plan, vectors
from eqfuse.ops.backends.llvm.rows import RowsEmitter
from eqfuse.ops.backends.llvm.text import (
    BYTES,
    INDEX_ROLES,
    NODE_INDEX,
    NODES,
    ROWS,
    Arguments,
    Axis,
    Function,
    KernelPasses,
    Module,
    Pass,
    Units,
)
from eqfuse.ops.ir.form import Form, Index, reductions

NODE, ORDER, PTR = "receivers", "receiver_order", "receiver_ptr"
"""The index arrays that cut the receivers into parts."""

UNITS = 64
"""Units of work of the pass that adds the copies up."""


def is_cut(form: Form, is_long) -> bool:
    """Return whether going by receivers moves less memory than one pass by sender and another."""
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
    at the end. On a graph their lengths are those of the edges, which nodes differ in; `pointers`
    are then the index arrays `NODE`, `ORDER` and `PTR`, and `%rows` counts the nodes.
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
    """The copies of an output by sender, one for each part, and their marks."""

    def __init__(self, layout: Layout, parts: int):
        self.layout, self.parts = layout, parts
        self.width = parts * (layout.size + 1)  # elements for each node: copies, then marks

    def places(self, f: Function, array: str, part: str) -> tuple[str, str]:
        """Return the addresses of the copy and the marks of a part; `%rows` counts the nodes."""
        nodes = f.times(part, "%rows")
        marks = f.at(array, f.times("%rows", self.parts), self.layout.size * f.bytes)
        return f.at(array, nodes, self.layout.size * f.bytes), f.at(marks, nodes, f.bytes)

    def row(self, f: Function, copy: str, marks: str, node: str) -> str:
        """Return the address of a node's row in the copy of a part, zeroed at its first use."""
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
        """Return the pass that adds the copies, by their key, up to the result, in order."""
        layout, size = self.layout, self.layout.size
        f = Function.of_pass(name, copies.dtype, layout.widest)
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
                    copies.call("unpack", f, layout, row, total)
        cost = 4 * size // layout.widest
        units = Units(Axis.NODES, count=UNITS)
        return Pass(name, f.text(), units, node_cost=cost, scratch=size * f.bytes)


def write_pass(plan: Plan, arguments: Arguments, copies: Copies, name: str, sums) -> Pass:
    """Return the pass that computes the outputs of a plan; `sums` are of those in `plan.sums`."""
    f = Function.of_pass(name, copies.dtype)
    base = {
        key: arguments.load(f, "copy" if plan.is_copied(key) else key[0], key[1])
        for key in plan.operands()
    }
    arrays = {n: arguments.load(f, "index", n) for n in plan.index_arrays()}
    rows = RowsEmitter(plan, f, copies, base, arrays)
    groups = Groups(rows)
    rows.sums = sums

    def write_units(first: str, last: str):
        with f.loop(last, start=first) as units:
            if plan.reduce_over is Index.ROW:
                start = f.times(units.index, plan.block)
                stop = f.minimum(f.plus(start, plan.block), "%rows")
            else:
                ptr = arrays[plan.reduce_over.edge_arrays[1]]
                start = f.load_index(ptr, units.index)
                stop = f.load_index(ptr, f.plus(units.index, 1))
            rows.begin_unit(units.index)
            groups.write_rows(units.index, start, stop)
            rows.finish_unit(units.index)

    if plan.parts:
        rows.num_rows = f.load_index(arrays[PTR], "%rows")
    rows.begin_pass()
    if plan.parts:
        with f.loop("%end", start="%begin") as parts:
            for key, copy in sums.items():
                array = arguments.load(f, "sum", key[1])
                rows.base[key], rows.marks[key] = copy.places(f, array, parts.index)
                f.zero(rows.marks[key], f.times("%rows", f.bytes))
            ends = parts.index, f.plus(parts.index, 1)
            first, last = (boundary(f, end, plan.parts, arrays) for end in ends)
            write_units(first, last)
    else:
        write_units("%begin", "%end")
    rows.finish_pass()
    by_row = plan.reduce_over is Index.ROW
    units = Units(Axis.ROWS, plan.block) if by_row else Units(Axis.NODES, count=plan.parts)
    return Pass(name, f.text(), units, groups.cost, scratch=plan.scratch)


@functools.lru_cache(maxsize=1024)
def generate(form: Form, dtype: str, machine: Machine, parts: int = 0) -> Module:
    """Return the module that computes a form on operands of one dtype, "float32" or "float64".

    `parts` are copies of what is summed by sender, where going by receivers is worth that; or 0.
    """
    return write(form, dtype, machine, parts).module(dtype)


def write(form: Form, dtype: str, machine: Machine, parts: int = 0) -> KernelPasses:
    """Return the passes that compute a form."""
    widest = machine.vector_bytes // BYTES[dtype]
    copies = Copies(dtype, widest)
    passes = reductions(form)
    if parts and is_cut(form, lambda mul: machine.is_long(vectors(mul, widest))):
        passes = {Index.RECEIVER: list(range(len(form.outputs)))}
    else:
        parts = 0
    copied = _copied(form, passes, widest)
    plans = [
        Plan(form, reduce_over, outputs, copied, machine, dtype, prefetches=True, parts=parts)
        for reduce_over, outputs in passes.items()
    ]
    sums = {key: Sums(p.layouts[key], parts) for p in plans for key in sorted(p.sums)}
    index_arrays = dict.fromkeys(name for plan in plans for name in plan.index_arrays())
    # they are checked in this order: errors of senders and receivers are the clearest
    index_arrays = tuple(sorted(index_arrays, key=lambda n: INDEX_ROLES[n][1] != NODE_INDEX))
    arguments = _arguments(form, dtype, index_arrays, copied, sums)
    written = [_copy_pass(form, copied, arguments, copies)] if copied else []
    written += [
        write_pass(p, arguments, copies, f"pass_{p.reduce_over.value}", sums) for p in plans
    ]
    written += [
        s.write_pass(f"pass_sum_{o}", ("sum", o), ("out", o), copies, arguments)
        for (_, o), s in sums.items()
    ]
    widths = (*(layout.size for layout in copied.values()), *(s.width for s in sums.values()))
    return KernelPasses(arguments, copies.functions, written, index_arrays, widths)


def _copied(form: Form, passes, widest: int) -> dict[int, Layout]:
    """Return the inputs by node that edges of some pass read, and that have to be packed for it."""
    layouts = {}
    for reduce_over, outputs in passes.items():
        part = form.restrict(tuple(o in outputs for o in range(len(form.outputs))))
        for i, (operand, used) in enumerate(zip(form.inputs, part.used_inputs(), strict=True)):
            is_gathered = operand.index.is_node and operand.index is not reduce_over
            if used and operand.channels and is_gathered:
                refs = {s for p in form.paths for s in p.factors if s.operand == i}
                layouts[i] = Layout.of(operand, {s.segment for s in refs}, widest)
    return {i: layout for i, layout in sorted(layouts.items()) if layout.packed}


def _copy_pass(form: Form, copied, arguments: Arguments, copies: Copies) -> Pass:
    f = Function.of_pass("pass_copy", copies.dtype)
    pointers = {i: (arguments.load(f, "in", i), arguments.load(f, "copy", i)) for i in copied}
    cost = 0
    with f.loop("%end", start="%begin") as nodes:
        for i, layout in copied.items():
            row = f.at(pointers[i][0], nodes.index, form.inputs[i].size * f.bytes)
            copy = f.at(pointers[i][1], nodes.index, layout.size * f.bytes)
            copies.call("pack", f, layout, row, copy)
            cost += 4 * layout.size // layout.widest
    return Pass("pass_copy", f.text(), Units(Axis.NODES), node_cost=cost)


def _arguments(form: Form, dtype: str, index_arrays, copied: dict[int, Layout], sums) -> Arguments:
    arguments = Arguments(dtype)

    def add(side: str, n: int, operand, width: int, name: str):
        rows = {Index.ROW: ROWS, Index.SHARED: -1}.get(operand.index, NODES)
        arguments.add((side, n), rows, width, name)

    for i, operand in enumerate(form.inputs):
        add("in", i, operand, operand.size, operand.name)
    arguments.add_indices(index_arrays)
    arguments.end()
    for o, operand in enumerate(form.outputs):
        add("out", o, operand, operand.size, operand.name)
    for i, layout in copied.items():
        add("copy", i, form.inputs[i], layout.size, f"copy of {form.inputs[i].name}")
    for (_, o), s in sums.items():
        add("sum", o, form.outputs[o], s.width, f"sums of {form.outputs[o].name} by part")
    return arguments
