"""A trained network as one program to take along: StableHLO and weights in one file."""

from eqfuse.export.program import ARGUMENTS, export

__all__ = ["ARGUMENTS", "export"]
