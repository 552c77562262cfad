"""Activations of gates as text of Triton."""

from eqfuse.ops.backends.activations import WRITTEN_OUT, written_out
from eqfuse.ops.backends.triton.text import DenseEmitter
from eqfuse.ops.ir.fused import Activation

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "eq": "=="}
OPERATORS |= {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CALLED = {name: f"tl.{name}({{}})" for name in ("abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos")}
CALLED |= {"neg": "-{}", "select": "tl.where({0}, {2}, {1})"}
CALLED |= {n: f"tl.{n}imum({{}}, {{}}, tl.PropagateNan.ALL)" for n in ("max", "min")}


def activated(t: DenseEmitter, act: Activation, x: str, order: int = 0) -> str:
    """Return an activation of variable x, or its derivative of this order."""

    def apply(function: str, values: list[str]) -> str:
        if function in WRITTEN_OUT:
            return written_out(function).evaluate([0], *values, repr, apply)[0]
        if function in OPERATORS:
            return t.name(f"{values[0]} {OPERATORS[function]} {values[1]}")
        return t.name(CALLED[function].format(*values))

    [value] = act.steps.evaluate([order], x, repr, apply)
    return t.name(value if act.scale == 1.0 else f"{act.scale!r} * {value}")


def unknown(act: Activation) -> list[str]:
    """Return the functions of an activation that Triton's text has no words for."""
    found: list[str] = []

    def note(function: str, values: list[str]) -> str:
        found.append(function)
        return function

    act.steps.evaluate([0, 1], "x", repr, note)
    return [f for f in found if f not in (*OPERATORS, *CALLED, *WRITTEN_OUT)]
