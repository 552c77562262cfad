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
    **{f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "pred": np.dtype(bool),
}

Reader = Callable[[Group], np.ndarray]
_ADDRESS = re.compile(r"\[\s*([%\w.$]+)\s*(?:\+\s*(-?\w+))?\s*\]")
_FLOAT = re.compile(r"0(?:[fF][0-9a-fA-F]{8}|[dD][0-9a-fA-F]{16})")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)U?")
_SPECIAL = {
    "%tid.x": lambda g: np.arange(g.program.threads)[None, :],
    **{f"%ctaid.{'xyz'[n]}": lambda g, n=n: g.blocks[:, n : n + 1] for n in range(3)},
}
"""Values of special registers, which are numbers of 32 bits."""


def constant(text: str, dtype: np.dtype) -> np.ndarray:
    """Return a number of PTX as an array [1, 1]."""
    if _FLOAT.fullmatch(text):
        return np.array([[int(text[2:], 16)]], f"u{len(text) // 2 - 1}").view(dtype)
    bits = int(text.rstrip("U"), 0) if _NUMBER.fullmatch(text) else None
    if bits is None or (dtype.kind == "f" and bits):
        raise UnknownInstructionError(f"operand {text!r} is no register and no {dtype} of PTX")
    if dtype.kind == "b":
        return np.array([[bits != 0]])
    return np.array([[bits & (1 << 8 * dtype.itemsize) - 1]], f"u{dtype.itemsize}").view(dtype)


def reader(operand: str, dtype: np.dtype) -> Reader:
    """Return a function of a group that gives an operand as values of `dtype`.

    A register that is wider than `dtype` is read in its low bits, a constant as it is.
    """
    if special := _SPECIAL.get(operand):
        return lambda g: _as(special(g).astype(np.uint32), dtype)
    if operand.startswith("%"):
        return lambda g: _as(g.register(operand), dtype)
    value = np.zeros((1, 1), dtype) if operand == "global_smem" else constant(operand, dtype)
    return lambda g: value


def _as(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if value.dtype == dtype:
        return value
    if value.itemsize != dtype.itemsize:
        value = value.view(f"u{value.itemsize}").astype(f"u{dtype.itemsize}")
    return value.view(dtype)


def address(operand: str) -> Reader:
    """Return a reader of the addresses of "[%rd1 + 4]", int64."""
    match = _ADDRESS.fullmatch(operand)
    if match is None:
        raise UnknownInstructionError(f"operand {operand!r} is no address")
    base, offset = match[1], int(match[2] or "0", 0)
    if not base.startswith("%"):
        value = np.array([[offset + (0 if base == "global_smem" else int(base, 0))]], np.int64)
        return lambda g: value

    def read(g: Group) -> np.ndarray:
        found = g.register(base)
        return found.view(f"{'i' if found.itemsize == 8 else 'u'}{found.itemsize}") + np.int64(
            offset
        )

    return read
