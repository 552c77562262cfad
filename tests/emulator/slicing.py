"""Which instructions decide where a kernel reads and writes, and which way it goes."""

from __future__ import annotations

from tests.emulator.operands import registers
from tests.emulator.ptx import Instruction, Program, members

_MEMORY = ("ld", "st", "ldmatrix", "stmatrix")
_NO_TARGET = ("st", "stmatrix", "bra", "brx", "ret", "exit", "bar", "barrier")


def targets(instruction: Instruction) -> tuple[str, ...]:
    """Return the registers that an instruction writes."""
    if instruction.name in _NO_TARGET or not instruction.operands:
        return ()
    return registers(*members(instruction.operands[0]))


def is_memory(instruction: Instruction) -> bool:
    """Return whether an instruction reads or writes global or shared memory."""
    return instruction.name in _MEMORY and instruction.opcode[1] != "param"


def deciding(program: Program) -> set[str]:
    """Return the registers that addresses, guards of accesses, and branches depend on.

    Whatever writes one of them, anywhere, counts: the order of instructions is not looked at.
    """
    needed: set[str] = set()
    for instruction in program.instructions:
        if is_memory(instruction):
            loads = instruction.name.startswith("ld")
            needed |= {*registers(instruction.operands[1 if loads else 0], instruction.guard)}
        elif instruction.name in ("bra", "brx"):
            needed |= {*registers(*instruction.operands, instruction.guard)}
    grown = True
    while grown:
        grown = False
        for instruction in program.instructions:
            if needed.isdisjoint(targets(instruction)):
                continue
            sources = {*registers(*instruction.operands[1:], instruction.guard)}
            if not sources <= needed:
                needed |= sources
                grown = True
    return needed
