"""The steps of a program: forms and linear forms, and the operations between them.

Arrays are numbered; shapes are in the steps. Pure Python, hashable.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math

from eqfuse.ops.ir.activated import Activated
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm, Rows, Weights
from eqfuse.ops.ir.operands import Index, Operand

BYTES = {"bool": 1, "int32": 4, "float32": 4, "float64": 8}

REAL = frozenset(("div", "abs", "sign", "integer_pow", "pow", "sqrt", "rsqrt", "exp", "log"))
REAL |= {"log1p", "expm1", "tanh", "logistic", "sin", "cos", "square", "is_finite"}
"""Functions of real numbers alone."""

FUNCTIONS = REAL | {"add", "sub", "mul", "neg", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"}
FUNCTIONS |= {"and", "or", "not", "select", "convert", "identity"}
"""Functions that element-wise steps may have."""


class Extent(enum.Enum):
    """How many rows an array has: one for the whole program, one for each row, or for each node."""

    WHOLE = "whole"
    ROWS = "rows"
    NODES = "nodes"


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of `size` elements, at least one, or of rows of `size` elements each."""

    size: int
    dtype: str
    extent: Extent = Extent.WHOLE

    @property
    def bytes(self) -> int:
        return self.size * BYTES[self.dtype]

    @classmethod
    def of(cls, operand: Operand | Rows | Weights, dtype: str) -> Array:
        """Return the array of an operand of a form or of a linear form."""
        if isinstance(operand, Rows):
            return cls(operand.size, dtype, Extent.ROWS)
        if isinstance(operand, Weights):
            return cls(math.prod(operand.shape), dtype)
        by_index = {Index.ROW: Extent.ROWS, Index.SHARED: Extent.WHOLE}
        return cls(operand.size, dtype, by_index.get(operand.index, Extent.NODES))


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


@dataclasses.dataclass(frozen=True)
class Elementwise(_OneResult):
    """One of `FUNCTIONS`, element by element.

    Attributes:
      reads: arrays of the size of what is written, or of one element; or numbers.
      power: of "integer_pow".
    """

    function: str
    reads: tuple[int | Number, ...]
    write: int
    power: int = 0

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


@dataclasses.dataclass(frozen=True)
class Reduce(_OneResult):
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

    def initial(self, dtype: str) -> float:
        """Return what the reduction of no element is."""
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
class Multilinear:
    """A form or a linear form.

    Attributes:
      operands: an array for each input.
      writes: an array for each output.
      indices: an array for each index array that it may need, by name.
      num_rows, num_nodes: of a form; a linear form has rows only.

    A program over rows is given its index arrays by name when it is called, and how many rows and
    nodes there are; `indices` and the two numbers are empty there.
    """

    form: Form | LinearForm
    operands: tuple[int, ...]
    writes: tuple[int, ...]
    indices: tuple[tuple[str, int], ...] = ()
    num_rows: int = 0
    num_nodes: int = 0

    @property
    def reads(self) -> tuple[int, ...]:
        return (*self.operands, *(n for _, n in self.indices))


@dataclasses.dataclass(frozen=True)
class Activate:
    """Activations of scalars of rows: one array read, one written for each order.

    Attributes:
      num_rows: as in `Multilinear`.
    """

    form: Activated
    operands: tuple[int]
    writes: tuple[int, ...]
    num_rows: int = 0
    num_nodes = 0

    @property
    def reads(self) -> tuple[int, ...]:
        return self.operands


Step = Activate | ElementwiseLoop | Elementwise | Copy | Reduce | Gather | ScatterAdd | Multilinear


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
