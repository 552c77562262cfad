"""The activations as Triton text, with their derivatives."""

import math
import re

from eqfuse.ops.ir.gates import Activation


def _tanh(x: str) -> tuple[str, ...]:
    """Return statements of s = tanh(x), odd to the last bit.

    Where 1 - exp(-2 |x|) would cancel, up to |x| = 0.4, s is the convergent of degree 7 of the
    continued fraction of Lambert: its error is 9e-18 of s at most, and its terms have one sign.
    """
    return (
        f"t = tl.exp(-2.0 * tl.abs({x}))",
        f"q = {x} * {x}",
        f"b = tl.abs({x}) < 0.4",
        f"n = {x} * (135135.0 + q * (17325.0 + q * (378.0 + q)))",
        f"n = tl.where(b, n, tl.where({x} < 0, t - 1.0, 1.0 - t))",
        "d = tl.where(b, 135135.0 + q * (62370.0 + q * (3150.0 + q * 28.0)), 1.0 + t)",
        "s = n / d",
    )


_SIGMOID = "1.0 / (1.0 + tl.exp(-{x}))"
_GELU = f"({math.sqrt(2 / math.pi)!r} * ({{x}} + 0.044715 * {{x}} * {{x}} * {{x}}))"
TRITON: dict[str, tuple[tuple[str, ...], str, str]] = {
    "identity": ((), "{x}", "{x} * 0.0 + 1.0"),
    "silu": (
        ("s = " + _SIGMOID,),
        "{x} * s",
        "s * (1.0 + {x} * (1.0 - s))",
    ),
    "gelu": (
        ("a = " + _GELU, *_tanh("a")),
        "0.5 * {x} * (1.0 + s)",
        "0.5 * (1.0 + s) + 0.5 * {x} * ((1.0 + s) * (1.0 - s))"
        f" * ({math.sqrt(2 / math.pi)!r} * (1.0 + {3 * 0.044715!r} * {{x}} * {{x}}))",
    ),
    "sigmoid": (("s = " + _SIGMOID,), "s", "s * (1.0 - s)"),
    "tanh": (_tanh("{x}"), "s", "(1.0 + s) * (1.0 - s)"),
    "relu": ((), "tl.where({x} <= 0, 0.0, {x})", "tl.where({x} > 0, {x} * 0.0 + 1.0, 0.0)"),
    "soft_odd": (
        ("s = tl.exp(-{x} * {x})",),
        "(1.0 - s) * {x}",
        "1.0 - s + 2.0 * {x} * {x} * s",
    ),
    "abs": ((), "tl.abs({x})", "tl.where({x} >= 0, {x} * 0.0 + 1.0, {x} * 0.0 - 1.0)"),
}
"""Statements that prepare, the value, and the derivative, of {x}; single letters are local names.

Where a function has no derivative, and in what cancels, they are as JAX has them.
"""


def triton_text(act: Activation, x: str, derivative: bool = False) -> tuple[list[str], str]:
    """Triton statements, and the expression of the activation, or its derivative, of variable x."""
    statements, value, slope = TRITON[act.name]

    def text(template):
        local = re.sub(r"(?<![\w.{])([a-z])(?!\w)", r"act_\1", template)
        return local.format(x=x)

    expression = text(slope if derivative else value)
    scaled = expression if act.scale == 1.0 else f"{act.scale!r} * ({expression})"
    return [text(s) for s in statements], scaled
