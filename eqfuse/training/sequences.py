"""A training step in one native call, where `sequence=` asks for it or it gains."""

import math
from collections.abc import Callable

import jax

from eqfuse import ops


def compiled_step(step: Callable, setting: str, say: Callable[[str], None] = print) -> Callable:
    """Return a compiled training step.

    Args:
      step: of arrays.
      setting: "off", "on", or "auto": on where `ops.sequence` takes it to gain.
      say: is given a line that says what was chosen, once for each choice.
    """
    if setting == "off":
        return jax.jit(step)
    said = set()

    def tell(choice: str):
        if choice not in said:
            said.add(choice)
            say(f"sequence   {choice}")

    most = {"most": math.inf} if setting == "on" else {}
    return ops.sequence(step, report=tell, **most)
