"""Who wrote and read each place of a memory, to find races."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import RaceError

NOBODY, SEVERAL = -1, -2


class Tracker:
    """The last writer and the readers of each place.

    Two warps of a block that use one place, one of them writing, race unless a barrier lies
    between; two blocks always do, since nothing orders them.

    Args:
      shape: of the places.
      warps: of a block.
    """

    def __init__(self, shape, warps: int):
        self.warps = warps
        self.writer = np.full(shape, NOBODY, np.int64)  # block * warps + warp
        self.write_epoch = np.full(shape, -1, np.int32)
        self.reader_block = np.full(shape, NOBODY, np.int64)
        self.reader_warp = np.full(shape, NOBODY, np.int32)
        self.read_epoch = np.full(shape, -1, np.int32)

    def only(self, chosen) -> Tracker:
        """Return the tracker of some blocks, which are the first axis."""
        other = Tracker.__new__(Tracker)
        other.warps = self.warps
        for name in ("writer", "write_epoch", "reader_block", "reader_warp", "read_epoch"):
            setattr(other, name, getattr(self, name)[chosen])
        return other

    def written(self, places):
        """Return which places somebody has written."""
        return self.writer.ravel()[places] != NOBODY

    def write(self, places, blocks, warps, epoch: int, where) -> None:
        """Note that warps of blocks write places (flat numbers).

        Raises:
          RaceError: it races; `where(n)` says where access n is.
        """
        writer, of_epoch = self.writer.ravel(), self.write_epoch.ravel()
        readers, warp_read = self.reader_block.ravel(), self.reader_warp.ravel()
        last = writer[places]
        known = last != NOBODY
        same_block = last // self.warps == blocks
        other_warp = last % self.warps != warps
        self._refuse(
            known & ~(same_block & ~(other_warp & (of_epoch[places] == epoch))),
            "is written again",
            last,
            where,
        )
        reader = readers[places]
        self._refuse(
            (reader != NOBODY) & (reader != blocks), "was read by another block", last, where
        )
        since = self.read_epoch.ravel()[places] == epoch
        self._refuse(since & (warp_read[places] != warps), "was read by another warp", last, where)
        writer[places] = blocks * self.warps + warps
        of_epoch[places] = epoch

    def read(self, places, blocks, warps, epoch: int, where) -> None:
        """Note that warps of blocks read places; as `write`."""
        last = self.writer.ravel()[places]
        known, same_block = last != NOBODY, last // self.warps == blocks
        now = self.write_epoch.ravel()[places] == epoch
        other_warp = last % self.warps != warps
        wrong = known & ~(same_block & ~(other_warp & now))
        self._refuse(wrong, "is read where another wrote", last, where)
        readers, warp_read = self.reader_block.ravel(), self.reader_warp.ravel()
        before = readers[places]
        _note(readers, places, np.where((before == NOBODY) | (before == blocks), blocks, SEVERAL))
        of_epoch = self.read_epoch.ravel()
        before = np.where(of_epoch[places] == epoch, warp_read[places], warps)
        _note(warp_read, places, np.where(before == warps, warps, SEVERAL))
        of_epoch[places] = epoch

    def _refuse(self, wrong, what: str, last, where) -> None:
        if wrong.any():
            n = int(np.flatnonzero(wrong)[0])
            writer = f"block {last[n] // self.warps}, warp {last[n] % self.warps}"
            note = f"; last written by {writer}" if last[n] != NOBODY else ""
            raise RaceError(f"{where(n)} {what} without a barrier between{note}")


def _note(array, places, values) -> None:
    """Set places that may be named twice; where the values are not one, to SEVERAL."""
    array[places] = values
    differs = array[places] != values
    if differs.any():
        array[places[differs]] = SEVERAL
