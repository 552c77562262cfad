"""A program that runs whole as one Triton kernel: one block takes its steps one after the other.

Arrays between the steps lie in scratch memory, which an array leaves to others after its last use;
`barriers` decides where steps wait. Steps of equal text are one function.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
from typing import NamedTuple

from eqfuse.ops.backends.triton import linear
from eqfuse.ops.backends.triton.functions import (
    OPERATORS,
    FunctionEmitter,
    constant,
    larger,
    literal,
)
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.backends.triton.text import (
    ArithmeticEmitter,
    DenseEmitter,
    Emitter,
    component_names,
    power_of_two,
)
from eqfuse.ops.ir.form import Form, Index, Operand
from eqfuse.ops.ir.linear import LinearForm, Weights
from eqfuse.ops.ir.program import (
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

# dtypes in memory
STORED = {"bool": "int32", "int32": "int32", "float32": "float32", "float64": "float64"}
REDUCED = 64  # elements of a sum that are added side by side, at most
MOST_CHANNELS = 128
TILE = 64
WARPS = 8


@contextlib.contextmanager
def elements(t: Emitter, size: int, threads: int, width: int = 0):
    """Write a loop over `size` elements, with `i` and the mask `inside`; of rows of a `width`."""
    block = min(power_of_two(size), threads)
    with t.block(f"for begin in tl.range(0, {size}, {block}, num_stages=1):"):
        t.emit(f"i = begin + tl.arange(0, {block})")
        t.emit(f"inside = i < {size}")
        if width:
            t.emit(f"row = i // {width}")
            t.emit(f"column = i % {width}")
        yield


def place(
    index: str,
    axes,  # (size, stride, ...) of each, neighbours joined
) -> str:
    """Return the offset of the element at `index`, a number in the order of the axes."""
    parts, after = [], math.prod(size for size, *_ in axes)
    for n, (size, stride, *_) in enumerate(axes):
        after //= size
        along = index if after == 1 else f"({index} // {after})"
        along = f"({along} % {size})" if n else along
        if stride:
            parts.append(f"{along} * {stride}" if stride != 1 else along)
    return " + ".join(parts or [f"{index} * 0"])


def write_loop(t: Emitter, step: ElementwiseLoop, arrays, names: dict[int, str], threads: int):
    """Write functions of one size; those results are stored that have a name."""
    functions = FunctionEmitter(t)

    def load(n: int) -> str:
        one = arrays[n].size == 1
        address = names[n] if one else f"{names[n]} + i, mask=inside, other=0"
        value = functions.name(f"tl.load({address})")
        return functions.name(f"{value} != 0") if arrays[n].dtype == "bool" else value

    def store(n: int, value: str):
        value = f"{value}.to(tl.int32)" if arrays[n].dtype == "bool" else value
        t.emit(f"tl.store({names[n]} + i, {value}, mask=inside)")

    with elements(t, arrays[step.writes[0]].size, threads):
        step.emit(arrays, names, load, functions.number, functions.apply, store)


def _constant(number: Number, dtype: str, shape: str) -> str:
    """Return a number as what is stored between steps."""
    value = int(number.value) if dtype == "bool" else number.value
    return constant(value, STORED[dtype], shape)


def _loaded(address: str, dtype: str, other: str = "0") -> str:
    """Return the text of a load, as what is stored between steps."""
    text = f"tl.load({address}, mask=inside, other={other})"
    return f"{text}.to(tl.int32)" if dtype == "bool" else text


def write_copy(t: Emitter, step: Copy, arrays, names: dict[int, str], threads: int) -> list[int]:
    """Write a copy, with sizes and strides as arguments, so that one function serves many.

    They are the numbers `n0`, `n1`, ..., with which it is called behind the pointers.
    """
    dtype = arrays[step.write].dtype
    [read] = step.reads
    numbers = [math.prod(step.sizes), step.first_in, step.first_out]
    with t.block(f"for begin in tl.range(0, n0, {threads}, num_stages=1):"):
        t.emit(f"i = begin + tl.arange(0, {threads})")
        t.emit("inside = i < n0")
        t.emit("rest, source, target = i, n1, n2")
        axes = step.axes or [(1, 1, 1)]
        for k, (size, stride_in, stride_out) in enumerate(reversed(axes)):
            index = "rest"
            if k < len(axes) - 1:
                t.emit(f"index{k} = rest % n{len(numbers)}")
                t.emit(f"rest = rest // n{len(numbers)}")
                numbers.append(size)
                index = f"index{k}"
            t.emit(f"source += {index} * n{len(numbers)}")
            t.emit(f"target += {index} * n{len(numbers) + 1}")
            numbers += [stride_in, stride_out]
        if isinstance(read, Number):
            value = _constant(read, dtype, "[]")
        else:
            t.emit(f"value = {_loaded(f'{names[read]} + source', dtype)}")
            value = "value"
        t.emit(f"tl.store({names[step.write]} + target, {value}, mask=inside)")
    return numbers


def write_reduce(t: Emitter, step: Reduce, arrays, names: dict[int, str], threads: int):
    """Write a sum or the like: `k` of what stays by `r` of what it runs over."""
    [read], dtype = step.reads, arrays[step.write].dtype
    count, length = math.prod(step.sizes), math.prod(step.sizes_over)
    across = min(power_of_two(length), REDUCED)
    down = min(power_of_two(count), max(1, threads // across))
    stored = STORED[dtype]
    first = literal(step.initial(dtype), stored)
    if step.function in ("max", "min"):
        added = larger("total", "value", dtype, step.function)
    else:
        added = f"total {OPERATORS[step.function]} value"
    with t.block(f"for begin in tl.range(0, {count}, {down}, num_stages=1):"):
        t.emit(f"k = begin + tl.arange(0, {down})[:, None]")
        t.emit(f"total = tl.full([{down}, {across}], {first}, tl.{stored})")
        with t.block(f"for over in tl.range(0, {length}, {across}, num_stages=1):"):
            t.emit(f"r = over + tl.arange(0, {across})[None, :]")
            t.emit(f"inside = (k < {count}) & (r < {length})")
            at = f"{place('k', step.kept)} + {place('r', step.over)}"
            t.emit(f"value = {_loaded(f'{names[read]} + {at}', dtype, first)}")
            t.emit(f"total = {added}")
        t.emit(f"whole = {_over_axis(step.function, dtype)}")
        t.emit(f"tl.store({names[step.write]} + k, whole, mask=k < {count})")


def _over_axis(function: str, dtype: str) -> str:
    name = {"add": "sum", "max": "max", "or": "max", "min": "min", "and": "min"}[function]
    text = f"tl.{name}(total, axis=1, keep_dims=True)"
    if function == "add" or dtype in ("bool", "int32"):
        return text
    nan = "tl.sum((total != total).to(tl.int32), axis=1, keep_dims=True) > 0"
    return f'tl.where({nan}, float("nan"), {text})'


def write_gather(t: Emitter, step: Gather, arrays, names: dict[int, str], threads: int):
    """Write rows chosen by an index."""
    source, index = step.reads
    rows, dtype = arrays[source].size // step.width, arrays[source].dtype
    with elements(t, arrays[step.write].size, threads, step.width):
        t.emit(f"chosen = tl.load({names[index]} + row, mask=inside, other=0)")
        t.emit(f"nearest = tl.minimum(tl.maximum(chosen, 0), {rows - 1})")
        address = f"{names[source]} + nearest * {step.width} + column"
        t.emit(f"value = {_loaded(address, dtype)}")
        if step.fill is not None:
            fill = _constant(step.fill, dtype, "[1]")
            t.emit(f"value = tl.where(chosen == nearest, value, {fill})")
        t.emit(f"tl.store({names[step.write]} + i, value, mask=inside)")


def write_scatter_add(t: Emitter, step: ScatterAdd, arrays, names: dict[int, str], threads: int):
    """Write rows added to others: each element looks through all indices, in order."""
    start, index, updates = step.reads
    size, count = arrays[start].size, arrays[index].size
    with elements(t, size, threads, step.width):
        t.emit(f"total = tl.load({names[start]} + i, mask=inside, other=0)")
        with t.block(f"for update in tl.range(0, {count}, num_stages=1):"):
            t.emit(f"chosen = tl.load({names[index]} + update)")
            if step.clipped:
                rows = size // step.width
                t.emit(f"chosen = tl.minimum(tl.maximum(chosen, 0), {rows - 1})")
            t.emit("mine = inside & (row == chosen)")
            address = f"{names[updates]} + update * {step.width} + column"
            t.emit(f"total += tl.load({address}, mask=mine, other=0)")
        t.emit(f"tl.store({names[step.write]} + i, total, mask=inside)")


WRITERS = {
    ElementwiseLoop: write_loop,
    Copy: write_copy,
    Reduce: write_reduce,
    Gather: write_gather,
    ScatterAdd: write_scatter_add,
}
"""By the kind of step that is no form; `names` are the pointers to arrays in memory."""


class FormEmitter(DenseEmitter):
    """Writes a form; pointers have the names of operands and of index arrays."""

    def __init__(self, form: Form, dtype: str, num_rows: int, num_nodes: int, threads: int):
        super().__init__(dtype)
        self.form, self.num_rows, self.num_nodes = form, num_rows, num_nodes
        self.channels = power_of_two(form.max_mul)
        self.rows = max(1, threads // self.channels)

    def emit_all(self):
        for index in dict.fromkeys(o.index for o in self.form.outputs):
            written = [o for o, operand in enumerate(self.form.outputs) if operand.index is index]
            paths = tuple(p for p in self.form.paths if p.output.operand in written)
            part = Form(self.form.inputs, self.form.outputs, paths)
            count = self.num_nodes if index.is_node else self.num_rows
            with self.block(f"for first in tl.range(0, {count}, {self.rows}, num_stages=1):"):
                self.emit(f"own = (first + tl.arange(0, {self.rows}))[:, None]")
                self.emit(f"owned = own < {count}")
                self.emit(f"lane = tl.arange(0, {self.channels})[None, :]")
                zeros = f"tl.zeros([{self.rows}, {self.channels}], {self.real})"
                for name, _, _ in itertools.chain(*map(self._components, written)):
                    self.emit(f"{name} = {zeros}")
                self._walk(part, index) if index.is_node else self._add(part, "own", "owned")
                for o in written:
                    self._store(o)

    def _components(self, o: int):
        operand = self.form.outputs[o]
        for number, segment in enumerate(operand.segments):
            for component, name in enumerate(component_names(operand, number)):
                yield name, segment, component

    def _walk(self, part: Form, index: Index):
        order, offsets = index.edge_arrays
        self.emit(f"start = tl.load({offsets}_ptr + own, mask=owned, other=0)")
        self.emit(f"stop = tl.load({offsets}_ptr + own + 1, mask=owned, other=0)")
        self.emit("longest = tl.max(stop - start)")
        self.emit("walked = longest * 0")
        with self.block("while walked < longest:"):
            self.emit("present = owned & (start + walked < stop)")
            self.emit(f"edge = tl.load({order}_ptr + start + walked, mask=present, other=0)")
            self._add(part, "edge", "present", index)
            self.emit("walked += 1")

    def _add(self, part: Form, edge: str, present: str, own: Index | None = None):
        used = [o for o, keep in zip(part.inputs, part.used_inputs(), strict=True) if keep]
        rows = {Index.ROW: edge, Index.SHARED: "(own * 0)"} | ({own: "own"} if own else {})
        for index in (Index.SENDER, Index.RECEIVER):
            if index not in rows and any(o.index is index for o in used):
                at = f"{index.value}s_ptr + {edge}"
                self.emit(f"{index.value} = tl.load({at}, mask={present}, other=0)")
                rows[index] = index.value
        for operand in used:
            row = f"{rows[operand.index]} * {operand.size}"
            self.emit(f"{operand.name}_row = {operand.name}_ptr + {row}")
        for mul in sorted({s.mul for o in used if o.channels for s in o.segments}):
            self.emit(f"in_{mul} = {present} & (lane < {mul})")

        def load(operand, segment, component, name):
            place, mask = self._place(operand, segment, component, present)
            self.emit(f"{name} = {self.loaded(f'{operand.name}_row + {place}', mask)}")

        ArithmeticEmitter(part, load, self.emit).add_all()

    def _place(self, operand: Operand, segment, component: int, present: str):
        offset = segment.offset + component * segment.component_stride
        if not operand.channels:
            return f"{offset}", present
        return f"{offset} + lane * {segment.channel_stride}", f"in_{segment.mul}"

    def _store(self, o: int):
        operand = self.form.outputs[o]
        row = f"{operand.name}_ptr + own * {operand.size}"
        for name, segment, component in self._components(o):
            place, mask = self._place(operand, segment, component, "owned")
            if operand.channels:
                mask = f"owned & (lane < {segment.mul})"
            else:
                name = f"tl.sum({name}, axis=1, keep_dims=True)"
            self.emit(f"tl.store({row} + {place}, {name}, mask={mask})")


class _Job(linear.JobEmitter):
    """Writes a job whose programs are the turns of a loop."""

    def together(self, size: int, most: int) -> int:
        return 1  # a sequence is long to compile

    @contextlib.contextmanager
    def _mine(self, count: str):
        self.text.emit("number = tl.program_id(0) * 0")
        with self.text.block(f"while number < {count}:"):
            yield
            self.text.emit("number += 1")


def emit_linear(form: LinearForm, dtype: str, num_rows: int) -> DenseEmitter:
    """Return the statements of a linear form of `a0_ptr`, ..., `set_index_ptr` to `o0_ptr`, ..."""
    text = DenseEmitter(dtype, form.input_precision)
    text.emit(f"num_rows = {num_rows}")
    text.emit("num_parts = 1")
    for job in linear.jobs(form):
        operand = form.outputs[job.output]
        writer = _Job(form, job, text, TILE if dtype == "float32" else linear.TILE)
        (writer.weights if isinstance(operand, Weights) else writer.rows)(operand)
    return text


class ProgramKernel(NamedTuple):
    """The kernel of a program: called with its inputs, writes its outputs and scratch memory."""

    spec: KernelSpec
    scratch: int  # elements of scratch memory, of the dtype of the forms


def cost(program: Program) -> int:
    """Return about how many operations one block has: of elements, products and matmuls."""
    total = program.elements
    for step in program.form_steps:
        if isinstance(step.form, Form):
            total += step.num_rows * 2 * step.form.num_terms * step.form.max_mul
        else:
            total += linear.operations(step.form, step.num_rows)
    return total


def unsupported_reason(step: Step) -> str:
    """Return why a step is none of a Triton kernel, or ""."""
    is_form = isinstance(step, FormStep) and isinstance(step.form, Form)
    if is_form and step.form.max_mul > MOST_CHANNELS:
        return f"more than {MOST_CHANNELS} channels"
    return ""


def prepared(program: Program) -> Program:
    """Return the same in loops, with arrays as they lie in memory: bool as int32."""
    arrays = tuple(dataclasses.replace(a, dtype=STORED[a.dtype]) for a in program.in_loops.arrays)
    return dataclasses.replace(program.in_loops, arrays=arrays)


def touched(program: Program) -> list[tuple[list, list]]:
    """Return the ranges that each step reads and writes, as (memory, begin, end) in bytes."""
    places, _ = program.places()
    memory = {n: (("array", n), 0) for n in (*program.inputs, *program.outputs)}
    memory |= {n: ("scratch", begin) for n, begin in places.items()}

    def parts(numbers):
        used = (n for n in dict.fromkeys(numbers) if n in memory)
        return [(*memory[n], memory[n][1] + program.arrays[n].bytes) for n in used]

    return [(parts(step.reads), parts(step.writes)) for step in program.steps]


def in_conflict(before, after) -> bool:
    """Return whether two steps touch the same memory, and one of them writes it."""
    (read, written), (reads, writes) = before, after
    pairs = itertools.chain(
        itertools.product(written, (*reads, *writes)), itertools.product(read, writes)
    )
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a, b in pairs)


def barriers(program: Program) -> frozenset[int]:
    """Return the numbers of the steps that a barrier has to stand before: as late as can be."""
    result, since = set(), []
    for k, step in enumerate(touched(program)):
        if any(in_conflict(before, step) for before in since):
            result.add(k)
            since = []
        since.append(step)
    return frozenset(result)


@functools.lru_cache(maxsize=64)
def generate(program: Program, dtype: str) -> ProgramKernel:
    """Return the kernel of a program whose forms are of one dtype."""
    return _ProgramEmitter(program, dtype).kernel()


class _ProgramEmitter:
    def __init__(self, program: Program, dtype: str):
        self.dtype, self.threads = dtype, 32 * WARPS
        self.logical = program.in_loops  # with bool
        self.program = prepared(program)
        self.places, self.scratch = self.program.places()
        self.functions: dict[str, list[str]] = {}  # by text
        self.main = Emitter()
        self.pointers: dict[int, str] = {}
        self.numbers: dict[int, str] = {}
        for side, numbers in (("in", program.inputs), ("out", program.outputs)):
            self.pointers |= {n: f"{side}{k}_ptr" for k, n in enumerate(numbers)}

    def kernel(self) -> ProgramKernel:
        guarded, names = barriers(self.program), [*self.pointers.values(), "scratch_ptr"]
        self.main.emit("bytes = scratch_ptr.to(tl.pointer_type(tl.int8))")
        for k, step in enumerate(self.logical.steps):
            if k in guarded:
                self.main.emit("tl.debug_barrier()")
            self._call(*self._statements(step))
        source = [f"# {len(self.logical.steps)} steps", "import triton"]
        source += ["import triton.language as tl"]
        for function in self.functions.values():
            source += ["", "", "@triton.jit(noinline=True)", *function]
        head = f"def KERNEL({', '.join(names)}):"
        source += ["", "", "@triton.jit", head, *self.main.lines, ""]
        types = [
            [pointer_type(self.logical.arrays[n].dtype) for n in side]
            for side in (self.program.inputs, self.program.outputs)
        ]
        types[1].append(pointer_type(self.dtype))
        spec = KernelSpec.build("steps", "\n".join(source), *types, (), WARPS)
        element = 8 if self.dtype == "float64" else 4
        return ProgramKernel(spec, max(1, self.scratch // element))

    def _pointer(self, n: int) -> str:
        if n not in self.pointers:
            kind = f"tl.pointer_type(tl.{self.program.arrays[n].dtype})"
            self.main.emit(f"p{n} = (bytes + {self.places[n]}).to({kind})")
            self.pointers[n] = f"p{n}"
        return self.pointers[n]

    def _number(self, n: int) -> str:
        """Return a number that is no constant of the function that it is given to."""
        if n not in self.numbers:
            self.numbers[n] = f"c{len(self.numbers)}"
            self.main.emit(f"{self.numbers[n]} = tl.full([], {n}, tl.int32)")
        return self.numbers[n]

    def _call(self, names: dict[str, str], statements: list[str]):
        """Call the function of these statements, which equal ones share."""
        text = "\n".join([*names, *statements])
        name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.functions[name] = [f"def {name}({', '.join(names)}):", *statements]
        self.main.emit(f"{name}({', '.join(names.values())})")

    def _statements(self, step: Step) -> tuple[dict[str, str], list[str]]:
        """Return the arguments of a step's function by parameter, and its statements."""
        if isinstance(step, FormStep):
            return self._form(step)
        given = {n: f"a{k}_ptr" for k, n in enumerate(self.program.in_memory(step))}
        emitter = Emitter()
        numbers = WRITERS[type(step)](emitter, step, self.logical.arrays, given, self.threads) or []
        names = {name: self._pointer(n) for n, name in given.items()}
        names |= {f"n{k}": self._number(n) for k, n in enumerate(numbers)}
        return names, emitter.lines

    def _form(self, step: FormStep) -> tuple[dict[str, str], list[str]]:
        form, indices = step.form, dict(step.indices)
        if isinstance(form, Form):
            emitter = FormEmitter(form, self.dtype, step.num_rows, step.num_nodes, self.threads)
            emitter.emit_all()
            sides = ([o.name for o in form.inputs], [o.name for o in form.outputs])
            names = {f"{name}_ptr": self._pointer(n) for name, n in indices.items()}
        else:
            emitter = emit_linear(form, self.dtype, step.num_rows)
            sides = [
                [f"{s}{n}" for n in range(len(of))]
                for s, of in (("a", form.inputs), ("o", form.outputs))
            ]
            names = {"set_index_ptr": self._pointer(indices["index"])} if form.num_sets else {}
        for side, numbers in zip(sides, (step.operands, step.writes), strict=True):
            names |= {f"{s}_ptr": self._pointer(n) for s, n in zip(side, numbers, strict=True)}
        return names, emitter.lines
