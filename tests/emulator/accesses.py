"""Loads and stores."""

from __future__ import annotations

import numpy as np

from tests.emulator.group import Group
from tests.emulator.memory import Access
from tests.emulator.operands import TYPES, address, reader
from tests.emulator.ptx import Instruction, members

# these change where a value is kept, not which it is
_HINTS = ("nc", "volatile", "relaxed", "weak", "gpu", "cta", "ca", "cg", "cs", "cv", "wb", "wt")
_VECTORS = {"v2": 2, "v4": 4}


def _shape(instruction: Instruction) -> tuple[str, int, int]:
    """Return the state space, the bytes of a value, and the values of a thread."""
    space, count = instruction.opcode[1], 1
    for word in instruction.opcode[1:-1]:
        if word in _VECTORS:
            count = _VECTORS[word]
        elif word in ("global", "shared", "shared:cta"):
            space = word.removesuffix(":cta")
        elif word not in _HINTS and not word.startswith(("L1:evict", "L2:evict", "L1:no")):
            raise instruction.unknown()
    if space not in ("global", "shared") or instruction.type not in TYPES:
        raise instruction.unknown()
    return space, TYPES[instruction.type].itemsize, count


def look(instruction: Instruction, observe):
    """Return the step of a load or store that is only observed: nothing is read or written."""
    loads = instruction.name in ("ld", "ldmatrix")
    where, _ = address(instruction.operands[1 if loads else 0])
    matrices = "matrix" in instruction.name
    # a thread gives the address of a row of a matrix, of 16 bytes
    space, width, count = ("shared", 16, 1) if matrices else _shape(instruction)

    def step(g: Group, mask=None) -> None:
        if observe is not None and (mask is None or mask.any()):
            observe(instruction, space, Access(g, where(g), mask, width, count, instruction.text))

    return step


def load_parameter(instruction: Instruction, values: dict[str, int]):
    """Return the step of a load of a parameter, from its value by name."""
    target, source = instruction.operands
    dtype = TYPES[instruction.type]
    name = source.strip("[] ")
    if name not in values or len(members(target)) != 1:
        raise instruction.unknown("loads a parameter that the kernel does not have")
    value = np.array([[values[name]]], np.int64).astype(dtype)
    # a register of 64 bits takes a number of 32 bits with its sign
    if target.startswith("%rd") and dtype.itemsize < 8:
        value = value.astype(f"{dtype.kind}8")

    def step(g: Group) -> None:
        g.registers[target] = value

    return step


def move(instruction: Instruction, observe):
    """Return the step of a load or a store."""
    space, width, count = _shape(instruction)
    loads = instruction.name == "ld"
    values, place = instruction.operands[:2] if loads else instruction.operands[1::-1]
    names, (where, _) = members(values), address(place)
    reads = [] if loads else [reader(name, np.dtype(f"u{width}")) for name in names]
    signed, text = TYPES[instruction.type].kind == "i", instruction.text

    def step(g: Group, mask=None) -> None:
        if mask is not None and not mask.any():
            return
        access = Access(g, where(g), mask, width, count, text)
        memory = g.memory if space == "global" else g.shared
        if observe is not None:
            observe(instruction, space, access)
        if not loads:
            memory.store(access, [read(g) for read in reads])
            return
        for name, value in zip(names, memory.load(access), strict=True):
            g.write(name, _fit(value, name, signed), mask)

    return step


def _fit(value, target: str, signed: bool):
    """Return a value as wide as its register, which the name of that tells."""
    sizes = {"%rd": 8, "%rs": 2, "%h": 2, "%r": 4}
    size = next((s for name, s in sizes.items() if target.startswith(name)), value.itemsize)
    if size == value.itemsize:
        return value
    kind = "i" if signed else "u"
    return value.view(f"{kind}{value.itemsize}").astype(f"{kind}{size}")
