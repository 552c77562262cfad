"""Exchanges between the threads of a warp: shuffles and matrices."""

from __future__ import annotations

import re

import numpy as np

from tests.emulator.group import Group
from tests.emulator.operands import TYPES, reader
from tests.emulator.ptx import Instruction, members

WARP = 32


def shuffle(instruction: Instruction):
    """Return the step of a shfl.sync between the lanes of a whole warp."""
    target, source, which, *rest = instruction.operands
    mode = instruction.opcode[2]
    if mode not in ("bfly", "idx") or rest != ["31", "-1"] or "|" in target:
        raise instruction.unknown()
    read, number = reader(source, TYPES["b32"]), reader(which, TYPES["u32"])

    def step(g: Group) -> None:
        threads, found = np.arange(g.shape[1]), number(g).astype(np.int64)
        place = threads ^ found if mode == "bfly" else threads // WARP * WARP + found % WARP
        value, place = (np.broadcast_to(a, g.shape) for a in (read(g), place))
        g.registers[target] = np.take_along_axis(value, place, axis=1)

    return step


def multiply(instruction: Instruction):
    """Return the step of an mma.sync: a warp's product of two small matrices, plus a third.

    Products and sums are in float64 for float64, else in float32; TF32 operands lose the bits
    that TF32 does not have. Wider sums within a product, of the hardware, are not modelled.
    """
    words = re.fullmatch(
        r"mma\.sync\.aligned\.m(8|16)n8k(4|8|16)\.row\.col\.f\d+\.(f64|tf32|bf16|f16)\.\3\.f\d+",
        ".".join(instruction.opcode),
    )
    if words is None:
        raise instruction.unknown()
    m, k, kind = int(words[1]), int(words[2]), words[3]
    names, packed = [members(o) for o in instruction.operands], kind in ("bf16", "f16")
    narrow, wide = (TYPES["f64"],) * 2 if kind == "f64" else (TYPES["b32"], TYPES["f32"])
    rows, columns = _places(m, k, 1 + packed)
    others, own = _places(8, k, 1 + packed)
    result = _places(m, 8, 2)

    def floats(bits):
        """Return the numbers in registers, of two each if packed, as wide floats."""
        if packed:
            halves = np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], axis=3)
            halves = halves.astype(np.uint16).view(TYPES[kind]).astype(np.float32)
            return halves.reshape(*bits.shape[:2], -1, WARP)
        return bits if kind == "f64" else (bits & np.uint32(0xFFFFE000)).view(np.float32)

    def matrix(g: Group, operand: int, places, shape):
        """Return [blocks, warps, rows, columns] of the elements in the registers of the lanes."""
        dtype = wide if operand == 3 else narrow
        found = [np.broadcast_to(reader(n, dtype)(g), g.shape) for n in names[operand]]
        found = np.stack([f.reshape(len(g.ids), -1, WARP) for f in found], axis=2)
        values = found if operand == 3 else floats(found)
        found = np.zeros((*values.shape[:2], *shape), values.dtype)
        found[:, :, *places] = values
        return found

    def step(g: Group) -> None:
        left, right = matrix(g, 1, (rows, columns), (m, k)), matrix(g, 2, (own, others), (k, 8))
        product = np.matmul(left, right) + matrix(g, 3, result, (m, 8))
        for name, row, column in zip(names[0], *result, strict=True):
            part = product[:, :, row, column]
            g.write(name, part.reshape(len(g.ids), -1).astype(wide))

    return step


def _places(rows: int, columns: int, width: int):
    """Return row and column of each element of a matrix, [elements, lanes].

    A lane has `width` neighbours of a row, of which four lanes have eight or four; then the row
    eight further down, and then what is to their right.
    """
    element, lane = np.arange(rows * columns // WARP)[:, None], np.arange(WARP)
    part, below = element // width, rows // 8
    column = lane % 4 * width + element % width + 4 * width * (part // below)
    return lane // 4 + 8 * (part % below), column
