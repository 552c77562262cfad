"""Activations of gates as text of Triton."""

from eqfuse.ops.backends.triton.text import DenseEmitter
from eqfuse.ops.ir import functions
from eqfuse.ops.ir.functions import Expression, variable
from eqfuse.ops.ir.fused import Activation

COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CALLED = {"max": "maximum", "min": "minimum"}
CALLED |= {name: name for name in ("abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos")}
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", **COMPARED}


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
    more = ["tl.PropagateNan.ALL"] if function in ("max", "min") else []
    return f"tl.{CALLED[function]}({', '.join([*(part for part, _ in parts), *more])})", 4


def activated(t: DenseEmitter, act: Activation, x: str, order: int = 0) -> str:
    """Return an activation of variable x, or its derivative of this order."""

    def let(name: str, expression: Expression) -> Expression:
        t.emit(f"act_{name} = {text(expression)}")
        return variable(f"act_{name}")

    def apply(function: str, values: list[str]) -> str:
        operands = tuple(map(variable, values))
        if function == "tanh":
            return t.name(text(functions.tanh(*operands, let)))
        if function == "logistic":
            return t.name(text(functions.logistic(*operands)))
        return t.name(text(Expression(function, operands)))

    [value] = act.steps.evaluate([order], x, repr, apply)
    return t.name(value if act.scale == 1.0 else f"{act.scale!r} * {value}")


def unknown(act: Activation) -> list[str]:
    """Return the functions of an activation that Triton's text has no words for."""
    found: list[str] = []
    known = {*OPERATORS, *CALLED, "div", "neg", "select", "tanh", "logistic"}
    act.steps.evaluate([0, 1], "x", repr, lambda function, values: found.append(function) or function)
    return [function for function in found if function not in known]
