"""Molecular dynamics and relaxation with a trained network."""

from eqfuse._late import late

_LATE = {
    "Outcome": "eqfuse.md.relaxation",
    "RelaxSettings": "eqfuse.md.settings",
    "Settings": "eqfuse.md.settings",
    "relax": "eqfuse.md.relaxation",
    "resume": "eqfuse.md.simulation",
    "run": "eqfuse.md.simulation",
}
__all__ = [*_LATE]
__getattr__, __dir__ = late(__name__, _LATE)
