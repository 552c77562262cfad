"""Run a kernel over a grid."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.emulator import accesses, arithmetic, flow, moves, ptx, slicing, warps
from tests.emulator.arrays import Array
from tests.emulator.errors import EmulationError
from tests.emulator.group import Group
from tests.emulator.memory import Global, Shared
from tests.emulator.operands import TYPES, reader

TOGETHER = 1024
"""Threads that run in lockstep, at most, unless one block has more: enough for NumPy, few enough
for the caches."""
MOST = 50_000_000
"""Instructions of a launch, at most: a loop that does not end is found."""

_JUMPS = ("bra", "brx", "ret", "exit")
_NOTHING = {
    "membar",
    "fence",
    "griddepcontrol",
    "nanosleep",
    "prefetch",
    "discard",
    "applypriority",
}
_ATOMICS = {"atom", "red", "multimem", "cas", "cp", "mbarrier", "wgmma", "tcgen05"}


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
        self._needed = slicing.deciding(self.program) if addresses_only else set()
        self._parameters: dict[str, int] = {}
        self._steps = [self._decode(i) for i in self.program.instructions]
        self._next = self._successors()

    def run(self, arguments, grid, blocks=None, checked: bool = True) -> Run:
        """Run the kernel on `arguments`, each an Array or an int, in the order of the parameters.

        `blocks` are the numbers of those to run, None for all. Unless it is `checked`, races in
        shared memory and reads of what nobody wrote there are not looked for.
        """
        # an array may be an input and an output, at one address
        numbers: dict[int, int] = {}
        for array in (a for a in arguments if isinstance(a, Array)):
            numbers.setdefault(id(array), len(numbers))
        memory = Global(list({id(a): a for a in arguments if isinstance(a, Array)}.values()))
        values = [
            memory.address(numbers[id(a)]) if isinstance(a, Array) else int(a) for a in arguments
        ]
        # Triton's own parameters, of scratch memory, come last, and nobody uses them
        values += [0] * (len(self.program.parameters) - len(values))
        names = [name for _, name in self.program.parameters]
        self._bind(dict(zip(names, values, strict=True)))
        grid = (*grid, 1, 1)[:3]
        ids = np.arange(np.prod(grid)) if blocks is None else np.asarray(blocks)
        self._visits = [0] * len(self._steps)
        self._barriers: dict[int, int] = {}
        self._left = MOST
        together = 4 * TOGETHER if self.addresses_only else TOGETHER
        width = max(1, together // self.program.threads)
        for start in range(0, len(ids), width):
            self._run_together(ids[start : start + width], grid, memory, checked)
        return Run(self.program, self._all_visits(), self._barriers)

    def _successors(self) -> list[int]:
        """Return, for each instruction, the first one from there that is not left out.

        The first of each basic block is not, so that its visits are those of the others.
        """
        leaders = {0, *self.program.labels.values()}
        leaders |= {n + 1 for n, i in enumerate(self.program.instructions) if i.name in _JUMPS}
        self._leaders = sorted(leaders)
        end = len(self._steps)
        found = [end] * (end + 1)
        for n in range(end - 1, -1, -1):
            keep = self._steps[n] is not None or n in leaders
            found[n] = n if keep else found[n + 1]
        self._steps = [step or _nothing for step in self._steps]
        return found

    def _all_visits(self) -> np.ndarray:
        """Return the visits of every instruction: those of the first of its basic block."""
        places = np.array([n for n in self._leaders if n < len(self._visits)])
        first = np.searchsorted(places, np.arange(len(self._visits)), side="right") - 1
        return np.array(self._visits)[places[first]]

    def _bind(self, parameters: dict[str, int]) -> None:
        self._parameters = parameters
        for n, instruction in enumerate(self.program.instructions):
            if instruction.opcode[:2] == ("ld", "param"):
                self._steps[n] = self._decode(instruction) or _nothing

    def _run_together(self, ids, grid, memory, checked) -> None:
        blocks = np.stack(np.unravel_index(ids, grid[::-1])[::-1], axis=1)
        shared = Shared(len(ids), self.shared_bytes, self.program.warps, checked)
        waiting = [Group(self.program, blocks, ids, grid, shared, memory)]
        with np.errstate(all="ignore"):
            while waiting:
                self._run_group(waiting.pop(), waiting)

    def _run_group(self, group: Group, waiting: list[Group]) -> None:
        steps, visits, end = self._steps, self._visits, len(self._steps)
        following = self._next
        while (at := following[group.at]) < end:
            visits[at] += len(group.ids)
            group.at = at + 1
            if other := steps[at](group):
                waiting.append(other)
            self._left -= 1
            if self._left < 0:
                raise EmulationError(f"kernel {self.program.name} does not end")
        self._barriers.update(dict.fromkeys(group.ids.tolist(), group.epoch))

    # decoding

    def _decode(self, instruction: ptx.Instruction):
        """Return the step of an instruction; None if it is left out."""
        name = instruction.name
        if self.addresses_only and name not in (*_JUMPS, "bar", "barrier"):
            written = self._needed.intersection(slicing.targets(instruction))
            if not written and not slicing.is_memory(instruction):
                return None
            if written and slicing.is_memory(instruction) and "shared" in instruction.text:
                raise instruction.unknown("reads an address, which is followed in registers only")
        if name == "brx":
            return flow.jump_by_number(instruction, self.program)
        if name in _JUMPS:
            return flow.jump(instruction, self.program)
        if name in ("bar", "barrier"):
            return flow.barrier(instruction, self.program)
        step = self._step(instruction)
        if not instruction.guard:
            return step
        if name not in ("ld", "st"):
            raise instruction.unknown("is run by some threads only, which is not emulated")
        guard, negated = reader(instruction.guard, TYPES["pred"]), instruction.negated
        return lambda g: step(g, ~guard(g) if negated else guard(g))

    def _step(self, instruction: ptx.Instruction):
        name = instruction.name
        if name in _NOTHING:
            return _nothing
        if name in _ATOMICS:
            raise instruction.unknown("is atomic or asynchronous, which is not emulated")
        if name == "ld" and instruction.opcode[1] == "param":
            if not self._parameters:
                return _nothing
            return accesses.load_parameter(instruction, self._parameters)
        if name in _WITH_MEMORY:
            if self.addresses_only and self._needed.isdisjoint(slicing.targets(instruction)):
                return accesses.look(instruction, self.observe)
            return _WITH_MEMORY[name](instruction, self.observe)
        if name in _OTHERS:
            return _OTHERS[name](instruction)
        built = arithmetic.build(instruction)
        if built is None:
            raise instruction.unknown()
        function, types = built
        target, *sources = instruction.operands
        sources = sources[: len(types)]
        reads = [reader(s, t) for s, t in zip(sources, types, strict=True)]
        return moves.pure(target, reads, function)


def _nothing(g: Group) -> None:
    """Do nothing: what an instruction computes is not of interest."""


def _cast_address(instruction: ptx.Instruction):
    """Return the step of a cvta, which changes nothing: there is one space of addresses here."""
    target, source = instruction.operands
    return moves.pure(target, [reader(source, TYPES[instruction.type])], lambda a: a)


_WITH_MEMORY = {
    "ld": accesses.move,
    "st": accesses.move,
    "ldmatrix": warps.matrix_move,
    "stmatrix": warps.matrix_move,
}
_OTHERS = {
    "mov": moves.move,
    "selp": moves.choose,
    "setp": moves.compare,
    "cvt": moves.convert,
    "cvta": _cast_address,
    "shfl": warps.shuffle,
    "mma": warps.multiply,
}
