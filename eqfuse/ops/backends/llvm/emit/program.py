"""A program that runs whole as one native kernel: its steps one after the other, on one thread.

Only those passes of forms and linear forms are shared out over threads that are worth it. Arrays
between the steps lie in scratch memory, which an array leaves to others after its last use. Steps
of equal text are one function, so that code does not grow with the number of equal layers.
"""

import dataclasses
import functools
import hashlib

from eqfuse.ops.backends.llvm.emit import activation, ir, movement
from eqfuse.ops.backends.llvm.emit import form as native_form
from eqfuse.ops.backends.llvm.emit import linear_form as native_linear
from eqfuse.ops.backends.llvm.emit.arguments import DATA, DTYPES, Arguments, Entry
from eqfuse.ops.backends.llvm.emit.choices import Machine
from eqfuse.ops.backends.llvm.emit.ir import Function
from eqfuse.ops.backends.llvm.emit.linear_layouts import transposed
from eqfuse.ops.backends.llvm.emit.module import (
    SIGNATURE,
    Axis,
    KernelPasses,
    Module,
    Pass,
    Units,
    assemble,
)
from eqfuse.ops.ir.activated import Activated
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm
from eqfuse.ops.ir.program import Program
from eqfuse.ops.ir.steps import BYTES, Activate, Array, Copy, Multilinear, Step

WORK_OF_A_THREAD = 300_000
"""Vector operations of a pass from which on it is shared out: about a tenth of a millisecond.

That is more than in `runtime.threads`. There a pass is a call, and what it reads was written by all
threads; here the next step, on one thread, would have to fetch what another has written.
"""
LONGEST = 256
"""Steps in a function, at most: LLVM takes more than twice as long for one of twice as many."""


@functools.lru_cache(maxsize=64)
def generate(program: Program, dtype: str, machine: Machine, work: int = 0) -> Module:
    """Return the module that computes a program whose forms are of one dtype.

    Arguments: the inputs, [1, size], index arrays [size]. Results: the outputs, [1, size], and
    scratch memory.

    Args:
      work: vector operations of a pass from which on it is shared out; 0 is `WORK_OF_A_THREAD`.
    """
    return _ProgramEmitter(program, dtype, machine, work or WORK_OF_A_THREAD).module()


def cost(program: Program, dtype: str, machine: Machine) -> int:
    """Return the vector operations of all steps, about."""
    total = program.elements // (machine.vector_bytes // ir.BYTES[dtype])
    for step in program.multilinear:
        total += sum(_cost(p, step) for p in _written(step.form, dtype, machine).passes)
    return total


@functools.lru_cache(maxsize=1024)
def _written(form: Form | LinearForm | Activated, dtype: str, machine: Machine) -> KernelPasses:
    modules = {Form: native_form, LinearForm: native_linear, Activated: activation}
    return modules[type(form)].write(form, dtype, machine)


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
        if not isinstance(step, Multilinear):
            result.append(step)
            continue
        form, operands = step.form, list(step.operands)
        written = _written(form, dtype, machine)
        for i in transposed(form) if isinstance(form, LinearForm) else ():
            rows, columns = form.inputs[i].shape
            sizes = (max(1, form.num_sets), columns, rows)
            key = step.operands[i], sizes
            if key not in known:
                known[key] = new(arrays[step.operands[i]].size)
                strides = (rows * columns, 1, columns), (rows * columns, rows, 1)
                result.append(Copy((step.operands[i],), known[key], sizes, *strides))
            operands.append(known[key])
        by_name = dict(step.indices)
        operands += [by_name[name] for name in written.index_arrays]
        count = step.num_nodes if isinstance(form, Form) else step.num_rows
        writes = (*step.writes, *(new(count * width) for width in written.copies))
        result.append(
            dataclasses.replace(step, operands=tuple(operands), indices=(), writes=writes)
        )
    return dataclasses.replace(program, arrays=tuple(arrays), steps=tuple(result))


class _ProgramEmitter:
    def __init__(self, program: Program, dtype: str, machine: Machine, work: int):
        self.dtype, self.machine, self.work = dtype, machine, work
        self.program = prepared(program, dtype, machine).in_loops
        self.arrays = self.program.arrays
        self.widest = machine.vector_bytes // ir.BYTES[dtype]
        self.declared: set[str] = set()
        self.texts: dict[str, str] = {}  # by name
        self.kernels: dict[Form | LinearForm | Activated, str] = {}
        self.passes: list[Pass] = []
        self.places, self.scratch = self.program.places()
        self.arguments = self._arguments()

    def module(self) -> Module:
        """Return the kernel; its passes are the steps, but for those that are shared out."""
        self._begin()
        for k, step in enumerate(self.program.steps):
            if k and k % LONGEST == 0:
                self._end()
                self._begin()
            if isinstance(step, Activate | Multilinear):
                self._multilinear(step)
            else:
                self._step(step)
        self._end()
        own = ir.declarations(self.dtype)
        declared = sorted(d for d in self.declared if d not in own.splitlines())
        memcpy = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        texts = [own, memcpy, *declared, *self.texts.values(), *(p.text for p in self.passes)]
        # its scratch memory is that of all threads, and so a result
        elements = max(1, self.scratch // ir.BYTES[self.dtype])
        scratch = Entry(DTYPES[self.dtype], 2, -1, elements, DATA, "scratch memory of a sequence")
        self.arguments.entries.append(scratch)
        text, name = assemble(texts, self.arguments, self.passes)
        return Module(name, text, (), (elements,))

    def _arguments(self) -> Arguments:
        arguments = Arguments(self.dtype)
        indices = {n: (name, limit) for n, name, limit in self.program.indices}
        for side, numbers in (("in", self.program.inputs), ("out", self.program.outputs)):
            for k, n in enumerate(numbers):
                array = self.arrays[n]
                arguments.add_word((side, n))
                if side == "in" and n in indices:
                    name, limit = indices[n]
                    arguments.entries.append(Entry.of_known_index(name, array.size, limit))
                else:
                    code, name = DTYPES[array.dtype], f"{side}put {k} of a sequence"
                    arguments.entries.append(Entry(code, 2, -1, array.size, DATA, name))
            if side == "in":
                arguments.end()
        arguments.add_word(("scratch", 0))
        return arguments

    def _begin(self):
        """Begin a function that takes the next steps, one after the other."""
        name = f"steps{len(self.passes)}"
        self.main = Function(f"define internal void @{name}{SIGNATURE}", self.dtype)
        self.name, self.most, self.pointers = name, 0, {}
        self.memory = self.arguments.load(self.main, "scratch", 0)

    def _end(self):
        units = Units(Axis.ROWS, count=1)
        self.passes.append(Pass(self.name, self.main.text(), units, scratch=self.most))

    def _pointer(self, n: int) -> str:
        """Return where an array lies."""
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
        f = Function(f"define internal void @NAME({parameters})", self.dtype, self.widest)
        movement.write(f, step, self.arrays, names)
        self.declared |= f.declared
        text = f.text()
        name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.texts[name] = text.replace("@NAME(", f"@{name}(", 1)
        pointers = {n: self._pointer(n) for n in names}
        if isinstance(step, Copy):  # where it starts is no part of its function
            width = BYTES[self.arrays[step.write].dtype]
            starts = [(step.write, step.first_out), *((n, step.first_in) for n in step.reads)]
            for n, first in starts:
                if n in pointers:
                    pointers[n] = self.main.at(pointers[n], first * width)
        arguments = ", ".join(f"ptr {pointer}" for pointer in pointers.values())
        self.main.do(f"call void @{name}({arguments})")

    def _multilinear(self, step: Activate | Multilinear):
        """Call the passes of a form, a linear form or activations, with a table of its arrays."""
        form, main = step.form, self.main
        written = _written(form, self.dtype, self.machine)
        if form not in self.kernels:
            self.kernels[form] = f"kernel{len(self.kernels)}"
            self.texts |= written.functions
            for p in written.passes:
                name = f"{self.kernels[form]}_{p.name}"
                self.texts[name] = p.text.replace(f"@{p.name}(", f"@{name}(")
            self.declared |= written.declared
        numbers = (*step.operands, *step.writes)
        place, self.scratch = self.scratch, self.scratch + 8 * len(numbers)
        table = main.at(self.memory, place)
        for k, n in enumerate(numbers):
            main.do(f"store ptr {self._pointer(n)}, ptr {main.at(table, 8 * k)}, align 8")
        for p in written.passes:
            name = f"{self.kernels[form]}_{p.name}"
            units, work = p.units.number(step.num_rows, step.num_nodes), _cost(p, step)
            if work < self.work:
                self.most = max(self.most, p.scratch)
                table = self.main.at(self.memory, place)
                values = f"i64 0, i64 {units}, i64 {step.num_rows}"
                self.main.do(f"call void @{name}(ptr {table}, {values}, ptr %scratch)")
                continue
            self._end()
            self._begin()
            table = self.main.at(self.memory, place)
            values = f"i64 %begin, i64 %end, i64 {step.num_rows}"
            self.main.do(f"call void @{name}(ptr {table}, {values}, ptr %scratch)")
            fixed = Units(Axis.ROWS, count=units)
            shared = Pass(self.name, self.main.text(), fixed, work, scratch=p.scratch)
            self.passes.append(shared)
            self._begin()


def _cost(p: Pass, step: Activate | Multilinear) -> int:
    """Return about how many vector operations a pass is."""
    return p.row_cost * step.num_rows + p.node_cost * step.num_nodes
