"""Exchanges between the threads of a warp: shuffles, reductions, votes, and matrices."""

from __future__ import annotations

import numpy as np

from tests.emulator.group import Group
from tests.emulator.memory import Access
from tests.emulator.operands import TYPES, address, reader, registers
from tests.emulator.ptx import Instruction, members

WARP = 32


def _lanes(g: Group) -> np.ndarray:
    return np.arange(g.shape[1]) % WARP


def _whole(instruction: Instruction, operand: str):
    """Return a check, of a group and a guard, that whole warps take part in an exchange."""
    read = reader(operand, TYPES["u32"])

    def check(g: Group, mask) -> None:
        if mask is not None or (read(g) != 0xFFFFFFFF).any():
            raise instruction.unknown("is for some threads of a warp only, which is not emulated")

    return check


def shuffle(instruction: Instruction):
    """Return the step of a shfl.sync."""
    target, source, distance, clamp, mask_of = instruction.operands
    check = _whole(instruction, mask_of)
    mode = instruction.opcode[2]
    if mode not in ("bfly", "idx", "up", "down") or not clamp.lstrip("-").isdigit():
        raise instruction.unknown()
    segment = WARP - (int(clamp) >> 8 & 31)  # lanes that exchange with each other
    read, by = reader(source, TYPES["b32"]), reader(distance, TYPES["u32"])
    target, _, inside_name = target.partition("|")
    names = registers(source, distance)

    def step(g: Group, mask) -> None:
        check(g, mask)
        lanes = _lanes(g)[None, :]
        start, by_now = lanes // segment * segment, by(g).astype(np.int64)
        wanted = {
            "bfly": lanes ^ by_now,
            "idx": start + by_now % segment,
            "up": lanes - by_now,
            "down": lanes + by_now,
        }[mode]
        inside = (wanted >= start) & (wanted < start + segment)
        first = (np.arange(g.shape[1]) // WARP * WARP)[None, :]
        place = np.broadcast_to(first + np.where(inside, wanted, lanes), g.shape)
        value = np.take_along_axis(np.broadcast_to(read(g), g.shape), place, axis=1)
        undefined = g.undefined_of(names)
        if undefined is not None:
            undefined = np.take_along_axis(undefined, place, axis=1)
        g.write(target, value, undefined)
        if inside_name:
            g.write(inside_name, np.broadcast_to(inside, g.shape))

    return step


def reduce(instruction: Instruction):
    """Return the step of a redux.sync."""
    target, source, mask_of = instruction.operands
    check = _whole(instruction, mask_of)
    functions = {"add": np.add, "min": np.minimum, "max": np.maximum}
    functions |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    function, dtype = functions[instruction.opcode[2]], TYPES[instruction.type]
    read = reader(source, dtype)

    def step(g: Group, mask) -> None:
        check(g, mask)
        g.require_defined(registers(source), None, instruction.text)
        value = np.broadcast_to(read(g), g.shape).reshape(len(g.ids), -1, WARP)
        found = function.reduce(value, axis=2, dtype=dtype)
        g.write(target, np.repeat(found, WARP, axis=1))

    return step


def vote(instruction: Instruction):
    """Return the step of a vote.sync."""
    target, source, mask_of = instruction.operands
    check = _whole(instruction, mask_of)
    mode, read = instruction.opcode[2], reader(source.lstrip("!"), TYPES["pred"])
    if mode not in ("all", "any", "ballot"):
        raise instruction.unknown()

    def step(g: Group, mask) -> None:
        check(g, mask)
        g.require_defined(registers(source), None, instruction.text)
        value = np.broadcast_to(read(g) ^ source.startswith("!"), g.shape)
        value = value.reshape(len(g.ids), -1, WARP)
        if mode == "ballot":
            bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
            found = np.where(value, bits, 0).sum(axis=2, dtype=np.uint32)
        else:
            found = value.all(axis=2) if mode == "all" else value.any(axis=2)
        g.write(target, np.repeat(found, WARP, axis=1))

    return step


def matrix_move(instruction: Instruction, observe):
    """Return the step of an ldmatrix or stmatrix: 8 by 8 matrices of 16 bits in shared memory.

    The threads 8 n to 8 n + 7 of a warp give the addresses of the rows of matrix n; a thread has
    two neighbouring elements of the row of a quarter of its number.
    """
    loads = instruction.name == "ldmatrix"
    operands = instruction.operands if loads else instruction.operands[::-1]
    names, (where, sources) = members(operands[0]), address(operands[1])
    words = set(instruction.opcode[1:])
    if words - {
        "sync",
        "aligned",
        "m8n8",
        "x1",
        "x2",
        "x4",
        "trans",
        "shared",
        "shared:cta",
        "b16",
    }:
        raise instruction.unknown()
    transposed = "trans" in words
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

    def step(g: Group, mask) -> None:
        if mask is not None:
            raise instruction.unknown("is run by some threads only")
        g.require_defined(sources if loads else registers(*operands), None, instruction.text)
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

    def step(g: Group, mask) -> None:
        if mask is not None:
            raise instruction.unknown("is run by some threads only")
        g.require_defined(registers(*instruction.operands[1:]), None, instruction.text)
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
