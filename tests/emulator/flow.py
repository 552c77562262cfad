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
    to = len(program.instructions)
    if not ends:
        label = instruction.operands[0]
        if label not in program.labels:
            raise instruction.unknown("jumps to a label that is not there")
        to = program.labels[label]
    if not instruction.guard:

        def jump(g: Group) -> None:
            g.at = to

        return jump
    guard, negated = reader(instruction.guard, TYPES["pred"]), instruction.negated

    def branch(g: Group) -> Group | None:
        taken = ~guard(g) if negated else guard(g)
        if taken.shape[1] > 1:
            first = taken[:, :1]
            if (taken != first).any():
                block, thread = np.argwhere(taken != first)[0]
                raise DivergentBranchError(
                    f"{instruction.text!r}: threads 0 and {thread} of block "
                    f"{g.ids[min(block, len(g.ids) - 1)]} go different ways"
                )
            taken = first
        taken = np.broadcast_to(taken[:, 0], (len(g.ids),))
        if taken.all():
            g.at = to
        elif taken.any():
            other = g.split(taken)
            other.at = to
            return other
        return None

    return branch


def jump_by_number(instruction: Instruction, program: Program):
    """Return the step of a brx, which jumps to one of several labels."""
    index, listed = instruction.operands
    labels = program.targets.get(listed)
    if labels is None or instruction.guard:
        raise instruction.unknown("jumps to labels that are not there, or under a guard")
    read = reader(index, TYPES["u32"])
    places = np.array([program.labels[label] for label in labels])

    def jump(g: Group) -> Group | None:
        number = np.broadcast_to(read(g), g.shape)
        if (number != number[:, :1]).any() or (number >= len(places)).any():
            raise DivergentBranchError(
                f"{instruction.text!r}: threads of a block go different ways, or nowhere"
            )
        to = places[number[:, 0]]
        there = to == to[0]
        other = None
        if not there.all():  # they come here again, and part again
            other = g.split(~there)
            other.at = g.at - 1
        g.at = int(to[0])
        return other

    return jump


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
