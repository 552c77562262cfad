"""What the generator knows of a processor, and the choices that were measured, in one table.

Choices follow from the length of vectors and from the bytes of the caches, never from the name of a
processor; benchmarks/results/cpu_products.md has the measurements. Kernels are kept by their text,
which holds every choice, and by the processor with its caches.

| choice | rule | 2 and 480 MiB | 0.5 and 8 MiB |
|---|---|---|---|
| `block_bytes`: copies of a block's rows | level 2 / 8 | 256 KiB | 64 KiB |
| `sequence_bytes`: rows between two steps | level 2 / 2 | 1 MiB | 256 KiB |
| `streamed_bytes`: written past the caches | 8 level 2, at most level 3 / 2 | 16 MiB | 4 MiB |
| `num_parts`: 8 parts of receivers, instead of a pass by sender | rows as `streamed_bytes` | | |
| `is_long`: rows taken from end to end | two vectors of channels | | |
"""

import dataclasses
import os

from eqfuse.ops._processors import DEFAULT_CACHES

LONG = 2
"""Vectors of channels from which on a row is long: 32 channels of float32 with AVX-512."""

PARTS = 8
"""Parts of the receivers, and so the most threads that work on them."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the generator needs to know of a processor, and the choices that follow.

    Attributes:
      vector_bytes, registers: of its vectors.
      level2, level3: bytes of the caches of these levels that a core uses.
    """

    vector_bytes: int
    registers: int
    level2: int = DEFAULT_CACHES[0]
    level3: int = DEFAULT_CACHES[1]

    @property
    def block_bytes(self) -> int:
        """Return bytes of copies of rows that a block may hold, unless it is one row."""
        return self.level2 // 8

    @property
    def sequence_bytes(self) -> int:
        """Return bytes of all that lies between the steps of rows that go through together."""
        return self.level2 // 2

    @property
    def streamed_bytes(self) -> int:
        """Return bytes of an output from which on the next kernel will not find it in a cache."""
        return min(8 * self.level2, self.level3 // 2)

    def num_parts(self, num_bytes: int) -> int:
        """Return into how many parts receivers are cut where edges have rows of so many bytes.

        0 where a pass by sender is faster: edges that stay in a cache, or more processors than
        parts. It does not depend on how many threads are used, and results do not either.
        """
        return PARTS if num_bytes >= self.streamed_bytes and (os.cpu_count() or 1) <= PARTS else 0

    @staticmethod
    def is_long(num_vectors: int) -> bool:
        """Return whether a row of so many vectors is taken from one end to the other."""
        return num_vectors >= LONG
