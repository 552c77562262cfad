"""Certify a trained network on this machine: `eqfuse check`."""

from eqfuse.inference.check.checks import Row, check

__all__ = ["Row", "check"]
