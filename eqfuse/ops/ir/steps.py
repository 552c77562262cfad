"""A whole computation as steps: products and Linears, and the operations between them.

Where a network is small, what it takes to begin each operation is more than the operation itself.
`Steps` is a list of them for one kernel: forms and linear forms, element-wise functions, copies
that stand for every change of shape, sums, and rows that are gathered and added by an index array.
Arrays are numbered and flat; shapes are in the steps. Pure Python, hashable.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import math

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm

BYTES = {"bool": 1, "int32": 4, "float32": 4, "float64": 8}

REAL = frozenset(("div", "abs", "sign", "integer_pow", "pow", "sqrt", "rsqrt", "exp", "log"))
REAL |= {"log1p", "expm1", "tanh", "logistic", "sin", "cos", "square", "is_finite"}
"""Functions of real numbers alone."""

FUNCTIONS = REAL | {"add", "sub", "mul", "neg", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"}
FUNCTIONS |= {"and", "or", "not", "select", "convert", "identity"}
"""Element-wise functions that steps may have."""

ALIGNMENT = 64


def joined(*axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return axes (size, stride, ...) without those of size 1, neighbours as one where they can
    be.
    """
    found: list[tuple[int, ...]] = []
    for size, *strides in zip(*axes, strict=True):
        if size == 1:
            continue
        if found and all(a == size * b for a, b in zip(found[-1][1:], strides, strict=True)):
            found[-1] = (found[-1][0] * size, *strides)
        else:
            found.append((size, *strides))
    return found


@dataclasses.dataclass(frozen=True)
class Array:
    """A flat array of `size` elements, at least one."""

    size: int
    dtype: str

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


@dataclasses.dataclass(frozen=True)
class Map:
    """One of `FUNCTIONS`, element by element.

    Attributes:
      reads: arrays of the size of what is written, or of one element; or numbers.
      power: of "integer_pow".
    """

    function: str
    reads: tuple[int | Number, ...]
    write: int
    power: int = 0

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.write,)


@dataclasses.dataclass(frozen=True)
class Copy:
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
    def writes(self) -> tuple[int, ...]:
        return (self.write,)


@dataclasses.dataclass(frozen=True)
class Reduce:
    """A sum ("add"), "max", "min", "or" or "and" over some axes of an array.

    Attributes:
      sizes, strides: of the axes that stay, in the order of what is written.
      sizes_over, strides_over: of those that it runs over.
    """

    function: str
    reads: tuple[int]
    write: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    sizes_over: tuple[int, ...]
    strides_over: tuple[int, ...]

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.write,)


@dataclasses.dataclass(frozen=True)
class Gather:
    """Rows of `width` elements: reads are the rows and the index of each row that is written.

    An index out of range reads the nearest row, or gives rows of `fill` if that is not None.
    """

    reads: tuple[int, int]
    write: int
    width: int
    fill: Number | None

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.write,)


@dataclasses.dataclass(frozen=True)
class ScatterAdd:
    """Rows added to others: reads are what they are added to, the index of each, and the rows.

    A row of an index out of range is dropped, or goes to the nearest row if `clipped`.
    """

    reads: tuple[int, int, int]
    write: int
    width: int
    clipped: bool

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.write,)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A form or a linear form.

    Attributes:
      operands: an array for each input.
      indices: an array for each index array that it may need, by name.
      num_rows, num_nodes: of a form; a linear form has rows only.
    """

    what: Form | LinearForm
    operands: tuple[int, ...]
    indices: tuple[tuple[str, int], ...]
    writes: tuple[int, ...]
    num_rows: int
    num_nodes: int

    @property
    def reads(self) -> tuple[int, ...]:
        return (*self.operands, *(n for _, n in self.indices))


@dataclasses.dataclass(frozen=True)
class Maps:
    """Element-wise functions of one size, in one loop."""

    maps: tuple[Map, ...]

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """Return the arrays that it reads and does not write itself."""
        found = dict.fromkeys(n for m in self.maps for n in m.reads if not isinstance(n, Number))
        return tuple(n for n in found if n not in self.writes)

    @functools.cached_property
    def writes(self) -> tuple[int, ...]:
        return tuple(m.write for m in self.maps)


Step = Maps | Map | Copy | Reduce | Gather | ScatterAdd | Kernel


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps from the arrays `inputs` to the arrays `outputs`, in an order in which they can run.

    Attributes:
      indices: of inputs that are index arrays: number, name and limit. An index is less than the
        limit; offsets end with it.
    """

    arrays: tuple[Array, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    indices: tuple[tuple[int, str, int], ...] = ()

    @functools.cached_property
    def _hash(self):
        return hash((self.arrays, self.inputs, self.outputs, self.steps, self.indices))

    def __hash__(self):
        return self._hash

    @functools.cached_property
    def in_loops(self) -> Steps:
        """Return the same with element-wise functions of one size in one loop, if they can be.

        A function moves up to the last loop of its size that all it reads comes before.
        """
        steps: list[list[Map] | Step] = []
        loops: dict[int, list[int]] = {}
        made: dict[int, int] = {}
        for step in self.steps:
            place = None
            if isinstance(step, Map):
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
        joined = tuple(Maps(tuple(s)) if isinstance(s, list) else s for s in steps)
        return dataclasses.replace(self, steps=joined)

    @functools.cached_property
    def uses(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last step that touches each array; outputs are used at the
        end.
        """
        found: dict[int, tuple[int, int]] = {}
        for k, step in enumerate(self.steps):
            for n in (*step.reads, *step.writes):
                if not isinstance(n, Number):
                    found[n] = found.get(n, (k, k))[0], k
        return found

    def stored(self) -> set[int]:
        """Return the arrays that need memory of their own: not those within one loop only."""
        outside = set()
        for k, step in enumerate(self.steps):
            of_loop = set(step.writes) if isinstance(step, Maps) else set()
            outside |= {n for n in of_loop if self.uses[n][1] > k}
            if not isinstance(step, Maps):
                outside |= set(step.writes)
        return outside - set(self.outputs)

    def places(self) -> tuple[dict[int, int], int]:
        """Return where in scratch memory each stored array begins, in bytes, and the bytes of all.

        An array takes the first gap between those that are used at the same time.
        """
        gaps: list[tuple[int, float]] = [(0, math.inf)]  # begin, end, in order
        live: list[tuple[int, int, int]] = []  # a heap: last step, begin, end
        found, total = {}, 0
        for n in sorted(self.stored(), key=lambda n: self.uses[n][0]):
            first, last = self.uses[n]
            while live and live[0][0] < first:
                _, begin, end = heapq.heappop(live)
                k = bisect.bisect(gaps, (begin,))
                if gaps[k][0] == end:
                    end = gaps.pop(k)[1]
                if k and gaps[k - 1][1] == begin:
                    k -= 1
                    begin = gaps.pop(k)[0]
                gaps.insert(k, (begin, end))
            size = -(-self.arrays[n].bytes // ALIGNMENT) * ALIGNMENT
            k = next(k for k, (begin, end) in enumerate(gaps) if end - begin >= size)
            begin, end = gaps[k]
            gaps[k : k + 1] = [(begin + size, end)] if begin + size < end else []
            heapq.heappush(live, (last, begin, begin + size))
            found[n], total = begin, max(total, begin + size)
        return found, total

    @property
    def num_kernels(self) -> int:
        """Return how many forms and linear forms there are."""
        return sum(isinstance(s, Kernel) for s in self.steps)

    @property
    def elements(self) -> int:
        """Return the elements that its functions and copies write or read, all in all."""
        sizes = 0
        for step in self.steps:
            if isinstance(step, Copy):
                sizes += math.prod(step.sizes)
            elif not isinstance(step, Kernel):
                touched = (*step.reads, *step.writes)
                sizes += max(self.arrays[n].size for n in touched if not isinstance(n, Number))
        return sizes
