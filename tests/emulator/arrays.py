"""The arrays of a launch: what of them has no value yet, and who wrote and read each place."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator.errors import RaceError

GRANULE = 2  # bytes that are distinguished: the size of the smallest number that kernels keep
NOBODY, SEVERAL = -1, -2


class Tracker:
    """The last writer and the readers of each place.

    Two warps of a block that use one place, one of them writing, race unless a barrier lies
    between; two blocks always do, since nothing orders them.

    Args:
      places: how many.
      warps: of a block.
    """

    def __init__(self, places: int, warps: int):
        self.warps = warps
        self.writer = np.full(places, NOBODY, np.int64)  # block * warps + warp
        self.reader_block, self.reader_warp = np.full((2, places), NOBODY, np.int64)
        self.write_epoch, self.read_epoch = np.full((2, places), -1, np.int32)

    def write(self, places, blocks, warps, epoch: int, where) -> None:
        """Note that warps of blocks write places.

        Raises:
          RaceError: it races; `where(n)` says where access n is.
        """
        readers = self.reader_block[places]
        since = self.read_epoch[places] == epoch
        self._refuse(
            self._unordered(places, blocks, warps, epoch), "is written again", places, where
        )
        wrong = (readers != NOBODY) & (readers != blocks)
        self._refuse(wrong, "was read by another block", places, where)
        wrong = since & (self.reader_warp[places] != warps)
        self._refuse(wrong, "was read by another warp", places, where)
        self.writer[places] = blocks * self.warps + warps
        self.write_epoch[places] = epoch

    def read(self, places, blocks, warps, epoch: int, where) -> None:
        """Note that warps of blocks read places; as `write`."""
        wrong = self._unordered(places, blocks, warps, epoch)
        self._refuse(wrong, "is read where another wrote", places, where)
        before = self.reader_block[places]
        one = (before == NOBODY) | (before == blocks)
        _note(self.reader_block, places, np.where(one, blocks, SEVERAL))
        one = (self.read_epoch[places] != epoch) | (self.reader_warp[places] == warps)
        _note(self.reader_warp, places, np.where(one, warps, SEVERAL))
        self.read_epoch[places] = epoch

    def _unordered(self, places, blocks, warps, epoch):
        """Return where another block, or another warp since the last barrier, wrote last."""
        last = self.writer[places]
        since = (last % self.warps != warps) & (self.write_epoch[places] == epoch)
        return (last != NOBODY) & ((last // self.warps != blocks) | since)

    def _refuse(self, wrong, what: str, places, where) -> None:
        if wrong.any():
            n = int(np.flatnonzero(wrong)[0])
            block, warp = divmod(self.writer[places][n], self.warps)
            note = f"; last written by block {block}, warp {warp}" if block >= 0 else ""
            raise RaceError(f"{where(n)} {what} without a barrier between{note}")


def _note(array, places, values) -> None:
    """Set places that may be named twice; where the values are not one, to SEVERAL."""
    array[places] = values
    array[places[array[places] != values]] = SEVERAL


@dataclasses.dataclass
class Array:
    """An array of a launch, or the shared memory of some blocks, one after the other."""

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
