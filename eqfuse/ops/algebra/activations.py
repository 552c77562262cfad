"""The activations that kernels know: as JAX functions, and as Triton text with the derivative."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Activation:
    """f(x) / c, with f known to kernels.

    Attributes:
      name: key of `TRITON`.
      scale: 1 / c, with c so that the result has unit second moment for normal x, or 1.
    """

    name: str
    scale: float

    def __call__(self, x):
        return FUNCTIONS[self.name](x) * self.scale


FUNCTIONS: dict[str, Callable] = {
    "identity": lambda x: x,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "soft_odd": e3nn.soft_odd,
    "abs": jnp.abs,
}


def _tanh(x: str) -> tuple[str, ...]:
    """Statements of s = tanh(x), odd to the last bit.

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

_ALIASES = {jnp.tanh: "tanh", jax.nn.tanh: "tanh", jax.nn.swish: "silu", None: "identity"}


def triton_text(act: Activation, x: str, derivative: bool = False) -> tuple[list[str], str]:
    """Triton statements, and the expression of the activation, or its derivative, of variable x."""
    statements, value, slope = TRITON[act.name]

    def text(template):
        local = re.sub(r"(?<![\w.{])([a-z])(?!\w)", r"act_\1", template)
        return local.format(x=x)

    expression = text(slope if derivative else value)
    scaled = expression if act.scale == 1.0 else f"{act.scale!r} * ({expression})"
    return [text(s) for s in statements], scaled


class UnknownActivationError(ValueError):
    """A function that kernels do not know, which is then composed."""


def activation(function: Callable | None, normalize: bool = True) -> Activation:
    """The activation that kernels run for a JAX function, normalised as e3nn-jax normalises it.

    Raises:
      UnknownActivationError: a function that kernels do not know, naming those that they do.
    """
    names = {f: name for name, f in FUNCTIONS.items()} | _ALIASES
    if function not in names:
        raise UnknownActivationError(
            f"activation {function!r} is not known to the kernels, which have "
            f"{', '.join(FUNCTIONS)}"
        )
    name = names[function]
    if not normalize or name == "identity":
        return Activation(name, 1.0)
    return Activation(name, _normalization(name, bool(jax.config.jax_enable_x64)))


@functools.cache
def _normalization(name: str, x64: bool) -> float:
    """1 / c of `e3nn.normalize_function`, in the precision that JAX now computes in."""

    def function(x):
        return 1.0 if x is None else FUNCTIONS[name](x)

    return e3nn.normalize_function(function)(None)  # of nothing, it is 1 / c alone


@functools.cache
def parity(name: str) -> int:
    """1 for an even function, -1 for an odd one, 0 for neither."""
    with jax.ensure_compile_time_eval():
        x = jnp.linspace(0.0, 10.0, 256)
        positive, negative = FUNCTIONS[name](x), FUNCTIONS[name](-x)
        if jnp.abs(positive - negative).max() < 1e-5:
            return 1
        return -1 if jnp.abs(positive + negative).max() < 1e-5 else 0
