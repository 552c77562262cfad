"""Element-wise functions of numbers, and the activations of gates, as text of Triton."""

import math

from eqfuse.ops.backends.triton.text import DenseEmitter, Emitter
from eqfuse.ops.ir import functions
from eqfuse.ops.ir.functions import Expression, variable
from eqfuse.ops.ir.fused import Activation

COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", **COMPARED}

BETWEEN = frozenset((*OPERATORS, "max", "min"))  # one operand may be a number that is written out


def literal(value: float, dtype: str) -> str:
    if dtype == "bool":
        return "True" if value else "False"
    if dtype == "int32":
        return repr(int(value))
    value = float(value)
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def constant(value: float, dtype: str, shape: str = "[1]") -> str:
    """Return a number as text where Triton would take it for one of float32."""
    if dtype == "bool":
        return literal(value, dtype)
    return f"tl.full({shape}, {literal(value, dtype)}, tl.{dtype})"


def larger(a: str, b: str, dtype: str, function: str = "max") -> str:
    """Return the larger (or smaller) of two numbers, NaN where one is."""
    nan = "" if dtype == "int32" else ", propagate_nan=tl.PropagateNan.ALL"
    return f"tl.{function}imum({a}, {b}{nan})"


def text(expression: Expression | float) -> str:
    """Return an expression as text, with no more parentheses than it needs."""
    return _text(expression)[0]


def _text(expression: Expression | float) -> tuple[str, int]:
    """Return the text of an expression, and how strongly its outermost operator binds."""
    if not isinstance(expression, Expression):
        return repr(expression), 4
    function, operands = expression.function, expression.operands
    if function == "variable":
        return operands[0], 4
    parts = [_text(o) for o in operands]

    def within(k: int, least: int) -> str:
        text, binds = parts[k]
        return text if binds >= least else f"({text})"

    if function == "neg":
        return f"-{within(0, 3)}", 3
    if function in OPERATORS or function == "div":
        binds = 0 if function in COMPARED else 1 if function in ("add", "sub") else 2
        operator = OPERATORS.get(function, "/")
        return f"{within(0, binds)} {operator} {within(1, binds + 1)}", binds
    if function == "select":
        condition, no, yes = (part for part, _ in parts)
        return f"tl.where({condition}, {yes}, {no})", 4
    return f"tl.{function}({parts[0][0]})", 4


def activated(t: DenseEmitter, act: Activation, x: str, derivative: bool = False) -> str:
    """Return an activation of variable x, or its derivative."""

    def let(name: str, expression: Expression) -> Expression:
        t.emit(f"act_{name} = {text(expression)}")
        return variable(f"act_{name}")

    value = text(functions.ACTIVATIONS[act.name](variable(x), let)[derivative])
    return t.name(value if act.scale == 1.0 else f"{act.scale!r} * ({value})")


TEXTS = {name: f"{{0}} {operator} {{1}}" for name, operator in OPERATORS.items()}
TEXTS |= {name: f"tl.{name}({{0}})" for name in ("abs", "exp", "log", "sin", "cos")}
TEXTS |= {
    "identity": "{0}",
    "is_finite": 'tl.abs({0}) < float("inf")',
    "neg": "-{0}",
    "select": "tl.where({0}, {2}, {1})",
    "sign": "tl.where({0} > 0, 1, tl.where({0} < 0, -1, {0})).to(tl.{dtype})",
    "square": "{0} * {0}",
}
"""Functions that are one expression, whatever the dtype."""


class FunctionEmitter:
    """Writes functions of values that are named, with statements of an emitter."""

    def __init__(self, emitter: Emitter):
        self.emitter, self._names = emitter, 0

    def name(self, text: str) -> str:
        self._names += 1
        name = f"f{self._names}"
        self.emitter.emit(f"{name} = {text}")
        return name

    def number(self, value: float, dtype: str, function: str) -> str:
        return (literal if function in BETWEEN else constant)(value, dtype)

    def apply(self, function: str, values: list[str], dtype: str, out: str, power: int) -> str:
        """Return a variable with a function of values of `dtype`; its result is of dtype `out`."""
        a = values[0]
        if function in TEXTS:
            return self.name(TEXTS[function].format(*values, dtype=dtype))
        if function in ("max", "min"):
            return self.name(larger(*values, dtype, function))
        if function == "convert":
            return self.name(self._converted(a, dtype, out))
        if function == "div":
            return self.name(self._quotient(*values, dtype))
        if function == "not":
            return self.name(f"{a} == 0" if dtype == "bool" else f"~{a}")
        if function == "integer_pow":
            return self._power(a, power, dtype)
        if function == "logistic":
            return self.name(text(functions.logistic(variable(a))))
        if function == "tanh":
            return text(functions.tanh(variable(a), self._let))
        return getattr(self, f"_{function}")(*values, dtype)

    def _converted(self, a: str, dtype: str, out: str) -> str:
        if out == "bool":
            return f"{a} != 0"
        if out != "int32" or dtype not in ("float32", "float64"):
            return f"{a}.to(tl.{out})"
        # beyond the largest integers the largest ones, zero for NaN
        inside = f"tl.where({a} == {a}, tl.maximum({a}, -2147483648.0), 0.0)"
        inside = f"tl.where({a} < 2147483648.0, {inside}, 0.0).to(tl.int32)"
        return f"tl.where({a} >= 2147483648.0, 2147483647, {inside})"

    def _quotient(self, a: str, b: str, dtype: str) -> str:
        # of two numbers in float32, "/" may be wrong by two units in the last place
        return f"tl.div_rn({a}, {b})" if dtype == "float32" else f"{a} / {b}"

    def _power(self, a: str, power: int, dtype: str) -> str:
        result = functions.power(variable(a), abs(power), self._let)
        result = text(result) if result else self.name(self._one(a, dtype))
        if power >= 0:
            return result
        return self.name(self._quotient(self._one(a, dtype), result, dtype))

    def _let(self, name: str, expression: Expression) -> Expression:
        return variable(self.name(text(expression)))

    @staticmethod
    def _one(a: str, dtype: str) -> str:
        return f"tl.where({a} == {a}, 1, 1).to(tl.{dtype})"

    def _sqrt(self, a: str, dtype: str) -> str:
        return self.name(f"tl.sqrt_rn({a})" if dtype == "float32" else f"tl.sqrt({a})")

    def _rsqrt(self, a: str, dtype: str) -> str:
        root = self._sqrt(a, dtype)
        return self.name(self._quotient(self._one(root, dtype), root, dtype))

    def _pow(self, a: str, b: str, dtype: str) -> str:
        """Return exp(b log |a|) in float64, with the sign and the exceptions of C's pow."""
        a, b = (self.name(f"{n}.to(tl.float64)") for n in (a, b))
        size = f"tl.exp({b} * tl.log(tl.abs({a})))"
        value = self.name(f"tl.where({b} == 0, 1.0, tl.where({a} == 1, 1.0, {size}))")
        whole = self.name(f"tl.floor({b}) == {b}")
        odd = self.name(f"tl.floor({b} * 0.5) * 2.0 != {b}")
        negative = f'tl.where({whole}, tl.where({odd}, -{value}, {value}), float("nan"))'
        value = f"tl.where({b} == 0, 1.0, tl.where({a} < 0, {negative}, {value}))"
        return self.name(f"{value}.to(tl.{dtype})")

    def _expm1(self, a: str, dtype: str) -> str:
        """Return (e - 1) a / log e with e = exp a rounded, whose error cancels (Kahan)."""
        e = self.name(f"tl.exp({a})")
        usual = f"({e} - 1.0) * ({a} / tl.log({e}))"
        bounded = f'tl.where({e} == float("inf"), {e}, tl.where({e} == 0, -1.0, {usual}))'
        return self.name(f"tl.where({e} == 1.0, {a}, {bounded})")

    def _log1p(self, a: str, dtype: str) -> str:
        """Return a log(s) / (s - 1) with s = 1 + a rounded, whose error cancels (Kahan)."""
        s = self.name(f"1.0 + {a}")
        usual = f'tl.where({s} == float("inf"), {s}, tl.log({s}) * ({a} / ({s} - 1.0)))'
        return self.name(f"tl.where({s} == 1.0, {a}, {usual})")
