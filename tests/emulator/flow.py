"""Branches and barriers."""

from __future__ import annotations

import numpy as np

from tests.emulator.errors import DivergentBranchError
from tests.emulator.group import Group
from tests.emulator.operands import TYPES, reader
from tests.emulator.ptx import Instruction, Program


def jump(instruction: Instruction, program: Program):
    """Return the step of a bra, brx, ret or exit, which parts the blocks that go different ways."""
    name, guard = instruction.name, instruction.guard
    if name == "brx":  # to one of several labels, by a number
        if guard:
            raise instruction.unknown("is run by some threads only")
        number = reader(instruction.operands[0], TYPES["u32"])
        labels = program.targets[instruction.operands[1]]
        places = np.array([program.labels[label] for label in labels])
        return lambda g: _go(g, places[_of_blocks(g, number(g), instruction)])
    to = program.labels[instruction.operands[0]] if name == "bra" else len(program.instructions)
    if not guard:
        return lambda g: _go(g, np.array([to]))
    taken, negated = reader(guard, TYPES["pred"]), instruction.negated
    return lambda g: _go(g, np.where(_of_blocks(g, taken(g) != negated, instruction), to, g.at))


def _go(g: Group, places) -> list[Group]:
    """Go on at the first of the places of the blocks; return those that go on elsewhere."""
    others = []
    for place in np.unique(places)[1:]:
        others.append(g.split(places == place))
        others[-1].at = int(place)
        places = places[places != place]
    g.at = int(places[0])
    return others


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
