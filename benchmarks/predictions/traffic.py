"""What the accesses of a kernel cost: wavefronts, sectors, and the bytes that they touch."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np

LINE, SECTOR, BANKS = 128, 32, 32
_WARP = 32


@dataclasses.dataclass
class Traffic:
    """The accesses of some blocks, as an observer of `emulator.machine.Machine`.

    A wavefront is one turn of the level-1 cache: as many for an instruction of a warp as it touches
    lines of 128 bytes in global memory, or as the most words that it wants of one bank of shared
    memory. A sector is 32 bytes, which is what level 2 gives and takes.

    Attributes:
      instructions: of warps, by space and name, say ("global", "ld").
      wavefronts: as well.
      sectors: of global memory, by array number.
      touched: numbers of sectors of each array that each block touches, with the block and the
        walk.
      orders: numbers of the arrays that list the edges in the order of a walk: where a block begins
        with one again, a walk begins.
    """

    instructions: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    wavefronts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    sectors: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    touched: dict[int, list[np.ndarray]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(list)
    )

    orders: frozenset[int] = frozenset()

    def __call__(self, instruction, space: str, access) -> None:
        key, group, mask = (space, instruction.name), access.group, access.mask
        blocks, threads = group.shape
        if access.addresses.shape[1] == 1 and (mask is None or mask.shape[1] == 1):
            width, times = 1, threads // _WARP  # the same for all threads
        else:
            width, times = _WARP, 1
        shape = blocks, 1 if width == 1 else threads
        addresses = np.broadcast_to(access.addresses, shape).reshape(-1, width)
        active = np.broadcast_to(True if mask is None else mask, shape).reshape(-1, width)
        self.instructions[key] += times * int(active.any(axis=1).sum())
        if space == "shared":
            self.wavefronts[key] += times * _conflicts(addresses, active, access)
            return
        self.wavefronts[key] += times * int(_distinct(addresses // LINE, active).sum())
        rows, sectors = _distinct_rows(addresses // SECTOR, active)
        number = int(access.first() >> 40) - 1
        self.sectors[number] += times * len(rows)
        start = number + 1 << 40
        if number in self.orders:
            # the first block stands for those that run with it
            walk, last = group.notes
            at = int(access.first()) - start
            group.notes = walk + (0 <= at < last), at
        ids = group.ids[rows // (len(addresses) // blocks)]
        walks = np.full(len(rows), group.notes[0])
        self.touched[number].append(np.stack([ids, walks, sectors - start // SECTOR]))

    def unique(self, number: int) -> np.ndarray:
        """Return (block, walk, sector) of what is touched of an array, each once, [3, n]."""
        if number not in self.touched:
            return np.zeros((3, 0), np.int64)
        block, walk, sector = np.concatenate(self.touched[number], axis=1)
        # 24 bits of blocks, 8 of walks, 31 of sectors
        keys = np.unique(block << 39 | np.minimum(walk, 255) << 31 | sector)
        found = np.stack([keys >> 39, keys >> 31 & 255, keys & (1 << 31) - 1])
        self.touched[number] = [found]
        return found


def _sorted(values, active):
    """Return values with -1 where inactive, sorted along rows, and which are new in their row."""
    found = np.sort(np.where(active, values, -1), axis=1)
    new = np.ones(found.shape, bool)
    new[:, 1:] = found[:, 1:] != found[:, :-1]
    return found, new & (found >= 0)


def _distinct(values, active) -> np.ndarray:
    """Return how many different values each row has."""
    return _sorted(values, active)[1].sum(axis=1)


def _distinct_rows(values, active):
    """Return the rows and the values of what is different within its row."""
    found, new = _sorted(values, active)
    return np.nonzero(new)[0], found[new]


def _conflicts(addresses, active, access) -> int:
    """Return the wavefronts of an access of shared memory."""
    words = max(1, access.width * access.count // 4)
    wide = (addresses[:, :, None] // 4 + np.arange(words)).reshape(len(addresses), -1)
    found, new = _sorted(wide, np.repeat(active, words, axis=1))
    rows, columns = np.nonzero(new)
    counts = np.zeros((len(addresses), BANKS), np.int64)
    np.add.at(counts, (rows, found[rows, columns] % BANKS), 1)
    return int(counts.max(axis=1).sum())
