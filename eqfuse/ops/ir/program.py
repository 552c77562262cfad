"""A program: steps that one kernel runs one after the other, from arrays to arrays.

There are two ways to run one.

- By rows: all steps for a block of rows, then for the next block. Between a product of edge
  features and its Linear lies an array with all paths of the product, the largest of a model;
  between the derivatives of both lie its tangents and cotangents. Such a kernel keeps them in the
  cache. `transforms.fused_op` makes these programs of what JAX makes of a definition and its
  derivatives, so that no derivative is written by hand. Their steps are forms and activations.
- Whole: each step for all rows. Where a network is small, what it takes to begin each operation is
  more than the operation itself. `transforms.sequence` makes these programs, of all kinds of step.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import math

from eqfuse.ops.ir.form import Form, Index, Operand
from eqfuse.ops.ir.fused import Activated

BYTES = {"bool": 1, "int32": 4, "float32": 4, "float64": 8}


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of `size` elements, at least one, or of rows of `size` elements each."""

    size: int
    dtype: str
    index: Index = Index.SHARED

    @property
    def bytes(self) -> int:
        return self.size * BYTES[self.dtype]


@dataclasses.dataclass(frozen=True, eq=False)
class Number:
    """An operand that is the same number everywhere. -0 is another one than 0."""

    value: float

    def __eq__(self, other):
        return isinstance(other, Number) and repr(self.value) == repr(other.value)

    def __hash__(self):
        return hash(repr(self.value))


class _OneResult:
    write: int

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.write,)


def strides_of(shape) -> tuple[int, ...]:
    """Return the elements between neighbours of each axis of an array that lies in order."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


def merged_axes(*axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return axes (size, stride, ...) without those of size 1, with adjacent ones merged."""
    result: list[tuple[int, ...]] = []
    for size, *strides in zip(*axes, strict=True):
        if size == 1:
            continue
        if result and all(a == size * b for a, b in zip(result[-1][1:], strides, strict=True)):
            result[-1] = (result[-1][0] * size, *strides)
        else:
            result.append((size, *strides))
    return result


@dataclasses.dataclass(frozen=True)
class Elementwise(_OneResult):
    """One of `functions.FUNCTIONS`, element by element."""

    function: str
    reads: tuple[int | Number, ...]  # arrays of the size of what is written, or of one element
    write: int
    power: int = 0  # of "integer_pow"

    def dtypes(self, arrays) -> list[str]:
        """Return the dtype of each operand; all but the first of "select" have the last one."""
        dtypes = [arrays[n].dtype for n in self.reads if not isinstance(n, Number)]
        dtype = dtypes[-1] if dtypes else arrays[self.write].dtype
        if self.function == "select":
            return ["bool", *[arrays[self.write].dtype] * 2]
        return [dtype] * len(self.reads)


@dataclasses.dataclass(frozen=True)
class ElementwiseLoop:
    """Element-wise functions of one size, in one loop."""

    functions: tuple[Elementwise, ...]

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """Return the arrays that it reads and does not write itself."""
        result = dict.fromkeys(
            n for m in self.functions for n in m.reads if not isinstance(n, Number)
        )
        return tuple(n for n in result if n not in self.writes)

    @functools.cached_property
    def writes(self) -> tuple[int, ...]:
        return tuple(m.write for m in self.functions)


@dataclasses.dataclass(frozen=True)
class Copy(_OneResult):
    """Elements of one array, copied to some places of another.

        out[first_out + sum_d i_d stride_out_d] = in[first_in + sum_d i_d stride_in_d]

    Several copies may write one array, the later ones over the earlier ones.
    """

    reads: tuple[int | Number]
    write: int
    sizes: tuple[int, ...]
    strides_in: tuple[int, ...]
    strides_out: tuple[int, ...]
    first_in: int = 0
    first_out: int = 0

    @property
    def axes(self) -> list[tuple[int, int, int]]:
        """Return (size, stride of what is read, of what is written) of each axis, merged."""
        return merged_axes(self.sizes, self.strides_in, self.strides_out)


@dataclasses.dataclass(frozen=True)
class Reduce(_OneResult):
    """A sum ("add"), "max", "min", "or" or "and" over some axes of an array."""

    function: str
    reads: tuple[int]
    write: int
    sizes: tuple[int, ...]  # of the axes that stay, in the order of what is written
    strides: tuple[int, ...]
    sizes_over: tuple[int, ...]  # of those that it runs over
    strides_over: tuple[int, ...]

    @property
    def kept(self) -> list[tuple[int, int, int]]:
        """Return (size, stride of what is read, of what is written) of the axes that stay."""
        return merged_axes(self.sizes, self.strides, strides_of(self.sizes))

    @property
    def over(self) -> list[tuple[int, int]]:
        """Return (size, stride) of the axes that it runs over, merged."""
        return merged_axes(self.sizes_over, self.strides_over)

    def initial(self, dtype: str) -> float:
        """Return the identity element of the reduction."""
        values = {"add": 0.0, "max": -math.inf, "min": math.inf, "or": 0, "and": 1}
        if dtype == "int32":
            values |= {"max": -(2**31), "min": 2**31 - 1}
        return values[self.function]


@dataclasses.dataclass(frozen=True)
class Gather(_OneResult):
    """Rows of `width` elements: reads are the rows and the index of each row that is written.

    An index out of range reads the nearest row, or gives rows of `fill` if that is not None.
    """

    reads: tuple[int, int]
    write: int
    width: int
    fill: Number | None


@dataclasses.dataclass(frozen=True)
class ScatterAdd(_OneResult):
    """Rows added to others: reads are what they are added to, the index of each, and the rows.

    A row of an index out of range is dropped, or goes to the nearest row if `clipped`.
    """

    reads: tuple[int, int, int]
    write: int
    width: int
    clipped: bool


@dataclasses.dataclass(frozen=True)
class FormStep:
    """A form, or activations of scalars of rows.

    A program over rows is given its index arrays by name when it is called, and how many rows and
    nodes there are; `indices` and the two numbers are empty there.
    """

    form: Form | Activated
    operands: tuple[int, ...]
    writes: tuple[int, ...]
    indices: tuple[tuple[str, int], ...] = ()  # index arrays that it may need, by name
    num_rows: int = 0
    num_nodes: int = 0

    @property
    def reads(self) -> tuple[int, ...]:
        return (*self.operands, *(n for _, n in self.indices))


Step = ElementwiseLoop | Elementwise | Copy | Reduce | Gather | ScatterAdd | FormStep


ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps from the arrays `inputs` to the arrays `outputs`, in an order in which they can run.

    `indices` are number, name and limit of inputs that are index arrays. An index is less than the
    limit; offsets end with it. `views` are arrays that are a part of an input: number, that of the
    input, and its first element there.
    """

    arrays: tuple[Array, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    indices: tuple[tuple[int, str, int], ...] = ()
    views: tuple[tuple[int, int, int], ...] = ()

    @functools.cached_property
    def _hash(self):
        fields = self.arrays, self.inputs, self.outputs, self.steps, self.indices, self.views
        return hash(fields)

    def __hash__(self):
        return self._hash

    @property
    def form_steps(self) -> list[FormStep]:
        return [s for s in self.steps if isinstance(s, FormStep)]

    @property
    def forms(self) -> list[Form]:
        return [s.form for s in self.form_steps if isinstance(s.form, Form)]

    # programs that run by rows

    @functools.cached_property
    def mixed(self) -> dict[int, Operand]:
        """Return what forms with matrices, and activations, read and write: operands by array."""
        result = {}
        for step in self.form_steps:
            if isinstance(step.form, Activated) or step.form.has_matrices:
                numbers = (*step.operands, *step.writes)
                result |= zip(numbers, step.form.operands, strict=True)
        return result

    @functools.cached_property
    def local(self) -> tuple[int, ...]:
        """Return the arrays that are neither inputs nor outputs."""
        return tuple(n for s in self.steps for n in s.writes if n not in self.outputs)

    @property
    def on_graph(self) -> bool:
        """Return whether some step reads or writes nodes."""
        return any(form.on_graph for form in self.forms)

    @property
    def runs_by_rows(self) -> bool:
        """Return whether blocks of rows can run through it, and it is worth a kernel of its own."""
        if not self.local or set(self.inputs) & set(self.outputs):
            return False
        indices = {o.index for form in self.forms for o in form.operands if not o.matrix}
        if indices & {Index.SENDER, Index.SHARED} or any(form.num_sets for form in self.forms):
            return False
        between = {n for s in self.steps for n in s.reads} - set(self.inputs) | set(self.local)
        return all(self.arrays[n].index is Index.ROW for n in between)

    # programs that run whole

    @functools.cached_property
    def in_loops(self) -> Program:
        """Return the same with element-wise functions of one size in one loop, if they can be.

        A function moves up to the last loop of its size that all it reads comes before.
        """
        steps: list[list[Elementwise] | Step] = []
        loops: dict[int, list[int]] = {}
        made: dict[int, int] = {}
        for step in self.steps:
            place = None
            if isinstance(step, Elementwise):
                size = self.arrays[step.write].size
                ready = max((made.get(n, -1) for n in step.reads if isinstance(n, int)), default=-1)
                last = loops.setdefault(size, [])
                if last and last[-1] >= ready:
                    place = last[-1]
                    steps[place].append(step)
                else:
                    last.append(len(steps))
                    steps.append([step])
            else:
                steps.append(step)
            for n in step.writes:
                made[n] = len(steps) - 1 if place is None else place
        looped = (ElementwiseLoop(tuple(s)) if isinstance(s, list) else s for s in steps)
        return dataclasses.replace(self, steps=tuple(looped))

    @functools.cached_property
    def uses(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last step that touches each array."""
        result: dict[int, tuple[int, int]] = {}
        for k, step in enumerate(self.steps):
            for n in _touched(step):
                result[n] = result.get(n, (k, k))[0], k
        return result

    def stored(self) -> set[int]:
        """Return the arrays that need memory of their own: not those within one loop only."""
        outside = set()
        for k, step in enumerate(self.steps):
            in_loop = isinstance(step, ElementwiseLoop)
            outside |= {n for n in step.writes if not in_loop or self.uses[n][1] > k}
        return outside - set(self.outputs)

    def places(self) -> tuple[dict[int, int], int]:
        """Return the offset of each stored array in scratch memory, and the size of all, in bytes.

        An array takes the place of one of its size that is not used any more, if there is one.
        """
        free: dict[int, list[int]] = collections.defaultdict(list)  # places, by size
        live: list[tuple[int, int, int]] = []  # a heap: last step, place, size
        result, total = {}, 0
        for n in sorted(self.stored(), key=lambda n: self.uses[n][0]):
            first, last = self.uses[n]
            while live and live[0][0] < first:
                _, place, size = heapq.heappop(live)
                free[size].append(place)
            size = -(-self.arrays[n].bytes // ALIGNMENT) * ALIGNMENT
            result[n] = free[size].pop() if free[size] else total
            total = max(total, result[n] + size)
            heapq.heappush(live, (last, result[n], size))
        return result, total

    def in_memory(self, step: Step) -> list[int]:
        """Return the arrays of a step that are inputs, views, outputs or stored, in its order."""
        return [n for n in _touched(step) if n in self._kept]

    @functools.cached_property
    def _kept(self) -> set[int]:
        return self.stored().union(self.inputs, self.outputs, (n for n, *_ in self.views))


def _touched(step: Step) -> list[int]:
    """Return the arrays that a step reads or writes, each once."""
    return list(dict.fromkeys(n for n in (*step.reads, *step.writes) if not isinstance(n, Number)))
