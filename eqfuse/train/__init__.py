"""Training: from Python as by `eqfuse train`, and the networks of runs."""

import importlib

_PLACES = {
    "Callback": "eqfuse.train.results",
    "CheckpointError": "eqfuse.runs.errors",
    "ConfigError": "eqfuse.runs.errors",
    "Interrupted": "eqfuse.runs.errors",
    "TrainingFailed": "eqfuse.runs.errors",
    "fit": "eqfuse.train.main",
    "load_run": "eqfuse.runs.checkpoint",
    "read_metadata": "eqfuse.runs.checkpoint",
}
__all__ = [*_PLACES]


def __getattr__(name: str):
    # The command line reads its settings before it imports JAX, which takes seconds.
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
