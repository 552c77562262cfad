"""Instructions that move, compare, choose and convert."""

from __future__ import annotations

import numpy as np

from tests.emulator.arithmetic import join_halves
from tests.emulator.arrays import pattern
from tests.emulator.group import Group
from tests.emulator.operands import TYPES, reader
from tests.emulator.ptx import Instruction, members


def _unordered(a, b):
    return np.isnan(a) | np.isnan(b)


_COMPARE = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "nan": _unordered,
    "num": lambda a, b: ~_unordered(a, b),
}


def move(instruction: Instruction):
    """Return the step of a mov, which may also split a register or join two."""
    target, source = instruction.operands
    dtype = TYPES[instruction.type]
    names = members(source if source.startswith("{") else target)
    part = np.dtype(f"u{dtype.itemsize // len(names)}")
    shifts = [dtype.type(8 * part.itemsize * n) for n in range(len(names))]
    if target.startswith("{"):
        read = reader(source, dtype)

        def split(g: Group) -> None:
            for name, shift in zip(names, shifts, strict=True):
                g.registers[name] = (read(g) >> shift).astype(part)

        return split
    if source.startswith("{"):
        reads = [reader(name, part) for name in names]

        def join(g: Group) -> None:
            halves = [  # of which one may have no value
                read(g) if name in g.registers or name[0] != "%" else pattern(part)
                for name, read in zip(names, reads, strict=True)
            ]
            pairs = zip(halves, shifts, strict=True)
            g.registers[target] = sum((h.astype(dtype) << s for h, s in pairs), dtype.type(0))

        return join
    return pure(target, [reader(source, dtype)], lambda a: a)


def pure(target: str, reads, function):
    """Return the step of an instruction that writes a function of its operands."""

    def step(g: Group) -> None:
        g.registers[target] = function(*(read(g) for read in reads))

    return step


def compare(instruction: Instruction):
    """Return the step of a setp."""
    words, (target, *sources) = instruction.opcode, instruction.operands
    name, dtype = words[1], TYPES[words[-1]]
    unordered = dtype.kind == "f" and name.endswith("u") and name[:-1] in _COMPARE
    function = _COMPARE.get(name[:-1] if unordered else name)
    if function is None or "|" in target or len(words) > 3:
        raise instruction.unknown()

    def result(a, b):
        found = function(a, b)
        if unordered:
            return found | _unordered(a, b)
        return found & ~_unordered(a, b) if dtype.kind == "f" and name == "ne" else found

    return pure(target, [reader(s, dtype) for s in sources], result)


def _to_tf32(bits):
    """Round the bits of float32 to the nearest of TF32, away from zero where two are as near.

    TF32 has 10 bits of a mantissa, 13 fewer; what overflows is infinite, and NaN and infinity stay.
    """
    finite = bits & np.uint32(0x7F800000) != 0x7F800000
    return np.where(finite, bits + np.uint32(0x1000) & np.uint32(0xFFFFE000), bits)


def convert(instruction: Instruction):
    """Return the step of a cvt."""
    words, (target, *sources) = instruction.opcode[1:], instruction.operands
    if words == ("rna", "tf32", "f32"):
        return pure(target, [reader(sources[0], TYPES["u32"])], _to_tf32)
    to, source = words[-2], TYPES[words[-1]]
    reads = [reader(s, source) for s in sources]
    if set(words[:-2]) - {"rn"}:
        raise instruction.unknown()
    if to in ("bf16x2", "f16x2"):
        half = TYPES[to.removesuffix("x2")]
        return pure(target, reads, lambda a, b: join_halves(b.astype(half), a.astype(half)))
    if TYPES[to].kind in "ui" and source.kind == "f":
        raise instruction.unknown()
    return pure(target, reads, lambda value: value.astype(TYPES[to]))
