"""The state of blocks that run together: all of them are at the same instruction."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator import ptx
from tests.emulator.errors import NeverWrittenError


@dataclasses.dataclass
class Group:
    """Blocks in lockstep. They part at a branch that they take differently, and do not meet again.

    A register is an array [blocks, threads] of the bits of its values; an axis on which they are
    all equal may be 1.

    `undefined` has, of registers that some threads did not write, which those are. `parts` has, of
    registers that were joined of several, their value and what is undefined of each part: half of
    a register may be used where the other half is not.
    """

    program: ptx.Program
    blocks: np.ndarray  # coordinates in the grid, [blocks, 3]
    ids: np.ndarray  # their numbers, [blocks]
    grid: tuple[int, int, int]
    shared: object  # the shared memory of each block, a `memory.Shared`
    memory: object  # the arrays, a `memory.Global`
    registers: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    undefined: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    parts: dict[str, tuple] = dataclasses.field(default_factory=dict)
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

    def write(self, name: str, value: np.ndarray, undefined=None, mask=None) -> None:
        """Write a register, [blocks, threads], of the threads of `mask` (all if None).

        `undefined` are those whose value rests on something that nobody wrote.
        """
        if name == "_":
            return
        if mask is not None and not mask.all():
            old = self.registers.get(name)
            before = self.undefined.get(name, False) if old is not None else True
            undefined = np.where(mask, False if undefined is None else undefined, before)
            if old is not None:
                if old.dtype != value.dtype:
                    old = old.view(value.dtype)
                value = np.where(mask, value, old)
        self.registers[name] = value
        if undefined is not None and np.any(undefined):
            self.undefined[name] = np.broadcast_to(undefined, self.shape)
        elif self.undefined:
            self.undefined.pop(name, None)

    def undefined_of(self, names):
        """Return the threads for which one of the registers `names` is not defined, or None."""
        found = None
        if self.undefined:
            for name in names:
                one = self.undefined.get(name)
                if one is not None:
                    found = one if found is None else found | one
        return found

    def require_defined(self, names, mask, what: str) -> None:
        """Refuse to use registers that the threads of `mask` (all if None) have not written."""
        undefined = self.undefined_of(names)
        if undefined is None:
            return
        wrong = undefined if mask is None else undefined & mask
        if wrong.any():
            thread = int(np.argwhere(wrong)[0][1])
            raise NeverWrittenError(f"{what}: thread {thread} uses what was never written")

    def split(self, chosen: np.ndarray) -> Group:
        """Take the blocks where `chosen` [blocks] is true out of this group, as a new one."""
        other = self._only(chosen)
        rest = self._only(~chosen)
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
            shared=self.shared.only(chosen),
            parts={},
            registers={name: part(a) for name, a in self.registers.items()},
            undefined={name: part(a) for name, a in self.undefined.items()},
        )
