"""Run a kernel over a grid."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator import accesses, arithmetic, flow, moves, ptx, warps
from tests.emulator.arrays import Array
from tests.emulator.errors import EmulationError
from tests.emulator.group import Group
from tests.emulator.memory import Memory
from tests.emulator.operands import TYPES, reader

TOGETHER = 1024
"""Threads that run in lockstep, at most, unless one block has more: enough for NumPy, few enough
for the caches."""
MOST = 50_000_000
"""Instructions of a launch, at most: a loop that does not end is found."""

_ATOMICS = ("atom", "red", "multimem", "cas", "cp", "mbarrier", "wgmma", "tcgen05")


@dataclasses.dataclass
class Run:
    """What a launch did."""

    program: ptx.Program
    visits: np.ndarray  # how many blocks ran each instruction
    barriers: dict[int, int]  # how many each block passed, of those that were run, by number


class Machine:
    """A kernel, decoded once.

    `observe` is called with (instruction, "global" or "shared", memory.Access) before every load
    and store. With `addresses_only`, only what decides addresses and branches is computed: no
    results and no checks, but a tenth of the work. Atomic instructions are refused as unknown ones
    are, since our kernels sum in an order that is fixed.
    """

    def __init__(self, text: str, shared_bytes: int, observe=None, addresses_only: bool = False):
        self.program = ptx.parse(text)
        self.shared_bytes, self.observe = shared_bytes, observe
        self.addresses_only = addresses_only
        self._needed = ptx.deciding(self.program) if addresses_only else set()
        self._steps = [self._decode(i) for i in self.program.instructions]

    def run(self, arguments, grid, blocks=None, checked: bool = True) -> Run:
        """Run the kernel on `arguments`, each an Array or an int, in the order of the parameters.

        `blocks` are the numbers of those to run, None for all. Unless it is `checked`, races in
        shared memory and reads of what nobody wrote there are not looked for.
        """
        # an array may be an input and an output, at one address
        arrays = list({id(a): a for a in arguments if isinstance(a, Array)}.values())
        places = {id(a): Memory.address(number) for number, a in enumerate(arrays)}
        values = [places[id(a)] if isinstance(a, Array) else int(a) for a in arguments]
        # Triton's own parameters, of scratch memory, come last, and nobody uses them
        values += [0] * (len(self.program.parameters) - len(values))
        memory = Memory(arrays, dict(zip(self.program.parameters, values, strict=True)))
        grid = (*grid, 1, 1)[:3]
        ids = np.arange(np.prod(grid)) if blocks is None else np.asarray(blocks)
        self._visits = [0] * len(self._steps)
        self._barriers: dict[int, int] = {}
        self._left = MOST
        together = 4 * TOGETHER if self.addresses_only else TOGETHER
        width = max(1, together // self.program.threads)
        for start in range(0, len(ids), width):
            some = ids[start : start + width]
            blocks = np.stack(np.unravel_index(some, grid[::-1])[::-1], axis=1)
            memory.share(len(some), self.shared_bytes, self.program.warps, checked)
            waiting = [Group(self.program, blocks, some, np.arange(len(some)), memory)]
            with np.errstate(all="ignore"):
                while waiting:
                    self._run_group(waiting.pop(), waiting)
        return Run(self.program, np.array(self._visits), self._barriers)

    def _run_group(self, group: Group, waiting: list[Group]) -> None:
        steps, visits, end = self._steps, self._visits, len(self._steps)
        while (at := group.at) < end:
            visits[at] += len(group.ids)
            group.at = at + 1
            waiting += steps[at](group) or ()
            self._left -= 1
            if self._left < 0:
                raise EmulationError(f"kernel {self.program.name} does not end")
        self._barriers.update(dict.fromkeys(group.ids.tolist(), group.epoch))

    def _decode(self, instruction: ptx.Instruction):
        """Return the step of an instruction."""
        name = instruction.name
        if name in _FLOW:
            return _FLOW[name](instruction, self.program)
        if self.addresses_only:
            written = not self._needed.isdisjoint(instruction.targets)
            if not written and not instruction.is_memory:
                return _nothing
            if written and instruction.is_memory and "shared" in instruction.text:
                raise instruction.unknown("reads an address, which is followed in registers only")
        step = self._step(instruction)
        if not instruction.guard:
            return step
        if name not in ("ld", "st"):
            raise instruction.unknown("is run by some threads only, which is not emulated")
        guard, negated = reader(instruction.guard, TYPES["pred"]), instruction.negated
        return lambda g: step(g, guard(g) != negated)

    def _step(self, instruction: ptx.Instruction):
        name = instruction.name
        if name in _ATOMICS:
            raise instruction.unknown("is atomic or asynchronous, which is not emulated")
        if instruction.is_memory:
            if self.addresses_only and self._needed.isdisjoint(instruction.targets):
                return accesses.move(instruction, self.observe, only_observed=True)
            move = accesses.move_matrices if "matrix" in name else accesses.move
            return move(instruction, self.observe)
        if name in _OTHERS:
            return _OTHERS[name](instruction)
        function, types = arithmetic.build(instruction)
        target, *sources = instruction.operands
        return moves.pure(target, [*map(reader, sources, types)], function)


def _nothing(g: Group) -> None:
    """Do nothing: what an instruction computes is not of interest."""


_FLOW = dict.fromkeys(ptx.JUMPS, flow.jump) | dict.fromkeys(ptx.BARRIERS, flow.barrier)
_OTHERS = {
    "ld": accesses.load_parameter,
    "mov": moves.move,
    "setp": moves.compare,
    "cvt": moves.convert,
    "cvta": moves.move,  # there is one space of addresses here
    "shfl": warps.shuffle,
    "mma": warps.multiply,
}
