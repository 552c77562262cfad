"""Readers of registers, constants and addresses."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

from tests.emulator.errors import UnknownInstructionError
from tests.emulator.group import Group

TYPES = {
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "pred": np.dtype(bool),
}

Reader = Callable[[Group], np.ndarray]
_ADDRESS = re.compile(r"\[\s*([%\w.$]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)U?")


def _special(name: str) -> Reader | None:
    """Return the reader of a special register, None if `name` is none."""
    threads = {
        "%tid.x": lambda g: np.arange(g.program.threads),
        "%laneid": lambda g: np.arange(g.program.threads) % 32,
        "%ntid.x": lambda g: np.full(1, g.program.threads),
    }
    if name in threads:
        return lambda g: threads[name](g).astype(np.uint32)[None, :]
    if name in ("%tid.y", "%tid.z"):
        return lambda g: np.zeros((1, 1), np.uint32)
    axis = "xyz".find(name[-1])
    if re.fullmatch(r"%ctaid\.[xyz]", name):
        return lambda g: g.blocks[:, axis : axis + 1].astype(np.uint32)
    if re.fullmatch(r"%nctaid\.[xyz]", name):
        return lambda g: np.full((1, 1), g.grid[axis], np.uint32)
    return None


def constant(text: str, dtype: np.dtype) -> np.ndarray:
    """Return a number of PTX as an array [1, 1]."""
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        value = np.array([[int(text[2:], 16)]], np.uint32)
    elif re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        value = np.array([[int(text[2:], 16)]], np.uint64)
    elif _NUMBER.fullmatch(text) and dtype.kind == "b":
        value = np.array([[int(text.rstrip("U"), 0) != 0]])
    elif (_NUMBER.fullmatch(text) and dtype.kind in "ui") or text in ("0x0000", "0"):
        bits = int(text.rstrip("U"), 0) & (1 << 8 * dtype.itemsize) - 1
        value = np.array([[bits]], f"u{dtype.itemsize}")
    elif _NUMBER.fullmatch(text) and dtype == TYPES["bf16"]:
        value = np.array([[int(text, 0)]], np.uint16)
    else:
        raise UnknownInstructionError(f"operand {text!r} is no register and no {dtype} of PTX")
    return value if value.dtype == dtype else value.view(dtype)


def reader(operand: str, dtype: np.dtype) -> Reader:
    """Return a function of a group that gives an operand as values of `dtype`.

    A register that is wider than `dtype` is read in its low bits, a constant as it is.
    """
    if special := _special(operand):
        return lambda g: special(g).view(dtype) if dtype.itemsize == 4 else special(g).astype(dtype)
    if not operand.startswith("%"):
        if operand == "global_smem":
            return lambda g: np.zeros((1, 1), dtype)
        value = constant(operand, dtype)
        return lambda g: value

    def read(g: Group) -> np.ndarray:
        found = g.registers.get(operand)
        if found is None:
            found = g.register(operand)  # which raises
        if found.dtype is dtype or found.dtype == dtype:
            return found
        if found.dtype.itemsize == dtype.itemsize:
            return found.view(dtype)
        return found.view(f"u{found.itemsize}").astype(f"u{dtype.itemsize}").view(dtype)

    return read


def registers(*operands: str) -> tuple[str, ...]:
    """Return the registers that some operands name."""
    return tuple(name for o in operands for name in re.findall(r"%[a-z]+\d+", o))


def address(operand: str) -> tuple[Reader, tuple[str, ...]]:
    """Return a reader of the addresses of "[%rd1 + 4]", int64, and the registers it reads."""
    match = _ADDRESS.fullmatch(operand)
    if match is None:
        raise UnknownInstructionError(f"operand {operand!r} is no address")
    base, offset = match.groups()
    offset = int(offset or "0", 0)
    if not base.startswith("%"):
        start = 0 if base == "global_smem" else int(base, 0)
        value = np.array([[start + offset]], np.int64)
        return (lambda g: value), ()

    def read(g: Group) -> np.ndarray:
        found = g.register(base)
        if found.itemsize == 4:
            return found.view(np.uint32).astype(np.int64) + offset
        return found.view(np.int64) + offset

    return read, (base,)
