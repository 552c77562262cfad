"""Steps as one native kernel: one function that takes them one after the other, on one thread.

Arrays between them lie in scratch memory, which an array leaves to others after its last use. Steps
of equal text are one function, so that code does not grow with the number of equal layers.
"""

import dataclasses
import functools
import hashlib

from eqfuse.ops.algebra.form import Form
from eqfuse.ops.algebra.linear_form import LinearForm
from eqfuse.ops.algebra.steps import (
    ALIGNMENT,
    Array,
    Copy,
    Gather,
    Kernel,
    Maps,
    Number,
    Reduce,
    Steps,
)
from eqfuse.ops.llvm.codegen import form as native_form
from eqfuse.ops.llvm.codegen import ir, movement
from eqfuse.ops.llvm.codegen import linear_form as native_linear
from eqfuse.ops.llvm.codegen.arguments import DATA, DTYPES, Arguments, Entry
from eqfuse.ops.llvm.codegen.elementwise import write_maps
from eqfuse.ops.llvm.codegen.ir import Function
from eqfuse.ops.llvm.codegen.linear_layouts import transposed
from eqfuse.ops.llvm.codegen.module import SIGNATURE, Module, Pass, Written, assembled
from eqfuse.ops.llvm.codegen.plan import Machine


@functools.lru_cache(maxsize=64)
def generate(steps: Steps, dtype: str, machine: Machine) -> Module:
    """Return the module that computes steps whose forms are of one dtype.

    Arguments: the inputs, [1, size], index arrays [size]. Results: the outputs, [1, size].
    """
    return _Generator(steps, dtype, machine).module()


def cost(steps: Steps, dtype: str, machine: Machine) -> int:
    """Return the vector operations of all steps, about."""
    total = steps.elements // (machine.vector_bytes // ir.BYTES[dtype])
    for step in steps.steps:
        if isinstance(step, Kernel):
            for p in _written(step.what, dtype, machine).passes:
                total += p.row_cost * step.num_rows + p.node_cost * step.num_nodes
    return total


@functools.lru_cache(maxsize=1024)
def _written(what: Form | LinearForm, dtype: str, machine: Machine) -> Written:
    module = native_form if isinstance(what, Form) else native_linear
    return module.write(what, dtype, machine)


def prepared(steps: Steps, dtype: str, machine: Machine) -> Steps:
    """Return the same with all arrays that kernels need: transposed weights, copies of rows.

    The operands of a kernel are then its arguments and those that are written its results, in the
    order of its table.
    """
    arrays, found = list(steps.arrays), []
    known: dict[tuple[int, tuple], int] = {}

    def new(size: int) -> int:
        arrays.append(Array(size, dtype))
        return len(arrays) - 1

    for step in steps.steps:
        if not isinstance(step, Kernel):
            found.append(step)
            continue
        what, operands = step.what, list(step.operands)
        written = _written(what, dtype, machine)
        for i in transposed(what) if isinstance(what, LinearForm) else ():
            rows, columns = what.inputs[i].shape
            sizes = (max(1, what.num_sets), columns, rows)
            key = step.operands[i], sizes
            if key not in known:
                known[key] = new(arrays[step.operands[i]].size)
                strides = (rows * columns, 1, columns), (rows * columns, rows, 1)
                found.append(Copy((step.operands[i],), known[key], sizes, *strides))
            operands.append(known[key])
        by_name = dict(step.indices)
        operands += [by_name[name] for name in written.index_arrays]
        count = step.num_nodes if isinstance(what, Form) else step.num_rows
        writes = (*step.writes, *(new(count * width) for width in written.copies))
        found.append(dataclasses.replace(step, operands=tuple(operands), indices=(), writes=writes))
    return dataclasses.replace(steps, arrays=tuple(arrays), steps=tuple(found))


class _Generator:
    def __init__(self, steps: Steps, dtype: str, machine: Machine):
        self.dtype, self.machine = dtype, machine
        self.steps = prepared(steps, dtype, machine).in_loops
        self.arrays = self.steps.arrays
        self.widest = machine.vector_bytes // ir.BYTES[dtype]
        self.places, self.scratch = self.steps.places()
        self.declared: set[str] = set()
        self.texts: dict[str, str] = {}  # by name
        self.kernels: dict[Form | LinearForm, str] = {}

    def module(self) -> Module:
        arguments = self._arguments()
        self.table = self._allocate(
            8 * max((len(s.reads) + len(s.writes) for s in self.steps.steps), default=0)
        )
        self.of_kernels = self._allocate(0)
        self.most = 0
        f = Function(f"define internal void @steps{SIGNATURE}", self.dtype)
        self.pointers = {n: arguments.load(f, "in", n) for n in self.steps.inputs}
        self.pointers |= {n: arguments.load(f, "out", n) for n in self.steps.outputs}
        self.pointers |= {n: f.at("%scratch", place) for n, place in self.places.items()}
        for step in self.steps.steps:
            if isinstance(step, Kernel):
                self._kernel(f, step)
            else:
                self._step(f, step)
        scratch = self.of_kernels + self.most
        main = Pass("steps", f.text(), 1, 0, 0, scratch, units=1)
        own = ir.declarations(self.dtype)
        declared = sorted(d for d in self.declared if d not in own.splitlines())
        memcpy = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        texts = [own, memcpy, *declared, *self.texts.values(), main.text]
        text, name = assembled(texts, arguments, [main])
        return Module(name, text, (), ())

    def _allocate(self, size: int) -> int:
        place, self.scratch = self.scratch, self.scratch + -(-size // ALIGNMENT) * ALIGNMENT
        return place

    def _arguments(self) -> Arguments:
        arguments = Arguments(self.dtype)
        indices = {n: (name, limit) for n, name, limit in self.steps.indices}
        for side, numbers in (("in", self.steps.inputs), ("out", self.steps.outputs)):
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
        return arguments

    def _step(self, main: Function, step):
        """Call the function of a step that is no kernel, which equal ones share."""
        numbers = dict.fromkeys(n for n in (*step.reads, *step.writes) if not isinstance(n, Number))
        given = [n for n in numbers if n in self.pointers]
        names = {n: f"%a{k}" for k, n in enumerate(given)}
        parameters = ", ".join(f"ptr {name}" for name in names.values())
        f = Function(f"define internal void @NAME({parameters})", self.dtype)
        if isinstance(step, Maps):
            write_maps(f, step, self.arrays, names, self.widest, self.declared)
        elif isinstance(step, Copy):
            movement.write_copy(f, step, self.arrays, names)
        elif isinstance(step, Reduce):
            movement.write_reduce(f, step, self.arrays, names, self.widest, self.declared)
        elif isinstance(step, Gather):
            movement.write_gather(f, step, self.arrays, names)
        else:
            movement.write_scatter_add(f, step, self.arrays, names)
        text = f.text()
        name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.texts[name] = text.replace("@NAME(", f"@{name}(", 1)
        arguments = ", ".join(f"ptr {self.pointers[n]}" for n in given)
        main.do(f"call void @{name}({arguments})")

    def _kernel(self, main: Function, step: Kernel):
        """Call the passes of a form or a linear form, with a table of its arrays."""
        what = step.what
        written = _written(what, self.dtype, self.machine)
        if what not in self.kernels:
            self.kernels[what] = f"kernel{len(self.kernels)}"
            self.texts |= written.functions
            for p in written.passes:
                name = f"{self.kernels[what]}_{p.name}"
                self.texts[name] = p.text.replace(f"@{p.name}(", f"@{name}(")
        table = main.at("%scratch", self.table)
        for k, n in enumerate((*step.operands, *step.writes)):
            main.do(f"store ptr {self.pointers[n]}, ptr {main.at(table, 8 * k)}, align 8")
        scratch = main.at("%scratch", self.of_kernels)
        for p in written.passes:
            self.most = max(self.most, p.scratch)
            units = _units(p, step)
            name = f"{self.kernels[what]}_{p.name}"
            values = f"i64 0, i64 {units}, i64 {step.num_rows}"
            main.do(f"call void @{name}(ptr {table}, {values}, ptr {scratch})")


def _units(p: Pass, step: Kernel) -> int:
    """Return the units of a pass, as the runtime counts them."""
    if p.block > 0:
        return -(-step.num_rows // p.block)
    return step.num_nodes * max(1, -p.block)
