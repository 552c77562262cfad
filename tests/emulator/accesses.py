"""Loads and stores, also of the matrices of a warp."""

from __future__ import annotations

import re

import numpy as np

from tests.emulator.group import Group
from tests.emulator.memory import Access
from tests.emulator.operands import TYPES, address, reader
from tests.emulator.ptx import Instruction, members

# these change where a value is kept, not which it is
_HINTS = ("nc", "volatile", "relaxed", "weak", "gpu", "cta", "ca", "cg", "cs", "cv", "wb", "wt")
_VECTORS = {"v2": 2, "v4": 4}
_MATRICES = re.compile(r"sync\.aligned\.m8n8\.x[124](\.trans)?\.shared(?::cta)?\.b16")
_SIZES = {"%rd": 8, "%rs": 2, "%h": 2, "%r": 4}
"""Bytes of a register, which its name tells."""


def _shape(instruction: Instruction) -> tuple[str, int, int]:
    """Return the state space, the bytes of a value, and the values of a thread."""
    if "matrix" in instruction.name:  # a thread gives the address of a row
        return "shared", 16, 1
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


def load_parameter(instruction: Instruction):
    """Return the step of a load of a parameter."""
    target, source = instruction.operands
    dtype, name = TYPES[instruction.type], source.strip("[] ")
    if target.startswith("{"):
        raise instruction.unknown()
    # a register of 64 bits takes a number of 32 bits with its sign
    wide = np.dtype(f"{dtype.kind}8") if target.startswith("%rd") else dtype

    def step(g: Group) -> None:
        value = np.array([[g.memory.parameters[name]]], np.int64)
        g.registers[target] = value.astype(dtype).astype(wide)

    return step


def move(instruction: Instruction, observe, only_observed: bool = False):
    """Return the step of a load or a store, by which nothing moves if it is only observed."""
    (space, width, count), loads = _shape(instruction), instruction.loads
    values, place = instruction.operands[:2] if loads else instruction.operands[1::-1]
    names, where = members(values), address(place)
    reads = [] if loads or only_observed else [reader(n, np.dtype(f"u{width}")) for n in names]
    kind = "i" if TYPES[instruction.type].kind == "i" else "u"

    def step(g: Group, mask=None) -> None:
        if mask is not None and not mask.any():
            return
        access = Access(g, space, where(g), mask, width, count, instruction.text)
        if observe is not None:
            observe(instruction, space, access)
        if only_observed:
            return
        if not loads:
            g.memory.store(access, [read(g) for read in reads])
            return
        for name, value in zip(names, g.memory.load(access), strict=True):
            size = next((s for start, s in _SIZES.items() if name.startswith(start)), width)
            wide = value if size == width else value.view(f"{kind}{width}").astype(f"{kind}{size}")
            g.write(name, wide, mask)

    return step


def move_matrices(instruction: Instruction, observe):
    """Return the step of an ldmatrix or stmatrix: 8 by 8 matrices of 16 bits in shared memory.

    The threads 8 n to 8 n + 7 of a warp give the addresses of the rows of matrix n; a thread has
    two neighbouring elements of the row of a quarter of its number, or of that column.
    """
    loads, text = instruction.loads, instruction.text
    values, place = instruction.operands if loads else instruction.operands[::-1]
    names, where = members(values), address(place)
    words = _MATRICES.fullmatch(".".join(instruction.opcode[1:]))
    if words is None:
        raise instruction.unknown()
    reads = [] if loads else [reader(name, TYPES["b32"]) for name in names]

    def step(g: Group) -> None:
        starts, lanes = np.broadcast_to(where(g), g.shape), np.arange(g.shape[1])
        for n, name in enumerate(names):
            first = lanes // 32 * 32 + 8 * n
            # a row is 16 bytes, aligned as such
            whole = Access(g, "shared", starts[:, first + lanes % 8], None, 16, 1, text)
            g.memory.find(whole)
            if observe is not None:
                observe(instruction, "shared", whole)
            parts = []
            for half in (0, 1):
                row, column = lanes % 32 // 4, lanes % 4 * 2 + half
                row, column = (column, row) if words[1] else (row, column)
                parts.append(
                    Access(g, "shared", starts[:, first + row] + 2 * column, None, 2, 1, text)
                )
            if loads:
                low, high = (g.memory.load(part)[0].astype(np.uint32) for part in parts)
                g.write(name, low | high << np.uint32(16))
                continue
            value = np.broadcast_to(reads[n](g), g.shape)
            for part, shift in zip(parts, (0, 16), strict=True):
                g.memory.store(part, [(value >> np.uint32(shift)).astype("u2")])

    return step
