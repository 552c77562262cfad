"""Functions of instructions, by opcode.

Approximations of the hardware (ex2.approx and its like, within 2 units in the last place) are
exact here, rounded once.
"""

from __future__ import annotations

import functools

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


_EXACT = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.fmin,
    "max": np.fmax,
    "sqrt": np.sqrt,
    "rcp": lambda a: 1 / a,
    "copysign": lambda a, b: np.copysign(b, a),
}
_FLOAT = _EXACT | {
    "fma": lambda a, b, c: a * b + c,
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "rsqrt": lambda a: 1 / np.sqrt(a),
}
_HALF = {name: _wide(function) for name, function in _FLOAT.items()}
_SINGLE = _HALF | _EXACT


def _bits(a, start, length):
    """Do as bfe: `length` of 32 bits from `start`, of which the first is the sign if a has one."""
    start = np.minimum(start.astype(np.int64) & 255, 32)
    length = np.minimum(length.astype(np.int64) & 255, 32 - start)
    found = a.view(np.uint32).astype(np.int64) >> start & (1 << length) - 1
    sign = found >> np.maximum(length - 1, 0) << length if a.dtype.kind == "i" else 0
    return (found - sign).astype(a.dtype)


def _places(b, dtype):
    """Return by how many places to shift: all of them are as good as more."""
    return np.minimum(b, 8 * dtype.itemsize).astype(dtype)


_INTEGER = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mad": lambda a, b, c: a * b + c,
    "div": lambda a, b: (a - np.fmod(a, b)) // b,
    "rem": np.fmod,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": lambda a, b: a << _places(b, a.dtype),
    "shr": lambda a, b: a >> _places(b, a.dtype),
    "bfe": _bits,
}
# operands that are 32 bits wide whatever the type of the instruction is
_COUNTS = {"shl": (1,), "shr": (1,), "bfe": (1, 2)}


def build(instruction: Instruction):
    """Return the function of an instruction and the types of its operands."""
    name, kind = instruction.name, instruction.type
    count = len(instruction.operands) - 1
    if name == "prmt":
        return _permute, (TYPES["b32"],) * 3
    if name == "selp":
        return (lambda a, b, chosen: np.where(chosen, a, b)), (TYPES[kind],) * 2 + (TYPES["pred"],)
    words = set(instruction.opcode[1:-1])
    if name in ("mul", "mad") and words & {"wide", "hi"}:
        return _widened(instruction)
    packed = kind in ("bf16x2", "f16x2")
    if packed or kind in _FLOATS:
        return _float(instruction, kind.removesuffix("x2"), packed, words, count)
    if kind not in TYPES or name not in _INTEGER or words - {"lo"}:
        raise instruction.unknown()
    types = [TYPES[kind]] * count
    for place in _COUNTS.get(name, ()):
        types[place] = TYPES["u32"]
    return _INTEGER[name], tuple(types)


def _float(instruction: Instruction, kind: str, packed: bool, words: set[str], count: int):
    name = instruction.name
    table = {"f32": _SINGLE, "f64": _FLOAT}.get(kind, _HALF)
    if name not in table:
        raise instruction.unknown()
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
    dtype, adds = TYPES[instruction.type], instruction.name == "mad"
    if "hi" in instruction.opcode:
        if adds:
            raise instruction.unknown()
        exact = functools.partial(np.asarray, dtype=object)  # Python's numbers
        high = lambda a, b: (exact(a) * exact(b) >> 8 * dtype.itemsize).astype(dtype)  # noqa: E731
        return high, (dtype, dtype)
    wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
    if adds:
        return (lambda a, b, c: a.astype(wide) * b.astype(wide) + c), (dtype, dtype, wide)
    return (lambda a, b: a.astype(wide) * b.astype(wide)), (dtype, dtype)


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
