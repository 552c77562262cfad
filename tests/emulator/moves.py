"""Instructions that move, compare, choose and convert."""

from __future__ import annotations

import functools

import numpy as np

from tests.emulator.arithmetic import join_halves
from tests.emulator.group import Group
from tests.emulator.operands import TYPES, reader, registers
from tests.emulator.ptx import Instruction, members

_SIGNED = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
_COMPARE = {
    **_SIGNED,
    "eq": np.equal,
    "ne": np.not_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def move(instruction: Instruction):
    """Return the step of a mov, which may also split a register or join two."""
    target, source = instruction.operands
    dtype = TYPES[instruction.type]
    if target.startswith("{"):
        names, read = members(target), reader(source, dtype)
        part = np.dtype(f"u{dtype.itemsize // len(names)}")

        def split(g: Group, mask) -> None:
            value, undefined = read(g), [g.undefined_of(registers(source))] * len(names)
            joined, of_parts = g.parts.get(source, (None, undefined))
            if joined is not None and joined is g.registers[source]:
                undefined = of_parts
            for n, name in enumerate(names):
                shifted = value.view(f"u{dtype.itemsize}") >> dtype.type(8 * part.itemsize * n)
                g.write(name, shifted.astype(part), undefined[n], mask)

        return split
    if source.startswith("{"):
        names = members(source)
        part = np.dtype(f"u{dtype.itemsize // len(names)}")
        reads = [reader(name, part) for name in names]

        def join(g: Group, mask) -> None:
            value, undefined = dtype.type(0), []
            for n, (name, read) in enumerate(zip(names, reads, strict=True)):
                missing = name.startswith("%") and name not in g.registers
                undefined.append(np.full(g.shape, True) if missing else g.undefined_of([name]))
                bits = np.zeros((1, 1), dtype) if missing else read(g).astype(dtype)
                value = value | bits << dtype.type(8 * part.itemsize * n)
            if all(u is None for u in undefined):
                g.write(target, value, None, mask)
                return
            g.write(target, value, functools.reduce(_either, undefined), mask)
            g.parts[target] = g.registers[target], undefined

        return join
    return pure(target, [source], [reader(source, dtype)], lambda a: a)


def _either(a, b):
    return b if a is None else a if b is None else a | b


def pure(target: str, sources, reads, function):
    """Return the step of an instruction that writes a function of its operands."""
    names = registers(*sources)

    def step(g: Group, mask) -> None:
        value = function(*(read(g) for read in reads))
        if mask is None and not g.undefined:
            g.registers[target] = value
        else:
            g.write(target, value, g.undefined_of(names), mask)

    return step


def choose(instruction: Instruction):
    """Return the step of a selp."""
    target, *sources = instruction.operands
    dtype = TYPES[instruction.type]
    a, b = (reader(s, dtype) for s in sources[:2])
    condition = reader(sources[2], TYPES["pred"])

    def step(g: Group, mask) -> None:
        chosen = condition(g)
        undefined = None
        if g.undefined:
            of_a, of_b, of_condition = (g.undefined_of(registers(s)) for s in sources)
            undefined = np.where(
                chosen, False if of_a is None else of_a, False if of_b is None else of_b
            )
            if of_condition is not None:
                undefined = undefined | of_condition
        g.write(target, np.where(chosen, a(g), b(g)), undefined, mask)

    return step


def compare(instruction: Instruction):
    """Return the step of a setp, which may combine the result with another predicate."""
    words, (target, *sources) = instruction.opcode, instruction.operands
    name, dtype = words[1], TYPES[words[-1]]
    unordered = dtype.kind == "f" and name.endswith("u") and name[:-1] in _COMPARE
    function = _COMPARE.get(name[:-1] if unordered else name)
    if name in ("nan", "num"):
        function = _unordered if name == "nan" else _ordered
    combine = words[2] if len(words) > 3 else ""
    if function is None or "|" in target or (combine and combine not in _COMBINE):
        raise instruction.unknown()
    reads = [reader(s, dtype) for s in sources[:2]]
    if combine:
        reads.append(reader(sources[2], TYPES["pred"]))

    def result(a, b, *other):
        found = function(a, b)
        if unordered:
            found = found | np.isnan(a) | np.isnan(b)
        elif dtype.kind == "f" and name == "ne":
            found = found & _ordered(a, b)
        return _COMBINE[combine](found, other[0]) if combine else found

    return pure(target, sources, reads, result)


def _unordered(a, b):
    return np.isnan(a) | np.isnan(b)


def _ordered(a, b):
    return ~_unordered(a, b)


def _to_tf32(bits):
    """Round the bits of float32 to the nearest of TF32, away from zero where two are as near.

    TF32 has 10 bits of a mantissa, 13 fewer; what overflows is infinite, and NaN and infinity stay.
    """
    finite = bits & np.uint32(0x7F800000) != 0x7F800000
    return np.where(finite, bits + np.uint32(0x1000) & np.uint32(0xFFFFE000), bits)


_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_CONVERT_WORDS = {"rn", "rni", "rzi", "rmi", "rpi", "sat", "ftz"}


def convert(instruction: Instruction):
    """Return the step of a cvt."""
    words, (target, *sources) = instruction.opcode[1:], instruction.operands
    if words == ("rna", "tf32", "f32"):
        return pure(target, sources, [reader(sources[0], TYPES["u32"])], _to_tf32)
    to, source = words[-2], TYPES[words[-1]]
    if set(words[:-2]) - _CONVERT_WORDS or "ftz" in words:
        raise instruction.unknown()
    reads = [reader(s, source) for s in sources]
    if to in ("bf16x2", "f16x2"):
        half = TYPES[to.removesuffix("x2")]
        return pure(
            target, sources, reads, lambda a, b: join_halves(b.astype(half), a.astype(half))
        )
    dtype = TYPES[to]
    rounding = next((_ROUND[w] for w in words[:-2] if w in _ROUND), None)

    def result(value):
        if dtype.kind in "ui" and source.kind in "ui":
            return value.astype(dtype)
        if rounding is not None:
            value = rounding(value)
        if dtype.kind in "ui":
            limits = np.iinfo(dtype)
            value = np.clip(np.nan_to_num(value.astype(np.float64)), limits.min, limits.max)
        return value.astype(dtype)

    if "sat" in words:
        raise instruction.unknown()
    return pure(target, sources, reads, result)
