"""Functions that no backend has as one operation, written once as operations that all have.

A function here is called with its argument, an `Expression`, and `let`, by which the emitter of a
backend gives a name to an intermediate value: `let(name, expression)` returns the variable.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable


def _operator(function: str, *, swapped: bool = False):
    def operator(self, *others) -> Expression:
        operands = (self, *others)
        return Expression(function, operands[::-1] if swapped else operands)

    return operator


@dataclasses.dataclass(frozen=True, eq=False)
class Expression:
    """A variable, or one of `program.FUNCTIONS` of expressions and numbers."""

    function: str
    operands: tuple

    __add__, __radd__ = _operator("add"), _operator("add", swapped=True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", swapped=True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", swapped=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)
    __neg__, __abs__ = _operator("neg"), _operator("abs")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))


Let = Callable[[str, Expression], Expression]


def variable(name: str) -> Expression:
    return Expression("variable", (name,))


def exp(x: Expression) -> Expression:
    return Expression("exp", (x,))


def where(condition: Expression, yes, no) -> Expression:
    return Expression("select", (condition, no, yes))


def tanh(x: Expression, let: Let) -> Expression:
    """Return the hyperbolic tangent of x, odd to the last bit.

    Where 1 - exp(-2 |x|) would cancel, up to |x| = 0.4, it is the convergent of degree 7 of the
    continued fraction of Lambert: its error is 9e-18 of tanh(x) at most, and its terms have one
    sign.
    """
    t = let("t", exp(-2.0 * abs(x)))
    q = let("q", x * x)
    small = let("b", abs(x) < 0.4)
    n = let("n", x * (135135.0 + q * (17325.0 + q * (378.0 + q))))
    n = let("n", where(small, n, where(x < 0, t - 1.0, 1.0 - t)))
    d = let("d", where(small, 135135.0 + q * (62370.0 + q * (3150.0 + q * 28.0)), 1.0 + t))
    return let("s", n / d)


def logistic(x: Expression) -> Expression:
    """Return the sigmoid of x."""
    return 1.0 / (1.0 + exp(-x))


def power(x: Expression, exponent: int, let: Let) -> Expression | None:
    """Return x to a power by squaring; None for the power 0, which is one everywhere."""
    result, square, rest = None, x, exponent
    while rest:
        if rest & 1:
            result = square if result is None else let("power", result * square)
        rest >>= 1
        square = let("square", square * square) if rest else square
    return result


def _identity(x: Expression, let: Let):
    return x, x * 0.0 + 1.0


def _silu(x: Expression, let: Let):
    s = let("s", logistic(x))
    return x * s, s * (1.0 + x * (1.0 - s))


def _gelu(x: Expression, let: Let):
    c = math.sqrt(2 / math.pi)
    s = tanh(let("a", c * (x + 0.044715 * x * x * x)), let)
    slope = (1.0 + s) * (1.0 - s)
    inner = c * (1.0 + 3 * 0.044715 * x * x)
    return 0.5 * x * (1.0 + s), 0.5 * (1.0 + s) + 0.5 * x * slope * inner


def _sigmoid(x: Expression, let: Let):
    s = let("s", logistic(x))
    return s, s * (1.0 - s)


def _tanh(x: Expression, let: Let):
    s = tanh(x, let)
    return s, (1.0 + s) * (1.0 - s)


def _relu(x: Expression, let: Let):
    return where(x <= 0, 0.0, x), where(x > 0, x * 0.0 + 1.0, 0.0)


def _soft_odd(x: Expression, let: Let):
    s = let("s", exp(-x * x))
    return (1.0 - s) * x, 1.0 - s + 2.0 * x * x * s


def _abs(x: Expression, let: Let):
    return abs(x), where(x >= 0, x * 0.0 + 1.0, x * 0.0 - 1.0)


ACTIVATIONS: dict[str, Callable[[Expression, Let], tuple[Expression, Expression]]] = {
    "identity": _identity,
    "silu": _silu,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": _relu,
    "soft_odd": _soft_odd,
    "abs": _abs,
}
"""The value and the derivative of each activation of `gate.Activation`, by its name.

Where a function has no derivative, and in what cancels, they are as JAX has them.
"""


def _gelu_curvature(x: Expression, let: Let):
    c = math.sqrt(2 / math.pi)
    s = let("s", tanh(let("a", c * (x + 0.044715 * x * x * x)), let))
    slope = let("d", (1.0 + s) * (1.0 - s))
    inner = let("i", c * (1.0 + 3 * 0.044715 * x * x))
    return slope * (inner + 3 * 0.044715 * c * x * x - x * s * inner * inner)


def _silu_curvature(x: Expression, let: Let):
    s = let("s", logistic(x))
    return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s))


def _sigmoid_curvature(x: Expression, let: Let):
    s = let("s", logistic(x))
    return s * (1.0 - s) * (1.0 - 2.0 * s)


def _tanh_curvature(x: Expression, let: Let):
    s = let("s", tanh(x, let))
    return -2.0 * s * ((1.0 + s) * (1.0 - s))


def _soft_odd_curvature(x: Expression, let: Let):
    return let("s", exp(-x * x)) * x * (6.0 - 4.0 * (x * x))


def _no_curvature(x: Expression, let: Let):
    return x * 0.0


CURVATURES: dict[str, Callable[[Expression, Let], Expression]] = {
    "identity": _no_curvature,
    "silu": _silu_curvature,
    "gelu": _gelu_curvature,
    "sigmoid": _sigmoid_curvature,
    "tanh": _tanh_curvature,
    "relu": _no_curvature,
    "soft_odd": _soft_odd_curvature,
    "abs": _no_curvature,
}
"""The second derivative of each of `ACTIVATIONS`."""


def derivative(name: str, order: int, x: Expression, let: Let) -> Expression:
    """Return an activation, its slope or its curvature: the derivative of order 0, 1 or 2."""
    return CURVATURES[name](x, let) if order == 2 else ACTIVATIONS[name](x, let)[order]
