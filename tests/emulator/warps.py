"""Exchanges between the threads of a warp: shuffles and matrices."""

from __future__ import annotations

import re

import numpy as np

from tests.emulator.group import Group
from tests.emulator.memory import Access
from tests.emulator.operands import TYPES, address, reader
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


def matrix_move(instruction: Instruction, observe):
    """Return the step of an ldmatrix or stmatrix: 8 by 8 matrices of 16 bits in shared memory.

    The threads 8 n to 8 n + 7 of a warp give the addresses of the rows of matrix n; a thread has
    two neighbouring elements of the row of a quarter of its number.
    """
    loads = instruction.name == "ldmatrix"
    operands = instruction.operands if loads else instruction.operands[::-1]
    names, (where, _) = members(operands[0]), address(operands[1])
    words = re.fullmatch(
        r"sync\.aligned\.m8n8\.x[124](\.trans)?\.shared(?::cta)?\.b16",
        ".".join(instruction.opcode[1:]),
    )
    if words is None:
        raise instruction.unknown()
    transposed = words[1]
    reads = [] if loads else [reader(name, TYPES["b32"]) for name in names]

    def accesses(g: Group, rows, n: int):
        """Yield the accesses of matrix n: one of 32 bits, or two of 16 bits if transposed."""
        lanes = np.arange(g.shape[1])
        first, lane = lanes // WARP * WARP + 8 * n, lanes % WARP
        if not transposed:
            yield Access(g, rows[:, first + lane // 4] + lane % 4 * 4, None, 4, 1, instruction.text)
            return
        for half in (0, 1):
            at = rows[:, first + lane % 4 * 2 + half] + lane // 4 * 2
            yield Access(g, at, None, 2, 1, instruction.text)

    def step(g: Group) -> None:
        rows = np.broadcast_to(where(g), g.shape)
        for n, name in enumerate(names):
            first = np.arange(g.shape[1]) // WARP * WARP + 8 * n + np.arange(g.shape[1]) % 8
            # a row is 16 bytes, aligned as such
            whole = Access(g, rows[:, first], None, 16, 1, instruction.text)
            whole.check(whole.addresses, g.shared.size, "shared memory")
            if observe is not None:
                observe(instruction, "shared", whole)
            parts = list(accesses(g, rows, n))
            if loads:
                values = [g.shared.load(part)[0] for part in parts]
                value = values[0] if len(values) == 1 else _join(*values)
                g.write(name, value)
                continue
            value = np.broadcast_to(reads[n](g), g.shape)
            halves = [value] if len(parts) == 1 else [(value >> s).astype("u2") for s in (0, 16)]
            for part, half in zip(parts, halves, strict=True):
                g.shared.store(part, [half])

    return step


def _join(low, high):
    return low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)


def multiply(instruction: Instruction):
    """Return the step of an mma.sync: a warp's product of two small matrices, plus a third.

    Products and sums are in float64 for float64, else in float32; TF32 operands lose the bits
    that TF32 does not have. Wider sums within a product, of the hardware, are not modelled.
    """
    words = instruction.opcode
    shape = next((w for w in words if w.startswith("m") and "k" in w), "")
    kinds = words[-4:]
    sizes = {"m8n8k4": (8, 8, 4), "m16n8k4": (16, 8, 4), "m16n8k8": (16, 8, 8)}
    sizes |= {"m16n8k16": (16, 8, 16)}
    if shape not in sizes or kinds[1] != kinds[2] or kinds[1] not in ("f64", "tf32", "bf16", "f16"):
        raise instruction.unknown()
    m, n, k = sizes[shape]
    packed = kinds[1] in ("bf16", "f16")
    d, a, b, c = (members(o) for o in instruction.operands)
    narrow = TYPES["f64" if kinds[1] == "f64" else "b32"]
    wide = TYPES["f64" if kinds[1] == "f64" else "f32"]

    def values(g: Group, names, dtype):
        """Return [blocks, warps, registers, lanes]."""
        found = [np.broadcast_to(reader(name, dtype)(g), g.shape) for name in names]
        return np.stack([f.reshape(len(g.ids), -1, WARP) for f in found], axis=2)

    def floats(bits):
        """Return the numbers in registers, of two each if packed, as wide floats."""
        if packed:
            halves = np.stack([bits & np.uint32(0xFFFF), bits >> np.uint32(16)], axis=3)
            halves = halves.astype(np.uint16).view(TYPES[kinds[1]]).astype(np.float32)
            return halves.reshape(*bits.shape[:2], -1, WARP)
        return bits if kinds[1] == "f64" else (bits & np.uint32(0xFFFFE000)).view(np.float32)

    def step(g: Group) -> None:
        left = _matrix(floats(values(g, a, narrow)), _left(m, k, packed), (m, k))
        right = _matrix(floats(values(g, b, narrow)), _right(k, packed), (k, n))
        total = _matrix(values(g, c, wide), _result(m), (m, n))
        product = np.matmul(left, right) + total
        rows, columns = _result(m)
        for place, name in enumerate(d):
            part = product[:, :, rows[place], columns[place]]
            g.write(name, part.reshape(len(g.ids), -1).astype(wide))

    return step


def _matrix(values, places, shape):
    """Return [blocks, warps, rows, columns] of the elements of the lanes."""
    found = np.zeros((*values.shape[:2], *shape), values.dtype)
    rows, columns = places
    found[:, :, rows, columns] = values
    return found


_LANE = np.arange(WARP)


def _left(m: int, k: int, packed: bool):
    """Return row and column of each element of the left matrix, [elements, lanes]."""
    group, thread = _LANE // 4, _LANE % 4
    halves, width = (m // 8), (2 if packed else 1)
    count = m * k // WARP
    rows = [group + 8 * (e // width % halves) for e in range(count)]
    columns = [
        thread * width + e % width + 4 * width * (e // (width * halves)) for e in range(count)
    ]
    return np.array(rows), np.array(columns)


def _right(k: int, packed: bool):
    """Return row and column of each element of the right matrix."""
    group, thread, width = _LANE // 4, _LANE % 4, (2 if packed else 1)
    count = k * 8 // WARP
    rows = [thread * width + e % width + 4 * width * (e // width) for e in range(count)]
    return np.array(rows), np.array([group] * count)


def _result(m: int):
    """Return row and column of each element of the sum."""
    group, thread = _LANE // 4, _LANE % 4
    rows = [group + 8 * (e // 2) for e in range(m // 4)]
    return np.array(rows), np.array([2 * thread + e % 2 for e in range(m // 4)])
