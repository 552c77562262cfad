"""A program that runs whole as one Triton kernel: one block takes its steps one after the other.

Arrays between the steps lie in scratch memory, which an array leaves to others after its last use.
Before a step that reads what another has written, or writes where another has read or written,
stands a barrier: `barriers` decides where, `unguarded` checks it. Steps of equal text are one
function.
"""

import dataclasses
import functools
import hashlib

from eqfuse.ops.backends.triton.emit import linear_plan, movement
from eqfuse.ops.backends.triton.emit.emitter import Emitter
from eqfuse.ops.backends.triton.emit.movement import STORED
from eqfuse.ops.backends.triton.emit.single_block import MOST_CHANNELS, FormEmitter, emit_linear
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.program import Program
from eqfuse.ops.ir.steps import Multilinear, Number, Step

WARPS = 8


@dataclasses.dataclass(frozen=True)
class ProgramKernel:
    """The kernel of a program: called with its inputs, writes its outputs and scratch memory.

    Attributes:
      scratch: elements of scratch memory, of the dtype of the forms.
      guarded: the numbers of the steps that a barrier stands before.
    """

    spec: KernelSpec
    scratch: int
    guarded: frozenset[int]


def cost(program: Program) -> int:
    """Return about how many operations one block has: of elements, products and matmuls."""
    total = program.elements
    for step in program.multilinear:
        if isinstance(step.form, Form):
            total += step.num_rows * 2 * step.form.num_terms * step.form.max_mul
        else:
            total += linear_plan.operations(step.form, step.num_rows)
    return total


def left_out(step: Step) -> str:
    """Return why a step is none of a Triton kernel, or ""."""
    is_form = isinstance(step, Multilinear) and isinstance(step.form, Form)
    if is_form and step.form.max_mul > MOST_CHANNELS:
        return f"more than {MOST_CHANNELS} channels"
    return ""


def prepared(program: Program) -> Program:
    """Return the same in loops, with arrays as they lie in memory: bool as int32."""
    arrays = tuple(dataclasses.replace(a, dtype=STORED[a.dtype]) for a in program.in_loops.arrays)
    return dataclasses.replace(program.in_loops, arrays=arrays)


# barriers


def touched(program: Program) -> list[tuple[list, list]]:
    """Return what each step reads and writes in memory, as (memory, begin, end) in bytes."""
    places, _ = program.places()
    outside = {n: ("array", n) for n in (*program.inputs, *program.outputs)}

    def parts(numbers):
        result = []
        for n in dict.fromkeys(n for n in numbers if not isinstance(n, Number)):
            if n in places:
                result.append(("scratch", places[n], places[n] + program.arrays[n].bytes))
            elif n in outside:
                result.append((outside[n], 0, program.arrays[n].bytes))
        return result

    return [(parts(step.reads), parts(step.writes)) for step in program.steps]


def _meet(some, others) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def _in_conflict(before, after) -> bool:
    (_, written), (reads, writes) = before, after
    return _meet(written, reads) or _meet(written, writes) or _meet(before[0], writes)


def barriers(program: Program) -> frozenset[int]:
    """Return the numbers of the steps that a barrier has to stand before: as late as can be."""
    result, since = set(), []
    for k, step in enumerate(touched(program)):
        if any(_in_conflict(before, step) for before in since):
            result.add(k)
            since = []
        since.append(step)
    return frozenset(result)


def unguarded(program: Program, guarded) -> list[tuple[int, int]]:
    """Return pairs of steps that touch the same memory, one writing, with no barrier between."""
    everything = touched(program)
    return [
        (a, b)
        for b in range(len(everything))
        for a in range(b)
        if _in_conflict(everything[a], everything[b]) and not any(a < k <= b for k in guarded)
    ]


# text


def generate(program: Program, dtype: str) -> ProgramKernel:
    """Return the kernel of a program whose forms are of one dtype."""
    return _generate(program, dtype, WARPS)


@functools.lru_cache(maxsize=64)
def _generate(program: Program, dtype: str, warps: int) -> ProgramKernel:
    return _ProgramEmitter(program, dtype, warps).kernel()


class _ProgramEmitter:
    def __init__(self, program: Program, dtype: str, warps: int):
        self.dtype, self.warps, self.threads = dtype, warps, 32 * warps
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
        guarded = barriers(self.program)
        self.main.emit("bytes = scratch_ptr.to(tl.pointer_type(tl.int8))")
        for k, step in enumerate(self.logical.steps):
            if k in guarded:
                self.main.emit("tl.debug_barrier()")
            self._call(*self._statements(step))
        names = [f"in{k}_ptr" for k in range(len(self.program.inputs))]
        outputs = [f"out{k}_ptr" for k in range(len(self.program.outputs))]
        source = [
            f"# {len(self.logical.steps)} steps",
            "import triton",
            "import triton.language as tl",
        ]
        for function in self.functions.values():
            source += ["", "", "@triton.jit(noinline=True)", *function]
        head = f"def KERNEL({', '.join([*names, *outputs, 'scratch_ptr'])}):"
        source += ["", "", "@triton.jit", head, *self.main.lines, ""]
        types = [
            [pointer_type(self.logical.arrays[n].dtype) for n in side]
            for side in (self.program.inputs, self.program.outputs)
        ]
        types[1].append(pointer_type(self.dtype))
        spec = KernelSpec.build("steps", "\n".join(source), *types, (), self.warps)
        element = 8 if self.dtype == "float64" else 4
        return ProgramKernel(spec, max(1, self.scratch // element), guarded)

    def _pointer(self, n: int) -> str:
        """Return where an array lies."""
        if n not in self.pointers:
            kind = f"tl.pointer_type(tl.{self.program.arrays[n].dtype})"
            self.main.emit(f"p{n} = (bytes + {self.places[n]}).to({kind})")
            self.pointers[n] = f"p{n}"
        return self.pointers[n]

    def _number(self, n: int) -> str:
        """Return a number that is no constant of the function that it is given to."""
        if n not in self.numbers:
            self.main.emit(f"c{len(self.numbers)} = tl.full([], {n}, tl.int32)")
            self.numbers[n] = f"c{len(self.numbers)}"
        return self.numbers[n]

    def _call(self, names: dict[str, str], statements: list[str]):
        """Call the function of these statements, which equal ones share."""
        text = "\n".join([*names, *statements])
        name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.functions[name] = [f"def {name}({', '.join(names)}):", *statements]
        self.main.emit(f"{name}({', '.join(names.values())})")

    def _statements(self, step: Step) -> tuple[dict[str, str], list[str]]:
        """Return the arguments of a step's function by parameter, and its statements."""
        if isinstance(step, Multilinear):
            return self._multilinear(step)
        given = {n: f"a{k}_ptr" for k, n in enumerate(self.program.in_memory(step))}
        emitter = Emitter()
        numbers = movement.emit(emitter, step, self.logical.arrays, given, self.threads)
        names = {name: self._pointer(n) for n, name in given.items()}
        names |= {f"n{k}": self._number(n) for k, n in enumerate(numbers)}
        return names, emitter.lines

    def _multilinear(self, step: Multilinear) -> tuple[dict[str, str], list[str]]:
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
