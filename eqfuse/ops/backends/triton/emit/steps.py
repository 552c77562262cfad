"""Steps as one Triton kernel: one block takes them one after the other.

Arrays between the steps lie in scratch memory, which an array leaves to others after its last use.
Before a step that reads what another has written, or writes where another has read or written,
stands a barrier: `barriers` says where, `unguarded` checks it. Steps of equal text are one
function.
"""

import dataclasses
import functools
import hashlib

from eqfuse.ops.backends.triton.emit import linear_plan, movement
from eqfuse.ops.backends.triton.emit.lines import LineWriter
from eqfuse.ops.backends.triton.emit.lockstep import MOST_CHANNELS, FormWriter, write_linear
from eqfuse.ops.backends.triton.emit.movement import STORED
from eqfuse.ops.backends.triton.spec import KernelSpec, pointer_type
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.steps import Copy, Gather, Kernel, Maps, Number, Reduce, Steps

WARPS = 8


@dataclasses.dataclass(frozen=True)
class StepsKernel:
    """A kernel of steps: called with their inputs, writes their outputs and scratch memory.

    Attributes:
      scratch: elements of scratch memory, of the dtype of the forms.
      guarded: the numbers of the steps that a barrier stands before.
    """

    spec: KernelSpec
    scratch: int
    guarded: frozenset[int]


def cost(steps: Steps) -> int:
    """Return about how many operations one block has: of elements, products and matmuls."""
    total = steps.elements
    for step in steps.steps:
        if isinstance(step, Kernel) and isinstance(step.what, Form):
            total += step.num_rows * 2 * step.what.num_terms * step.what.max_mul
        elif isinstance(step, Kernel):
            total += linear_plan.operations(step.what, step.num_rows)
    return total


def left_out(step) -> str:
    """Return why a step is none of a Triton kernel, or ""."""
    is_form = isinstance(step, Kernel) and isinstance(step.what, Form)
    if is_form and step.what.max_mul > MOST_CHANNELS:
        return f"more than {MOST_CHANNELS} channels"
    return ""


def prepared(steps: Steps) -> Steps:
    """Return the same steps in loops, with arrays as they lie in memory: bool as int32."""
    arrays = tuple(dataclasses.replace(a, dtype=STORED[a.dtype]) for a in steps.in_loops.arrays)
    return dataclasses.replace(steps.in_loops, arrays=arrays)


# barriers


def touched(steps: Steps) -> list[tuple[list, list]]:
    """Return what each step reads and writes in memory, as (memory, begin, end) in bytes."""
    places, _ = steps.places()
    outside = {n: ("array", n) for n in (*steps.inputs, *steps.outputs)}

    def parts(numbers):
        found = []
        for n in dict.fromkeys(n for n in numbers if not isinstance(n, Number)):
            if n in places:
                found.append(("scratch", places[n], places[n] + steps.arrays[n].bytes))
            elif n in outside:
                found.append((outside[n], 0, steps.arrays[n].bytes))
        return found

    return [(parts(step.reads), parts(step.writes)) for step in steps.steps]


def _meet(some, others) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def _in_conflict(before, after) -> bool:
    (_, written), (reads, writes) = before, after
    return _meet(written, reads) or _meet(written, writes) or _meet(before[0], writes)


def barriers(steps: Steps) -> frozenset[int]:
    """Return the numbers of the steps that a barrier has to stand before: as late as can be."""
    found, since = set(), []
    for k, step in enumerate(touched(steps)):
        if any(_in_conflict(before, step) for before in since):
            found.add(k)
            since = []
        since.append(step)
    return frozenset(found)


def unguarded(steps: Steps, guarded) -> list[tuple[int, int]]:
    """Return pairs of steps that touch the same memory, one of them writing, with no barrier
    between them.
    """
    everything = touched(steps)
    return [
        (a, b)
        for b in range(len(everything))
        for a in range(b)
        if _in_conflict(everything[a], everything[b]) and not any(a < k <= b for k in guarded)
    ]


# text


def generate(steps: Steps, dtype: str) -> StepsKernel:
    """Return the kernel of steps whose forms are of one dtype."""
    return _generate(steps, dtype, WARPS)


@functools.lru_cache(maxsize=64)
def _generate(steps: Steps, dtype: str, warps: int) -> StepsKernel:
    return _Generator(steps, dtype, warps).kernel()


class _Generator:
    def __init__(self, steps: Steps, dtype: str, warps: int):
        self.dtype, self.warps, self.threads = dtype, warps, 32 * warps
        self.meant = steps.in_loops  # with bool
        self.steps = prepared(steps)
        self.places, self.scratch = self.steps.places()
        self.functions: dict[str, list[str]] = {}  # by text
        self.main = LineWriter()
        self.pointers: dict[int, str] = {}
        self.numbers: dict[int, str] = {}
        for side, numbers in (("in", steps.inputs), ("out", steps.outputs)):
            self.pointers |= {n: f"{side}{k}_ptr" for k, n in enumerate(numbers)}

    def kernel(self) -> StepsKernel:
        guarded = barriers(self.steps)
        self.main.emit("bytes = scratch_ptr.to(tl.pointer_type(tl.int8))")
        for k, step in enumerate(self.meant.steps):
            if k in guarded:
                self.main.emit("tl.debug_barrier()")
            names, body = self._body(step)
            self._call(names, body)
        names = [f"in{k}_ptr" for k in range(len(self.steps.inputs))]
        outputs = [f"out{k}_ptr" for k in range(len(self.steps.outputs))]
        source = [
            f"# {len(self.meant.steps)} steps",
            "import triton",
            "import triton.language as tl",
        ]
        for head, *lines in self.functions.values():
            source += ["", "", "@triton.jit(noinline=True)", head, *lines]
        head = f"def KERNEL({', '.join([*names, *outputs, 'scratch_ptr'])}):"
        source += ["", "", "@triton.jit", head, *self.main.lines, ""]
        types = [
            [pointer_type(self.meant.arrays[n].dtype) for n in side]
            for side in (self.steps.inputs, self.steps.outputs)
        ]
        types[1].append(pointer_type(self.dtype))
        spec = KernelSpec.build("steps", "\n".join(source), *types, (), self.warps)
        element = 8 if self.dtype == "float64" else 4
        return StepsKernel(spec, max(1, self.scratch // element), guarded)

    def _pointer(self, n: int) -> str:
        """Return where an array lies."""
        if n not in self.pointers:
            kind = f"tl.pointer_type(tl.{self.steps.arrays[n].dtype})"
            self.main.emit(f"p{n} = (bytes + {self.places[n]}).to({kind})")
            self.pointers[n] = f"p{n}"
        return self.pointers[n]

    def _number(self, n: int) -> str:
        """Return a number that is no constant of the function that it is given to."""
        if n not in self.numbers:
            self.main.emit(f"c{len(self.numbers)} = tl.full([], {n}, tl.int32)")
            self.numbers[n] = f"c{len(self.numbers)}"
        return self.numbers[n]

    def _call(self, names: dict[str, str], lines: list[str]):
        """Call the function of a body, which equal ones share."""
        text = "\n".join([*names, *lines])
        name = f"step_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.functions[name] = [f"def {name}({', '.join(names)}):", *lines]
        self.main.emit(f"{name}({', '.join(names.values())})")

    def _body(self, step) -> tuple[dict[str, str], list[str]]:
        """Return the parameters of a step's function with what they are given, and its lines."""
        if isinstance(step, Kernel):
            return self._kernel_body(step)
        stored = (*self.steps.inputs, *self.steps.outputs, *self.places)
        numbers = dict.fromkeys(n for n in (*step.reads, *step.writes) if not isinstance(n, Number))
        given = {n: f"a{k}_ptr" for k, n in enumerate(n for n in numbers if n in stored)}
        t, arrays = LineWriter(), self.meant.arrays
        if isinstance(step, Maps):
            movement.write_maps(t, step, arrays, given, self.threads)
        elif isinstance(step, Copy):
            found = movement.write_copy(t, step, arrays, given, self.threads)
            names = {name: self._pointer(n) for n, name in given.items()}
            return names | {f"n{k}": self._number(n) for k, n in enumerate(found)}, t.lines
        elif isinstance(step, Reduce):
            movement.write_reduce(t, step, arrays, given, self.threads)
        elif isinstance(step, Gather):
            movement.write_gather(t, step, arrays, given, self.threads)
        else:
            movement.write_scatter_add(t, step, arrays, given, self.threads)
        return {name: self._pointer(n) for n, name in given.items()}, t.lines

    def _kernel_body(self, step: Kernel):
        what, indices = step.what, dict(step.indices)
        if isinstance(what, Form):
            t = FormWriter(what, self.dtype, step.num_rows, step.num_nodes, self.threads)
            t.write()
            sides = ([o.name for o in what.inputs], [o.name for o in what.outputs])
            names = {f"{name}_ptr": self._pointer(n) for name, n in indices.items()}
        else:
            t = write_linear(what, self.dtype, step.num_rows)
            sides = [
                [f"{s}{n}" for n in range(len(of))]
                for s, of in (("a", what.inputs), ("o", what.outputs))
            ]
            names = {"set_index_ptr": self._pointer(indices["index"])} if what.num_sets else {}
        for side, numbers in zip(sides, (step.operands, step.writes), strict=True):
            names |= {f"{s}_ptr": self._pointer(n) for s, n in zip(side, numbers, strict=True)}
        return names, t.lines
