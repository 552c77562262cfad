"""Molecular dynamics of a trained network, on the device: NVE and Langevin."""

from eqfuse.md.settings import Settings
from eqfuse.md.simulation import resume, run

__all__ = ["Settings", "resume", "run"]
