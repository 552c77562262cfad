"""The values of a traced function as arrays of a program."""

from __future__ import annotations

import math

import jax
import numpy as np

from eqfuse.ops.ir import steps
from eqfuse.ops.ir.steps import Array, Copy, Number
from eqfuse.ops.transforms.fuse.trace import LARGEST_CONSTANT, Trace

VIEWS = frozenset(("reshape", "squeeze", "expand_dims", "reshard", "optimization_barrier"))
"""What changes no element; on one device a reshard does not."""


class NoStepError(Exception):
    """An equation that is no step, and why."""


def strides_of(shape) -> tuple[int, ...]:
    """Return the elements between neighbours of each axis of an array that lies in order."""
    return tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))


class Values:
    """The values of a traced function as arrays.

    Attributes:
      dtype, backend: of the forms.
      arrays, steps, indices: as in `ir.program.Program`, of what was turned so far.
      inputs: what is read from outside, by the number of its array: a value of the trace, or
        ("order" or "offsets", value of an index, sets of weights).
      numbers: of the values, an array, a `Number`, or None where it has no elements.
    """

    def __init__(self, trace: Trace, dtype: str, backend: str):
        self.trace, self.dtype, self.backend = trace, dtype, backend
        self.arrays: list[Array] = []
        self.steps: list = []
        self.indices: list[tuple[int, str, int]] = []
        self.inputs: dict[int, object] = {}
        self.numbers: dict[int, int | Number | None] = {}
        self._of_inputs: dict[object, int] = {}

    # values

    def aval(self, value: int):
        return self.trace.avals[value]

    def new(self, size: int, dtype: str) -> int:
        self.arrays.append(Array(size, dtype))
        return len(self.arrays) - 1

    def result(self, value: int) -> int:
        """Return a new array for a value."""
        aval = self.aval(value)
        self.numbers[value] = self.new(aval.size, dtype_of(aval))
        return self.numbers[value]

    def _input(self, key, size: int, dtype: str) -> int:
        if key not in self._of_inputs:
            self._of_inputs[key] = self.new(size, dtype)
            self.inputs[self._of_inputs[key]] = key
        return self._of_inputs[key]

    def read(self, value: int) -> int | Number | None:
        """Return what a value is: an array, or the number that it is everywhere."""
        if value not in self.numbers:
            aval = self.aval(value)
            dtype = dtype_of(aval)
            number = _number(self.trace, value) if aval.size else None
            if not aval.size:
                self.numbers[value] = None
            elif number is not None:
                self.numbers[value] = Number(number)
            else:
                self.numbers[value] = self._input(value, aval.size, dtype)
        return self.numbers[value]

    def array(self, value: int) -> int:
        """Return the array of a value, filled if it is a number."""
        result = self.read(value)
        if isinstance(result, Number):
            aval = self.aval(value)
            array = self.new(aval.size, dtype_of(aval))
            self.steps.append(Copy((result,), array, (aval.size,), (0,), (1,)))
            return array
        if result is None:
            raise NoStepError("an array without elements")
        return result

    def index_array(self, value: int, name: str, limit: int) -> int:
        """Return an index array that the runtime looks through before the kernel runs."""
        key = ("index", value, name, limit)
        known = key in self._of_inputs
        array = self._input(key, self.aval(value).size, "int32")
        if not known:
            self.indices.append((array, name, limit))
        return array

    def _sorted_index(self, what: str, value: int, num_sets: int) -> int:
        """Return the order of rows by their set of weights, or where each set starts in it."""
        rows = self.aval(value).size
        size, limit = (rows, rows) if what == "order" else (num_sets + 1, rows)
        key = (what, value, num_sets)
        known = key in self._of_inputs
        array = self._input(key, size, "int32")
        if not known:
            self.indices.append((array, what, limit))
        return array


SAME_NUMBERS = VIEWS | {"broadcast_in_dim", "copy", "copy_p", "stop_gradient"}


def _number(trace: Trace, value: int):
    """Return the number that a value is everywhere, if it is written so; None otherwise.

    Nothing is computed for it, as `Trace.uniform` does: each operation would be compiled.
    """
    if value in trace.given:
        result = trace.given[value]
        if isinstance(result, jax.core.Tracer) or np.size(result) > LARGEST_CONSTANT:
            return None
        result = np.ravel(result)
        same = result.tobytes() == result[:1].tobytes() * result.size  # -0 is another number than 0
        return result[0].item() if same else None
    node = trace.node(value)
    if node is None or node.name not in SAME_NUMBERS | {"convert_element_type"}:
        return None
    number = _number(trace, node.inputs[node.outputs.index(value)])
    if number is None or node.name in SAME_NUMBERS:
        return number
    return np.asarray(number).astype(trace.avals[value].dtype).item()


def dtype_of(aval) -> str:
    name = np.dtype(aval.dtype).name if not _is_key(aval) else str(aval.dtype)
    if name not in steps.BYTES:
        raise NoStepError(f"arrays of {name}")
    return name


def _is_key(aval) -> bool:
    return not isinstance(aval.dtype, np.dtype)
