"""A program that runs whole as one native kernel: its steps one after the other, on one thread.

Arrays between the steps lie in scratch memory, which an array leaves to others after its last use.
Steps of equal text are one function, so that code does not grow with the number of equal layers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib

from eqfuse.ops.backends.llvm import form as native_form
from eqfuse.ops.backends.llvm import linear as native_linear
from eqfuse.ops.backends.llvm.functions import FunctionEmitter
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.backends.llvm.linear import transposed
from eqfuse.ops.backends.llvm.text import (
    BYTES,
    DATA,
    DTYPES,
    ENDS_OF,
    ROWS,
    STORED,
    Arguments,
    Entry,
    Function,
    KernelPasses,
    Module,
    Pass,
    Units,
    kind,
    literal,
)
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.program import (
    Array,
    Copy,
    ElementwiseLoop,
    FormStep,
    Gather,
    Number,
    Program,
    Reduce,
    ScatterAdd,
    Step,
)

MEMCPY = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"


def write_loop(f: Function, step: ElementwiseLoop, arrays, pointers: dict[int, str]):
    """Write functions of one size: each array is loaded once, results with a pointer are stored."""
    for loop, lanes in f.vector_loops(arrays[step.writes[0]].size):
        emitter, values = FunctionEmitter(f, lanes), {}
        for one in step.functions:
            operands, dtypes = [], one.dtypes(arrays)
            for n, dtype in zip(one.reads, dtypes, strict=True):
                if isinstance(n, Number):
                    operands.append(emitter.number(n.value, dtype))
                    continue
                if n not in values:
                    array = arrays[n]
                    values[n] = emitter.load(pointers[n], array.dtype, array.size, loop.index)
                operands.append(values[n])
            out = arrays[one.write].dtype
            values[one.write] = emitter.apply(one.function, operands, dtypes[-1], out, one.power)
            if one.write in pointers:
                emitter.store(values[one.write], pointers[one.write], out, loop.index)


UNROLLED = 8
"""Turns of an inner loop that are written out."""


def nested(f: Function, axes, pointers: list[str], widths: list[int], body):
    """Write loops over axes (size, stride of each pointer) around `body(pointers)`."""
    if not axes:
        body(pointers)
        return
    (size, *strides), rest = axes[0], axes[1:]

    def moved(index):
        pairs = zip(pointers, strides, widths, strict=True)
        return [f.at(p, index, s * w) if s else p for p, s, w in pairs]

    if not rest and size <= UNROLLED:
        for n in range(size):
            body(moved(n))
        return
    with f.loop(str(size)) as loop:
        nested(f, rest, moved(loop.index), widths, body)


def write_copy(f: Function, step: Copy, arrays, pointers: dict[int, str]):
    """Write a copy between the first elements that it reads and writes, where `pointers` are."""
    dtype = arrays[step.write].dtype
    width, stored = BYTES[dtype], STORED[dtype]
    axes = step.axes
    target = pointers[step.write]
    [read] = step.reads
    if isinstance(read, Number):
        value = _stored_literal(read, dtype)
        axes = [(size, out) for size, _, out in axes]
        nested(f, axes, [target], [width], lambda p: _store(f, value, stored, p[0], width))
        return
    source = pointers[read]
    block = 0
    if axes and axes[-1][1:] == (1, 1) and axes[-1][0] * width > 8:
        block = axes.pop()[0] * width

    def body(places):
        if block:
            _memcpy(f, places[1], places[0], block)
            return
        value = f.value(f"load {stored}, ptr {places[0]}, align {width}")
        _store(f, value, stored, places[1], width)

    nested(f, axes, [source, target], [width, width], body)


def _stored_literal(number: Number, dtype: str) -> str:
    """Return a constant as it lies in memory."""
    return str(int(number.value)) if dtype == "bool" else literal(number.value, dtype)


def _store(f: Function, value: str, stored: str, place: str, width: int):
    f.do(f"store {stored} {value}, ptr {place}, align {width}")


def _memcpy(f: Function, target: str, source: str, num_bytes: int):
    f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {num_bytes}, i1 false)")


def write_reduce(f: Function, step: Reduce, arrays, pointers: dict[int, str]):
    """Write a sum or the like; numbers that lie side by side in vectors where they stay so."""
    [read], out = step.reads, step.write
    dtype = arrays[out].dtype
    width = BYTES[dtype]
    over, axes = step.over, step.kept
    inner = axes.pop() if axes and axes[-1][1] == 1 else None

    def total(source: str, target: str, lanes: int):
        emitter = FunctionEmitter(f, lanes)
        emitter.store(_reduced(emitter, step, dtype, source, over), target, dtype, "0")

    def body(places):
        if inner is None:
            total(*places, 1)
            return
        for loop, lanes in f.vector_loops(inner[0]):
            total(*(f.at(p, loop.index, width) for p in places), lanes)

    nested(f, axes, [pointers[read], pointers[out]], [width, width], body)


def _reduced(emitter: FunctionEmitter, step: Reduce, dtype: str, source: str, over) -> str:
    """Return the sum over some axes, a loop for each, from `lanes` numbers at `source` on."""
    f = emitter.f

    def added(value: str, place: str) -> str:
        new = emitter.load(place, dtype, 2, "0")
        return emitter.apply(step.function, [value, new], dtype, dtype)

    def run(value: str, place: str, axes) -> str:
        if not axes:
            return added(value, place)
        (size, stride), rest = axes[0], axes[1:]
        width = BYTES[dtype]
        with f.loop(str(size), carried=[value], kinds=[kind(dtype, emitter.lanes)]) as loop:
            loop.next = [run(loop.carried[0], f.at(place, loop.index, stride * width), rest)]
        return loop.carried[0]

    return run(emitter.number(step.initial(dtype), dtype), source, over)


def write_gather(f: Function, step: Gather, arrays, pointers: dict[int, str]):
    source, index = step.reads
    dtype = arrays[source].dtype
    row_bytes = step.width * BYTES[dtype]
    rows = arrays[source].size // step.width
    with f.loop(str(arrays[index].size)) as loop:
        chosen = f.load_index(pointers[index], loop.index)
        nearest = f.maximum(f.minimum(chosen, str(rows - 1)), "0")
        place = f.at(pointers[source], nearest, row_bytes)
        target = f.at(pointers[step.write], loop.index, row_bytes)
        _memcpy(f, target, place, row_bytes)
        if step.fill is None:
            return
        outside = f.value(f"icmp ne i64 {chosen}, {nearest}")
        turns = f.times(f.value(f"zext i1 {outside} to i64"), step.width)
        with f.loop(turns) as elements:
            element = f.at(target, elements.index, BYTES[dtype])
            value = _stored_literal(step.fill, dtype)
            _store(f, value, STORED[dtype], element, BYTES[dtype])


def write_scatter_add(f: Function, step: ScatterAdd, arrays, pointers: dict[int, str]):
    start, index, updates = step.reads
    dtype = arrays[start].dtype
    width, row_bytes = BYTES[dtype], step.width * BYTES[dtype]
    rows = arrays[start].size // step.width
    target = pointers[step.write]
    _memcpy(f, target, pointers[start], arrays[start].bytes)
    with f.loop(str(arrays[index].size)) as loop:
        chosen = f.load_index(pointers[index], loop.index)
        nearest = f.maximum(f.minimum(chosen, str(rows - 1)), "0")
        turns = str(step.width)
        if not step.clipped:
            inside = f.value(f"icmp eq i64 {chosen}, {nearest}")
            turns = f.times(f.value(f"zext i1 {inside} to i64"), step.width)
        row = f.at(target, nearest, row_bytes)
        update = f.at(pointers[updates], loop.index, row_bytes)
        with f.loop(turns) as elements:
            here = f.at(row, elements.index, width)
            there = f.at(update, elements.index, width)
            t = STORED[dtype]
            old = f.value(f"load {t}, ptr {here}, align {width}")
            new = f.value(f"load {t}, ptr {there}, align {width}")
            total = f.value(f"{'add' if dtype == 'int32' else 'fadd'} {t} {old}, {new}")
            _store(f, total, t, here, width)


WRITERS = {
    ElementwiseLoop: write_loop,
    Copy: write_copy,
    Reduce: write_reduce,
    Gather: write_gather,
    ScatterAdd: write_scatter_add,
}
"""By the kind of step that is no form, with pointers to those of its arrays that are in memory."""


WHOLE = Units(ROWS, count=1)
LONGEST = 256
"""Steps in a function, at most: LLVM takes more than twice as long for one of twice as many."""


@functools.lru_cache(maxsize=64)
def generate(program: Program, dtype: str, machine: Machine) -> Module:
    """Return the module that computes a program whose forms are of one dtype.

    Arguments: the inputs, [1, size], index arrays [size]. Results: the outputs, [1, size], and
    scratch memory.
    """
    return _ProgramEmitter(program, dtype, machine).module()


@functools.lru_cache(maxsize=1024)
def _written(form: Form, dtype: str, machine: Machine) -> KernelPasses:
    return (native_linear if form.has_matrices else native_form).write(form, dtype, machine)


def prepared(program: Program, dtype: str, machine: Machine) -> Program:
    """Return the same with all arrays that forms need: transposed weights, copies of rows.

    The operands of a form are then the arguments of its kernel and those that are written its
    results, in the order of its table.
    """
    arrays, result = list(program.arrays), []
    known: dict[tuple[int, tuple], int] = {}

    def new(size: int) -> int:
        arrays.append(Array(size, dtype))
        return len(arrays) - 1

    for step in program.steps:
        if not isinstance(step, FormStep):
            result.append(step)
            continue
        form, operands = step.form, list(step.operands)
        written = _written(form, dtype, machine)
        for i in transposed(form) if form.has_matrices else ():
            rows, columns = form.inputs[i].matrix
            sizes = (max(1, form.num_sets), columns, rows)
            key = step.operands[i], sizes
            if key not in known:
                known[key] = new(arrays[step.operands[i]].size)
                strides = (rows * columns, 1, columns), (rows * columns, rows, 1)
                result.append(Copy((step.operands[i],), known[key], sizes, *strides))
            operands.append(known[key])
        by_name = dict(step.indices)
        operands += [by_name[name] for name in written.index_arrays]
        count = step.num_rows if form.has_matrices else step.num_nodes
        writes = (*step.writes, *(new(count * width) for width in written.copies))
        result.append(
            dataclasses.replace(step, operands=tuple(operands), indices=(), writes=writes)
        )
    return dataclasses.replace(program, arrays=tuple(arrays), steps=tuple(result))


class _ProgramEmitter:
    def __init__(self, program: Program, dtype: str, machine: Machine):
        self.dtype, self.machine = dtype, machine
        self.graphs = [dict(s.indices) for s in program.steps if isinstance(s, FormStep)]
        self.program = prepared(program, dtype, machine).in_loops
        self.arrays = self.program.arrays
        self.widest = machine.vector_bytes // BYTES[dtype]
        self.declared: set[str] = set()
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
            self.passes.append(Pass(name, self.main, WHOLE, 0, scratch=self.most))
        # its scratch memory is that of all threads, and so a result
        elements = max(1, self.scratch // BYTES[self.dtype])
        scratch = Entry(DTYPES[self.dtype], 2, -1, elements, DATA, "scratch memory of a sequence")
        self.arguments.entries.append(scratch)
        declared = MEMCPY, *sorted(self.declared)
        parts = self.texts, self.passes, (), (elements,), declared, self._orders()
        return KernelPasses(self.arguments, *parts).module(self.dtype)

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
                arguments.add_word((side, n))
                if side == "in" and n in indices:
                    name, limit = indices[n]
                    arguments.entries.append(Entry.of_index(name, array.size, limit))
                else:
                    code, name = DTYPES[array.dtype], f"{side}put {k} of a sequence"
                    arguments.entries.append(Entry(code, 2, -1, array.size, DATA, name))
            if side == "in":
                arguments.end()
        arguments.add_word(("scratch", 0))
        return arguments

    def _pointer(self, n: int) -> str:
        if n not in self.pointers:
            if n in self.places:
                result = self.main.at(self.memory, self.places[n])
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
        self.declared |= f.declared
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
            self.declared.update(written.declared)
        numbers = (*step.operands, *step.writes)
        place, self.scratch = self.scratch, self.scratch + 8 * len(numbers)
        table = main.at(self.memory, place)
        for k, n in enumerate(numbers):
            main.do(f"store ptr {self._pointer(n)}, ptr {main.at(table, 8 * k)}, align 8")
        for p in written.passes:
            name = f"{self.kernels[form]}_{p.name}"
            units = p.units.number(step.num_rows, step.num_nodes)
            self.most = max(self.most, p.scratch)
            table = main.at(self.memory, place)
            values = f"i64 0, i64 {units}, i64 {step.num_rows}"
            main.do(f"call void @{name}(ptr {table}, {values}, ptr %scratch)")
