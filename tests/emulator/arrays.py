"""The arrays of a launch, and what of them has no value yet."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator.races import Tracker

GRANULE = 2  # bytes that are distinguished: the size of the smallest number that kernels keep


@dataclasses.dataclass
class Array:
    """An array of a launch."""

    name: str
    size: int
    itemsize: int
    data: np.ndarray | None  # bytes; None: only addresses are of interest, every value is zero
    writable: bool = False  # whether it is an output
    known: np.ndarray | None = None  # which elements of an output had a value before
    tracker: Tracker | None = None  # of an output that is checked
    shape: tuple[int, ...] = ()  # where somebody wants to know it

    @classmethod
    def input(cls, name: str, values: np.ndarray) -> Array:
        """Return what a kernel reads."""
        values = np.ascontiguousarray(values)
        return cls(name, values.size, values.itemsize, values.reshape(-1).view(np.uint8))

    @classmethod
    def output(cls, name: str, values: np.ndarray, warps: int) -> Array:
        """Return what a kernel writes, in place; `poison` in it is what has no value yet."""
        data = values.reshape(-1).view(np.uint8)
        tracker = Tracker(data.size // GRANULE, warps)
        known = ~is_poison(values.reshape(-1))
        return cls(name, values.size, values.itemsize, data, True, known, tracker)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize


def pattern(dtype) -> np.ndarray:
    """Return a NaN that no arithmetic makes, whose halves are such NaN, as an unsigned integer."""
    size = np.dtype(dtype).itemsize
    return np.array({1: 1, 2: 0x7FA3, 4: 0x7FA37FA3, 8: 0x7FF37FA37FA37FA3}[size], f"u{size}")


def poison(shape, dtype) -> np.ndarray:
    """Return an array of which no element has a value yet."""
    return np.full(shape, pattern(dtype)).view(dtype)


def is_poison(array: np.ndarray) -> np.ndarray:
    """Return which elements have no value yet."""
    if array.dtype.kind in "iub":
        return np.zeros(array.shape, bool)
    return array.view(f"u{array.itemsize}") == pattern(array.dtype)
