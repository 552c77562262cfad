"""Activations of gates as text of Triton."""

from eqfuse.ops.backends.activations import WRITTEN_OUT, written_out
from eqfuse.ops.backends.triton.text import DenseEmitter
from eqfuse.ops.ir.functions import FUNCTIONS
from eqfuse.ops.ir.fused import Activation


def activated(t: DenseEmitter, act: Activation, x: str, order: int = 0) -> str:
    """Return an activation of variable x, or its derivative of this order."""

    def apply(function: str, values: list[str]) -> str:
        if function in WRITTEN_OUT:
            return written_out(function).evaluate([0], *values, repr, apply)[0]
        return t.name(FUNCTIONS[function].triton.format(*values))

    [value] = act.steps.evaluate([order], x, repr, apply)
    return t.name(value if act.scale == 1.0 else f"{act.scale!r} * {value}")


def unknown(act: Activation) -> list[str]:
    """Return the functions of an activation that Triton's text has no words for."""
    found: list[str] = []

    def note(function: str, values: list[str]) -> str:
        found.append(function)
        return function

    act.steps.evaluate([0, 1], "x", repr, note)
    return [f for f in found if not FUNCTIONS[f].triton and f not in WRITTEN_OUT]
