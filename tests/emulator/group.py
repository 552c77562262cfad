"""The state of blocks that run together: all of them are at the same instruction."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator import ptx
from tests.emulator.arrays import pattern
from tests.emulator.errors import NeverWrittenError


@dataclasses.dataclass
class Group:
    """Blocks in lockstep. They part at a branch that they take differently, and do not meet again.

    A register is an array [blocks, threads] of the bits of its values; an axis on which they are
    all equal may be 1. What a thread has not written is a NaN, or an index outside of every array.
    """

    program: ptx.Program
    blocks: np.ndarray  # coordinates in the grid, [blocks, 3]
    ids: np.ndarray  # their numbers, [blocks]
    rows: np.ndarray  # where the shared memory of each is in that of all
    memory: object  # the arrays, a `memory.Memory`
    registers: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    notes: tuple = (0, -1)  # of who observes the accesses
    at: int = 0  # the next instruction
    epoch: int = 0  # how many barriers the blocks have passed

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ids), self.program.threads

    def register(self, name: str) -> np.ndarray:
        """Return a register, which something must have written."""
        try:
            return self.registers[name]
        except KeyError:
            raise NeverWrittenError(f"register {name} is read and was never written") from None

    def write(self, name: str, value: np.ndarray, mask=None) -> None:
        """Write a register, [blocks, threads], of the threads of `mask` (all if None)."""
        if mask is not None and not mask.all():
            old = self.registers.get(name, pattern(value.dtype)).view(value.dtype)
            value = np.where(mask, value, old)
        self.registers[name] = value

    def split(self, chosen: np.ndarray) -> Group:
        """Take the blocks where `chosen` [blocks] is true out of this group, as a new one."""
        other, rest = self._only(chosen), self._only(~chosen)
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(rest, field.name))
        return other

    def _only(self, chosen: np.ndarray) -> Group:
        size = len(self.ids)

        def part(array):
            return array[chosen] if array.shape[0] == size else array

        return dataclasses.replace(
            self,
            blocks=self.blocks[chosen],
            ids=self.ids[chosen],
            rows=self.rows[chosen],
            registers={name: part(a) for name, a in self.registers.items()},
        )
