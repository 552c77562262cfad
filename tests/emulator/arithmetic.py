"""Functions of instructions, by opcode.

Approximations of the hardware (ex2.approx and its like, within 2 units in the last place) are
exact here, rounded once.
"""

from __future__ import annotations

import numpy as np

from tests.emulator.operands import TYPES
from tests.emulator.ptx import Instruction

_FLOATS = ("f16", "bf16", "f32", "f64")


def _wide(function):
    """Return a function of narrow floats that computes in a wider type and rounds once."""

    def rounded(*values):
        dtype = values[0].dtype
        wide = np.float64 if dtype == np.float32 else np.float32
        return function(*(v.astype(wide) for v in values)).astype(dtype)

    return rounded


def _fma_single(a, b, c):
    # the product of two float32 is exact in float64
    return (a.astype(np.float64) * b + c).astype(np.float32)


_FLOAT = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.fmin,
    "max": np.fmax,
    "fma": lambda a, b, c: a * b + c,
    "sqrt": np.sqrt,
    "rcp": lambda a: (1 / a).astype(a.dtype),
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "rsqrt": lambda a: (1 / np.sqrt(a)).astype(a.dtype),
    "copysign": lambda a, b: np.copysign(b, a),
}
_SINGLE = _FLOAT | {
    "fma": _fma_single,
    "ex2": _wide(np.exp2),
    "lg2": _wide(np.log2),
    "tanh": _wide(np.tanh),
    "rsqrt": _wide(lambda a: 1 / np.sqrt(a)),
}
_HALF = {name: _wide(function) for name, function in _FLOAT.items()}


def _count(b, bits: int):
    """Return the number of places to shift, and where it is as many as there are bits."""
    count = b.astype(np.int64)
    return np.minimum(count, bits - 1), count >= bits


def _shift_left(a, b):
    count, beyond = _count(b, 8 * a.itemsize)
    return np.where(beyond, 0, a << count.astype(a.dtype)).astype(a.dtype)


def _shift_right(a, b):
    count, beyond = _count(b, 8 * a.itemsize)
    found = a >> count.astype(a.dtype)
    return found if a.dtype.kind == "i" else np.where(beyond, 0, found).astype(a.dtype)


def _quotient(a, b):
    if a.dtype.kind == "u":
        return a // np.where(b == 0, 1, b)
    b = np.where(b == 0, 1, b)
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _bits(a, start, length):
    """Do as bfe: `length` bits of a from `start`, of which the first is the sign if a has one."""
    bits = 8 * a.itemsize
    start, length = start.astype(np.int64) & 255, length.astype(np.int64) & 255
    unsigned = a.view(f"u{a.itemsize}")
    kept = np.minimum(length, bits - np.minimum(start, bits))
    found = _shift_right(unsigned, start)
    mask = np.where(kept >= bits, -1, (1 << np.minimum(kept, 62)) - 1).astype(unsigned.dtype)
    found = found & mask
    if a.dtype.kind == "u":
        return found
    shift = (bits - kept).astype(np.uint32)
    return np.where(kept == 0, 0, _shift_right(_shift_left(found, shift).view(a.dtype), shift))


def _high(a, b):
    """Return the upper half of a product."""
    if a.itemsize <= 4:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        bits = np.array(8 * a.itemsize, wide)
        return (a.astype(wide) * b.astype(wide) >> bits).astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    (a1, a0), (b1, b0) = ((v.view("u8") >> half, v.view("u8") & low) for v in (a, b))
    middle = a1 * b0 + (a0 * b0 >> half)
    high = a1 * b1 + (middle >> half) + (((middle & low) + a0 * b1) >> half)
    if a.dtype.kind == "i":  # of the bits read as numbers without a sign
        high = high - np.where(a < 0, b, 0).view("u8") - np.where(b < 0, a, 0).view("u8")
    return high.view(a.dtype)


def _product(a, b):
    return (a * b).astype(a.dtype)


_INTEGER = {
    "add": np.add,
    "sub": np.subtract,
    "mul": _product,
    "mad": lambda a, b, c: (a * b + c).astype(a.dtype),
    "div": _quotient,
    "rem": lambda a, b: (a - _quotient(a, b) * b).astype(a.dtype),
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": _shift_left,
    "shr": _shift_right,
    "bfe": _bits,
}
_LOGICAL = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
}
# operands that are 32 bits wide whatever the type of the instruction is
_COUNTS = {"shl": (1,), "shr": (1,), "bfe": (1, 2)}


def build(instruction: Instruction):
    """Return the function of an instruction and the types of its operands; None if it has none."""
    name, kind = instruction.name, instruction.type
    count = len(instruction.operands) - 1
    if name == "prmt":
        return _permute, (TYPES["b32"],) * 3
    words = set(instruction.opcode[1:-1])
    if name in ("mul", "mad") and words & {"wide", "hi"}:
        return _widened(instruction)
    if kind == "pred" and name in _LOGICAL:
        return _LOGICAL[name], (TYPES["pred"],) * count
    packed = kind in ("bf16x2", "f16x2")
    if packed or kind in _FLOATS:
        return _float(instruction, kind.removesuffix("x2"), packed, words, count)
    if kind not in TYPES or name not in _INTEGER:
        return None
    if words - {"lo"}:
        raise instruction.unknown()
    types = [TYPES[kind]] * count
    for place in _COUNTS.get(name, ()):
        types[place] = TYPES["u32"]
    return _INTEGER[name], tuple(types)


def _float(instruction: Instruction, kind: str, packed: bool, words: set[str], count: int):
    name = instruction.name
    table = {"f32": _SINGLE, "f64": _FLOAT}.get(kind, _HALF)
    if name not in table:
        return None
    if words - {"rn", "approx", "full", "ftz"}:
        raise instruction.unknown()
    function = _flushed(table[name]) if "ftz" in words else table[name]
    if packed:
        return _on_halves(function, TYPES[kind]), (TYPES["b32"],) * count
    return function, (TYPES[kind],) * count


def _flushed(function):
    """Return a function that takes numbers below the smallest normal one for zero."""

    def flush(a):
        return np.where(np.abs(a) < np.finfo(a.dtype).tiny, np.copysign(0, a), a).astype(a.dtype)

    return lambda *values: flush(function(*map(flush, values)))


def _on_halves(function, dtype):
    """Return a function of pairs of 16-bit floats in 32-bit registers."""

    def both(*values):
        low, high = (
            function(*((v >> np.uint32(s)).astype(np.uint16).view(dtype) for v in values))
            for s in (0, 16)
        )
        return join_halves(low, high)

    return both


def join_halves(low, high):
    """Return 32 bits of two values of 16 bits."""
    low, high = (half.view(np.uint16).astype(np.uint32) for half in (low, high))
    return low | high << np.uint32(16)


def _widened(instruction: Instruction):
    """Return mul and mad of which the result is twice as wide, or its high half."""
    dtype = TYPES[instruction.type]
    if "hi" in instruction.opcode:
        if instruction.name != "mul":
            raise instruction.unknown()
        return _high, (dtype, dtype)
    wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    if instruction.name == "mul":
        return (lambda a, b: a.astype(wide) * b.astype(wide)), (dtype, dtype)
    return (lambda a, b, c: a.astype(wide) * b.astype(wide) + c), (dtype, dtype, wide)


def _permute(a, b, selector):
    """Do as prmt: four bytes out of the eight of two operands."""
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.zeros(np.broadcast_shapes(whole.shape, selector.shape), np.uint64)
    for place in range(4):
        choice = (selector >> np.uint32(4 * place)).astype(np.uint64)
        byte = whole >> np.uint64(8) * (choice & np.uint64(7)) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(choice & np.uint64(8), sign, byte)
        found = found | byte << np.uint64(8 * place)
    return found.astype(np.uint32)
