"""Programs as native kernels, in the two ways in which they run.

Whole: the steps one after the other, on one thread. Arrays between them lie in scratch memory,
which an array leaves to others after its last use. Steps of equal text are one function, so that
code does not grow with the number of equal layers.

By rows: all steps for a block of rows, then for the next one. What lies between the steps is in the
scratch memory of a thread, and so in its cache: rows by position, each component with its channels
side by side. Every step finds its arrays in a table of pointers; that of a local array points so
far before it that the first position of the block is its first row. On a graph, positions are those
of the edges in the order of their receivers. The rows (or nodes) are cut into parts, whose number
depends on the problem and not on the threads; each part has a row of a gradient of weights.

For example, a sequence of two steps on eight numbers, b = a * a and c = -b, is one loop, in which
b stays in a register. The function that XLA's call runs finds the arrays in a table, and calls it.

    %v5 = load <4 x float>, ptr %v4, align 4
    %v6 = fmul contract <4 x float> %v5, %v5
    %v7 = fneg <4 x float> %v6
    %v8 = mul nsw i64 %i1, 4
    %v9 = getelementptr i8, ptr %a1, i64 %v8
    store <4 x float> %v7, ptr %v9, align 4
    ...
    define internal void @steps0(ptr %buffers, i64 %begin, i64 %end, i64 %rows, ptr %scratch) {
    entry:
    ...
    %v3 = load ptr, ptr %buffers, align 8
    %v4 = getelementptr i8, ptr %buffers, i64 8
    %v5 = load ptr, ptr %v4, align 8
    call void @step_8082de37b5fe2c9b(ptr %v3, ptr %v5)
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math

from eqfuse.ops.backends.llvm import form as native_form
from eqfuse.ops.backends.llvm import functions, linear
from eqfuse.ops.backends.llvm.channels import Groups
from eqfuse.ops.backends.llvm.layout import Copies, Machine, Plan
from eqfuse.ops.backends.llvm.linear import Layouts, transposed
from eqfuse.ops.backends.llvm.row_access import RowsEmitter
from eqfuse.ops.backends.llvm.steps import WRITERS
from eqfuse.ops.backends.llvm.text import (
    ENDS_OF,
    NODES,
    ROWS,
    Arguments,
    Entry,
    Function,
    KernelPasses,
    Module,
    Pass,
)
from eqfuse.ops.ir.form import Form, Index, Operand, Segment
from eqfuse.ops.ir.fused import Activated
from eqfuse.ops.ir.program import BYTES, Array, Copy, FormStep, Program, Step

LONGEST = 256
"""Steps in a function, at most: LLVM takes more than twice as long for one of twice as many."""


@functools.lru_cache(maxsize=64)
def generate(program: Program, dtype: str, machine: Machine) -> Module:
    """Return the module that computes a program whose forms are of one dtype.

    Arguments: the inputs, [1, size], index arrays [size]. Results: the outputs, [1, size], and
    scratch memory.
    """
    return _ProgramEmitter(program, dtype, machine).module()


_written = functools.lru_cache(maxsize=1024)(native_form.write)


def prepared(program: Program, dtype: str, machine: Machine) -> Program:
    """Return the same with all arrays that forms need: transposed weights, copies of rows.

    The operands of a form are then the arguments of its kernel and those that are written its
    results, in the order of its table.
    """
    arrays, result = list(program.arrays), []
    known: dict[tuple[int, int], int] = {}

    def new(size: int) -> int:
        arrays.append(Array(size, dtype))
        return len(arrays) - 1

    for step in program.steps:
        if not isinstance(step, FormStep):
            result.append(step)
            continue
        form, operands = step.form, list(step.operands)
        written = _written(form, dtype, machine)
        for i in transposed(form) if form.has_matrices and not form.num_sets else ():
            rows, columns = form.inputs[i].matrix
            key = step.operands[i], rows
            if key not in known:
                known[key] = new(rows * columns)
                axes = (columns, rows), (1, columns), (rows, 1)
                result.append(Copy(key[:1], known[key], *axes))
            operands.append(known[key])
        by_name = dict(step.indices)
        operands += [by_name[name] for name in written.arguments.index_arrays]
        copies = written.arguments.results[len(step.writes) :]
        shapes = [copy.shape(step.num_rows, step.num_nodes) for copy in copies]
        writes = (*step.writes, *map(new, map(math.prod, shapes)))
        result.append(
            dataclasses.replace(step, operands=tuple(operands), indices=(), writes=writes)
        )
    return dataclasses.replace(program, arrays=tuple(arrays), steps=tuple(result))


class _ProgramEmitter:
    def __init__(self, program: Program, dtype: str, machine: Machine):
        self.dtype, self.machine = dtype, machine
        self.graphs = [dict(s.indices) for s in program.steps if isinstance(s, FormStep)]
        self.program = prepared(program, dtype, machine).in_loops
        self.arrays, self.views = self.program.arrays, {n: of for n, *of in self.program.views}
        self.widest = machine.vector_bytes // BYTES[dtype]
        self.texts: dict[str, str] = {}  # by name
        self.kernels: dict[Form, str] = {}
        self.passes: list[Pass] = []
        self.places, self.scratch = self.program.places()
        self.arguments = self._arguments()

    def module(self) -> Module:
        """Return the kernel; its passes are so many steps each."""
        for first in range(0, len(self.program.steps), LONGEST):
            name = f"steps{len(self.passes)}"
            self.main = Function(self.dtype)
            self.most, self.pointers = 0, {}
            self.memory = self.arguments.load(self.main, "scratch", 0)
            for step in self.program.steps[first : first + LONGEST]:
                (self._form_step if isinstance(step, FormStep) else self._step)(step)
            self.passes.append(Pass(name, self.main, ROWS, count=1, scratch=self.most))
        # its scratch memory is that of all threads, and so a result
        elements = max(1, self.scratch // BYTES[self.dtype])
        scratch = Entry(self.dtype, -1, elements, "scratch memory of a sequence")
        self.arguments.entries.append(scratch)
        return KernelPasses(self.arguments, self.texts, self.passes, self._orders()).module()

    def _orders(self) -> list[tuple[int, ...]]:
        """Return the places of orders that kernels read, with those of their ends and offsets."""
        found = {}
        for arrays in self.graphs:
            for name, others in ENDS_OF.items():
                keys = [("in", arrays.get(n)) for n in (name, *others)]
                if all(key in self.arguments.numbers for key in keys):
                    found[tuple(self.arguments.numbers[key] for key in keys)] = None
        return list(found)

    def _arguments(self) -> Arguments:
        arguments = Arguments(self.dtype)
        indices = {n: (name, limit) for n, name, limit in self.program.indices}
        for side, numbers in (("in", self.program.inputs), ("out", self.program.outputs)):
            for k, n in enumerate(numbers):
                array = self.arrays[n]
                entry = Entry(array.dtype, -1, array.size, f"{side}put {k} of a sequence")
                if side == "in" and n in indices:
                    name, limit = indices[n]
                    entry = Entry.of_index(name, array.size, limit)
                arguments.add_entry((side, n), entry)
            if side == "in":
                arguments.end()
        arguments.add_word(("scratch", 0))
        return arguments

    def _pointer(self, n: int) -> str:
        if n not in self.pointers:
            if n in self.places:
                result = self.main.at(self.memory, self.places[n])
            elif n in self.views:
                base, first = self.views[n]
                result = self.main.at(self._pointer(base), first * BYTES[self.arrays[n].dtype])
            else:
                side = "in" if ("in", n) in self.arguments.numbers else "out"
                result = self.arguments.load(self.main, side, n)
            self.pointers[n] = result
        return self.pointers[n]

    def _step(self, step: Step):
        """Call the function of a step that is no form, which equal ones share."""
        names = {n: f"%a{k}" for k, n in enumerate(self.program.in_memory(step))}
        parameters = ", ".join(f"ptr {name}" for name in names.values())
        f = Function(self.dtype, self.widest, parameters)
        WRITERS[type(step)](f, step, self.arrays, names)
        self.texts |= f.declared
        name = f"step_{hashlib.sha256(f.text('NAME').encode()).hexdigest()[:16]}"
        self.texts[name] = f.text(name)
        pointers = {n: self._pointer(n) for n in names}
        if isinstance(step, Copy):  # where it starts is no part of its function
            width = BYTES[self.arrays[step.write].dtype]
            starts = [(step.write, step.first_out), *((n, step.first_in) for n in step.reads)]
            for n, first in starts:
                if n in pointers:
                    pointers[n] = self.main.at(pointers[n], first * width)
        arguments = ", ".join(f"ptr {pointer}" for pointer in pointers.values())
        self.main.do(f"call void @{name}({arguments})")

    def _form_step(self, step: FormStep):
        """Call the passes of a form or a linear form, with a table of its arrays."""
        form, main = step.form, self.main
        written = _written(form, self.dtype, self.machine)
        if form not in self.kernels:
            self.kernels[form] = f"kernel{len(self.kernels)}"
            self.texts |= written.functions
            for p in written.passes:
                name = f"{self.kernels[form]}_{p.name}"
                self.texts[name] = p.function.text(name)
        numbers = (*step.operands, *step.writes)
        place, self.scratch = self.scratch, self.scratch + 8 * len(numbers)
        table = main.at(self.memory, place)
        for k, n in enumerate(numbers):
            main.do(f"store ptr {self._pointer(n)}, ptr {main.at(table, 8 * k)}, align 8")
        for p in written.passes:
            name = f"{self.kernels[form]}_{p.name}"
            units = p.num_units(step.num_rows, step.num_nodes)
            self.most = max(self.most, p.scratch)
            table = main.at(self.memory, place)
            values = f"i64 0, i64 {units}, i64 {step.num_rows}"
            main.do(f"call void @{name}(ptr {table}, {values}, ptr %scratch)")


NODE, ORDER, PTR = "receivers", "receiver_order", "receiver_ptr"
"""The index arrays that cut the receivers into parts."""

FIRST, LAST = ("word", "first"), ("word", "last")
"""Words of the table of pointers: the positions of the block."""

MOST_ROWS, FEWEST_TOGETHER = 32, 8
"""Rows that go through a program together, at most and at least."""


def num_parts(program: Program, num_rows: int, num_nodes: int) -> int:
    """Return the number of parts of the rows or nodes."""
    parts = 16 if num_rows < 8192 else 64
    return min(parts, num_nodes) if program.on_graph else parts


def transposed_weights(program: Program) -> tuple[int, ...]:
    """Return the inputs, weights, that some step reads transposed."""
    steps = [s for s in program.form_steps if isinstance(s.form, Form) and s.form.has_matrices]
    return tuple(sorted({s.operands[i] for s in steps for i in transposed(s.form)}))


@functools.lru_cache(maxsize=256)
def generate_rows(program: Program, machine: Machine, parts: int) -> Module:
    """Return the module that computes a program over rows, which are cut into `parts`.

    Arguments: the inputs, weights as [1, elements]; `transposed_weights`; index arrays. Results:
    the outputs, of which those that are weights are sums of each part, [parts, elements].
    """
    return _RowProgramEmitter(program, machine, parts).module()


class _RowProgramEmitter:
    """Writes the module of a program; its arrays are arguments, results, or in scratch memory.

    `local` maps an array of a block of rows to its place in scratch memory and the bytes of a row.
    `calls` lists the functions of the steps: name, place of scratch memory, and whether the units
    are nodes.
    """

    def __init__(self, program: Program, machine: Machine, parts: int):
        self.program, self.machine, self.parts, self.scratch = program, machine, parts, 0
        self.dtype, self.on_graph = program.arrays[0].dtype, program.on_graph
        self.copies = Copies(self.dtype, machine.vector_bytes // BYTES[self.dtype])
        row_bytes = sum(program.arrays[n].bytes for n in program.local)
        # what lies between the steps takes half of the cache
        fitting = machine.level2 // 2 // row_bytes // FEWEST_TOGETHER * FEWEST_TOGETHER
        self.block = max(FEWEST_TOGETHER, min(MOST_ROWS, fitting))
        self.sums = [n for n in program.outputs if program.arrays[n].index is Index.SHARED]
        self.index_arrays = (NODE, ORDER, PTR) if self.on_graph else ()
        self.arguments, self.local = Arguments(self.dtype), {}
        self._add("array", program.inputs)
        self._add("transposed", transposed_weights(program))
        self.arguments.add_indices(self.index_arrays)
        self.arguments.end()
        self._add("array", program.outputs, self.parts)
        for n in program.local:
            self._add_local(("array", n), program.arrays[n].bytes)
        for key in (FIRST, LAST) if self.on_graph else ():
            self.arguments.add_word(key)
        self.texts: dict[str, str] = {}
        self.calls: list[tuple[str, int, bool]] = []
        self.cost = 0

    def _add(self, side: str, numbers, num_weights: int = 1):
        for n in numbers:
            array = self.program.arrays[n]
            rows = -num_weights if array.index is Index.SHARED else native_form.AXES[array.index]
            self.arguments.add((side, n), rows, array.size, f"{side} {n} of a sequence")

    def _add_local(self, key: tuple, row_bytes: int):
        self.arguments.add_word(key)
        self.local[key] = (self._allocate(self.block * row_bytes), row_bytes)

    def _allocate(self, size: int) -> int:
        place, self.scratch = self.scratch, self.scratch + -(-size // 64) * 64
        return place

    def module(self) -> Module:
        for s, step in enumerate(self.program.steps):
            if isinstance(step.form, Activated):
                self._activate(s, step)
            else:
                (self._linear_form if step.form.has_matrices else self._form)(s, step)
        functions = self.copies.functions | self.texts
        return KernelPasses(self.arguments, functions, [self._main()]).module()

    def _word(self, f: Function, key) -> str:
        return f.value(f"load i64, ptr {self.arguments.place(f, *key)}, align 8")

    def _add_function(self, f: Function, name: str, scratch: int, cost: int, of_nodes=False):
        self.texts[name] = f.text(name)
        self.calls.append((name, self._allocate(scratch), of_nodes))
        self.cost += cost

    def _form(self, s: int, step):
        """Write the function of a form: of rows, or of nodes and of their rows in the block."""
        form, local = self._in_ir_mul(step)
        reduce_over = Index.RECEIVER if self.on_graph else Index.ROW
        outputs = range(len(form.outputs))
        plan = Plan(form, reduce_over, outputs, {}, self.machine, self.dtype, local)
        name = f"step_{s}"
        f = Function(self.dtype)
        numbers, load = {"in": step.operands, "out": step.writes}, self.arguments.load
        base = {(side, n): load(f, "array", numbers[side][n]) for side, n in plan.operands()}
        arrays = {n: load(f, "index", n) for n in plan.index_arrays()}
        rows = RowsEmitter(plan, f, self.copies, base, arrays)
        groups = Groups(rows)
        if reduce_over is Index.ROW:
            groups.write_rows("0", "%begin", "%end")
        else:
            block = self._word(f, FIRST), self._word(f, LAST)
            with f.loop("%end", start="%begin") as nodes:
                start = f.load_index(arrays[PTR], nodes.index)
                stop = f.load_index(arrays[PTR], f.plus(nodes.index, 1))
                is_first = f.value(f"icmp sge i64 {start}, {block[0]}")
                rows.begin_unit(nodes.index, f.value(f"zext i1 {is_first} to i64"))
                start, stop = f.maximum(start, block[0]), f.minimum(stop, block[1])
                groups.write_rows(nodes.index, start, stop)
                rows.finish_unit(nodes.index)
        self._add_function(f, name, plan.scratch, groups.cost, reduce_over is not Index.ROW)

    def _in_ir_mul(self, step) -> tuple[Form, list]:
        """Return the form of a step with its local operands as they lie there, and their keys."""
        sides, local = [], []
        for side, numbers in (("inputs", step.operands), ("outputs", step.writes)):
            operands = list(getattr(step.form, side))
            for k, n in enumerate(numbers):
                if n in self.program.local:
                    local.append((side.removesuffix("puts"), k))
                    if n in self.program.mixed:
                        operands[k] = as_ir_mul(operands[k], self.program.mixed[n])
            sides.append(tuple(operands))
        return Form(*sides, step.form.paths), local

    def _activate(self, s: int, step: FormStep):
        """Write the function of activations; the rows of local arrays are by position."""
        name = f"activate_{s}"
        f = Function(self.dtype, self.copies.widest)
        order = self._order(f)
        arrays = {n: self.arguments.load(f, "array", n) for n in (*step.operands, *step.writes)}
        with f.loop("%end", start="%begin") as rows:
            row = f.load_index(order, rows.index) if order else rows.index
            places = []
            for n, array in arrays.items():
                index = rows.index if n in self.program.local else row
                places.append(f.at(array, index, self.program.arrays[n].bytes))
            cost = functions.write_row(f, step.form, places[0], places[1:])
        self.texts |= f.declared
        self._add_function(f, name, 0, cost)

    def _linear_form(self, s: int, step):
        """Write the functions of a linear form: copies of operands, results by row, gradients."""
        numbers = (*step.operands, *step.writes)
        local = [k for k, n in enumerate(numbers) if n in self.program.local]
        load = functools.partial(self._load, s, step)
        layouts = Layouts(step.form, self.dtype, self.machine, local, self.copies, load)
        for n, (_, block) in enumerate(layouts.packed):
            self._add_local((f"copy of step {s}", n), layouts.copy_width(block) * BYTES[self.dtype])
        if layouts.packed:
            f = Function(self.dtype)
            cost = linear.write_copies(layouts, f, self._order(f))
            self._add_function(f, f"copy_{s}", 0, cost)
        if not all(o.matrix for o in step.form.outputs):
            f = Function(self.dtype)
            cost = linear.write_rows(layouts, f, "%begin", "%end", self._order(f))
            self._add_function(f, f"rows_{s}", linear.scratch(layouts) * f.bytes, cost)
        for o in layouts.gradients:
            f = Function(self.dtype)
            writer = linear.WeightsEmitter(layouts, f, o, self._order(f))
            cost = writer.add("0", str(writer.num_lines), ("%begin", "%end"))
            self._add_function(f, f"weights_{s}_{o}", 0, cost)

    def _load(self, s: int, step, f: Function, side: str, n: int) -> str:
        """Return an array of a linear form."""
        if side == "copy":
            return self.arguments.load(f, f"copy of step {s}", n)
        if side == "transposed":
            return self.arguments.load(f, "transposed", step.operands[n])
        return self.arguments.load(f, "array", (step.operands if side == "in" else step.writes)[n])

    def _order(self, f: Function) -> str | None:
        return self.arguments.load(f, "index", ORDER) if self.on_graph else None

    def _main(self) -> Pass:
        """Return the pass that takes every part through all steps, block by block."""
        f = Function(self.dtype)
        table = self._allocate(8 * len(self.arguments.numbers))
        self.table = f.at("%scratch", table)
        for n in range(len(self.arguments.entries)):
            self._set(f, n, f.value(f"load i64, ptr {f.at('%buffers', 8 * n)}, align 8"))
        sums = {n: self.arguments.load(f, "array", n) for n in self.sums}
        with f.loop("%end", start="%begin") as units:
            first, last = (self._boundary(f, u) for u in (units.index, f.plus(units.index, 1)))
            for n, array in sums.items():
                size = self.program.arrays[n].bytes
                part = f.at(array, units.index, size)
                f.zero(part, size)
                address = f.value(f"ptrtoint ptr {part} to i64")
                self._set(f, self.arguments.numbers["array", n], address)
            if self.on_graph:
                self._part_of_nodes(f, first, last)
            else:
                with f.loop(last, start=first, step=self.block) as blocks:
                    stop = f.minimum(f.plus(blocks.index, self.block), last)
                    self._block(f, blocks.index, stop, None)
        axis, work = NODES if self.on_graph else ROWS, {"count": self.parts, "row_cost": self.cost}
        return Pass("sequence", f, axis, **work, scratch=self.scratch)

    def _boundary(self, f: Function, unit: str) -> str:
        """Return the row, or on a graph the node, that a part starts at.

        The first half of the parts are twice as long as the others: no thread is left with a long
        one at the end. On a graph their lengths are those of the edges, which nodes differ in, and
        `%rows` counts the nodes.
        """
        pointers = {n: self.arguments.load(f, "index", n) for n in self.index_arrays}
        half = self.parts // 2
        share = f.minimum(f.times(unit, 2), f.plus(unit, half))
        rows = f.load_index(pointers[PTR], "%rows") if self.on_graph else "%rows"
        row = f.value(f"sdiv i64 {f.times(share, rows)}, {self.parts + half}")
        if not self.on_graph:
            return row
        within = f.maximum(f.minimum(row, f.plus(rows, -1)), "0")
        node = f.load_index(pointers[NODE], f.load_index(pointers[ORDER], within))
        is_first = f.value(f"icmp eq i64 {unit}, 0")
        is_end = f.value(f"icmp eq i64 {unit}, {self.parts}")
        node = f.value(f"select i1 {is_first}, i64 0, i64 {node}")
        return f.value(f"select i1 {is_end}, i64 %rows, i64 {node}")

    def _part_of_nodes(self, f: Function, first: str, last: str):
        """Write the loop over the edges of nodes `first` to `last`.

        There is one block without edges where the nodes have none.
        """
        ptr = self.arguments.load(f, "index", PTR)
        start, stop = f.load_index(ptr, first), f.load_index(ptr, last)
        at_least_one = f.maximum(stop, f.plus(start, 1))
        with f.loop(
            at_least_one, start=start, step=self.block, carried=[first], kinds=["i64"]
        ) as blocks:
            end_of_block = f.minimum(f.plus(blocks.index, self.block), stop)
            is_last = f.value(f"icmp eq i64 {end_of_block}, {stop}")
            position = f.maximum(f.plus(end_of_block, -1), "0")
            row = f.load_index(self.arguments.load(f, "index", ORDER), position)
            end = f.plus(f.load_index(self.arguments.load(f, "index", NODE), row), 1)
            end = f.value(f"select i1 {is_last}, i64 {last}, i64 {end}")
            self._block(f, blocks.index, end_of_block, (blocks.carried[0], end))
            is_cut = f.value(f"icmp sgt i64 {f.load_index(ptr, end)}, {end_of_block}")
            blocks.next = [f.value(f"sub nsw i64 {end}, {f.value(f'zext i1 {is_cut} to i64')}")]

    def _block(self, f: Function, first: str, stop: str, nodes: tuple[str, str] | None):
        """Write all steps for the positions `first` to `stop`, which are edges of these nodes."""
        for key, (place, row_bytes) in self.local.items():
            array = f.at("%scratch", place)
            array = f.at(array, f.value(f"sub nsw i64 0, {first}"), row_bytes)
            address = f.value(f"ptrtoint ptr {array} to i64")
            self._set(f, self.arguments.numbers[key], address)
        if nodes:
            self._set(f, self.arguments.numbers[FIRST], first)
            self._set(f, self.arguments.numbers[LAST], stop)
        for name, scratch, of_nodes in self.calls:
            begin, end = nodes if of_nodes else (first, stop)
            arguments = f"ptr {self.table}, i64 {begin}, i64 {end}, i64 %rows"
            f.do(f"call void @{name}({arguments}, ptr {f.at('%scratch', scratch)})")

    def _set(self, f: Function, number: int, word: str):
        f.do(f"store i64 {word}, ptr {f.at(self.table, 8 * number)}, align 8")


def as_ir_mul(operand: Operand, rows: Operand) -> Operand:
    """Return the operand with each component's channels side by side, by block of a linear form."""
    segments = []
    for s in operand.segments:
        [block] = [b for b in rows.segments if b.holds(s)] or [None]
        if block is None:
            segments.append(s)
            continue
        channel = (s.offset - block.offset) // block.dim
        stride = s.channel_stride // block.dim
        segments.append(Segment(block.offset + channel, s.mul, s.dim, stride, block.mul))
    return dataclasses.replace(operand, segments=tuple(segments))
