"""Molecular dynamics and relaxation with a trained network, on the device."""

from eqfuse.md.relax import Outcome, relax
from eqfuse.md.settings import RelaxSettings, Settings
from eqfuse.md.simulation import resume, run

__all__ = ["Outcome", "RelaxSettings", "Settings", "relax", "resume", "run"]


def __dir__() -> list[str]:
    return __all__
