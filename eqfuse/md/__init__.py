"""Molecular dynamics and relaxation with a trained network."""

from eqfuse._late import late

_LATE = {
    "eqfuse.md.relaxation": "Outcome relax",
    "eqfuse.md.settings": "RelaxSettings Settings",
    "eqfuse.md.simulation": "resume run",
}
__all__, __getattr__, __dir__ = late(__name__, _LATE)
