"""A training step in one native call, where `sequence=` asks for it or it gains."""

import math
from collections.abc import Callable

import jax

from eqfuse import ops
from eqfuse.train.settings.config import Config


def compiled_step(
    step: Callable, config: Config, say: Callable[[str], None], *, one_device: bool = True
) -> Callable:
    """Return a compiled training step: one native call, or as it is written.

    Args:
      step: of arrays.
      config: whose `sequence` is "off", "on", or "auto": on where `ops.sequence` takes it to gain,
        but not with `profile`, which tells the time of the parts of a step.
      say: is given a line that says what was chosen, once for each choice, when it is traced.
      one_device: whether it runs on one; it is as written on several.
    """
    if not one_device or not may_be_sequence(config):
        return jax.jit(step)
    said = set()

    def tell(choice: str):
        if choice not in said:
            said.add(choice)
            say(f"sequence   {choice}")

    most = {"most": math.inf} if config.sequence == "on" else {}
    return ops.sequence(step, report=tell, **most)


def may_be_sequence(config: Config) -> bool:
    """Return whether the settings let a step be one native call."""
    return config.sequence == "on" or (config.sequence == "auto" and not config.profile)
