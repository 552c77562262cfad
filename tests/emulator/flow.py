"""Branches and barriers."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import DivergentBranchError
from tests.emulator.group import Group
from tests.emulator.operands import TYPES, reader
from tests.emulator.ptx import Instruction, Program


def jump(instruction: Instruction, program: Program):
    """Return the step of a bra, ret or exit, which parts the blocks that go different ways."""
    ends = instruction.name != "bra"
    to = len(program.instructions) if ends else program.labels[instruction.operands[0]]
    if not instruction.guard:

        def jump(g: Group) -> None:
            g.at = to

        return jump
    guard = reader(instruction.guard, TYPES["pred"])

    def branch(g: Group) -> Group | None:
        taken = _of_blocks(g, guard(g) != instruction.negated, instruction)
        other = g.split(taken) if taken.any() and not taken.all() else None
        if taken.any():
            (other or g).at = to
        return other

    return branch


def jump_by_number(instruction: Instruction, program: Program):
    """Return the step of a brx, which jumps to one of several labels."""
    index, listed = instruction.operands
    if instruction.guard:
        raise instruction.unknown("is run by some threads only")
    read = reader(index, TYPES["u32"])
    places = np.array([program.labels[label] for label in program.targets[listed]])

    def jump(g: Group) -> Group | None:
        to = places[_of_blocks(g, read(g), instruction)]
        there = to == to[0]
        other = None
        if not there.all():  # they come here again, and part again
            other = g.split(~there)
            other.at = g.at - 1
        g.at = int(to[0])
        return other

    return jump


def _of_blocks(g: Group, value: np.ndarray, instruction: Instruction) -> np.ndarray:
    """Return what all threads of a block have, [blocks]."""
    differs = value != value[:, :1]
    if differs.any():
        block, thread = np.argwhere(differs)[0]
        who = f"threads 0 and {thread} of block {g.ids[block]}"
        raise DivergentBranchError(f"{instruction.text!r}: {who} go different ways")
    return np.broadcast_to(value[:, 0], len(g.ids))


def barrier(instruction: Instruction, program: Program):
    """Return the step of a barrier of the whole block, or of a warp, which changes nothing here."""
    words = instruction.opcode[1:]
    if instruction.guard:
        raise instruction.unknown("is run by some threads only")
    if words[0] == "warp":
        return lambda g: None
    counts = [int(o) for o in instruction.operands[1:] if o.isdigit()]
    if set(words) - {"sync", "aligned", "cta"} or counts not in ([], [program.threads]):
        raise instruction.unknown("is no barrier of the whole block")

    def wait(g: Group) -> None:
        g.epoch += 1

    return wait
