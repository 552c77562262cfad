"""Functions of one number: activations as steps, and what no backend has as one operation.

The latter are written once as operations that all have. A function here is called with its
argument, an `Expression`, and `let`, by which the emitter of a backend gives a name to an
intermediate value: `let(name, expression)` returns the variable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Steps:
    """A function of a number x, its slope and its curvature, as steps: values `v0`, `v1`, ...

    A step is one of `program.FUNCTIONS` and its operands: "x", values of steps before, or numbers
    as Python writes them.
    """

    results: tuple[str, ...]
    steps: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def evaluate(self, orders, x, number: Callable, apply: Callable) -> list:
        """Return the derivatives of these orders at x.

        Only the steps that they need are computed, each once, by `apply(function, operands)`;
        `number` makes a constant.
        """
        values = {"x": x}

        def value(name: str):
            if name not in values:
                if not name.startswith("v"):
                    return number(float(name))
                function, operands = self.steps[int(name[1:])]
                values[name] = apply(function, [value(o) for o in operands])
            return values[name]

        return [value(self.results[order]) for order in orders]


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
