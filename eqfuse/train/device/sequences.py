"""A training step in one native call, where `sequence=` asks for it or it is faster."""

import math
from collections.abc import Callable

import jax

from eqfuse import ops


def compiled_step(
    step: Callable, mode: str, profiled: bool = False, log: Callable[[str], None] | None = None
) -> Callable:
    """Return a compiled training step: one native call, or as it is written.

    Args:
      step: of arrays, on one device; with several, `mode` is "off".
      mode: "off", "on", or "auto": on where `ops.sequence` expects a gain, but not for a run that
        is `profiled`, where the parts of a step are measured.
      log: called with a line about each choice, once, when it is traced; None for no lines.
    """
    if mode == "off" or (mode == "auto" and profiled):
        return jax.jit(step)
    choices = set()

    def report(choice: str):
        if log is not None and choice not in choices:
            choices.add(choice)
            log(f"sequence   {choice}")

    most = {"most": math.inf} if mode == "on" else {}
    return ops.sequence(step, report=report, **most)
