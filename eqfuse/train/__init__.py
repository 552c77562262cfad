"""Training: from Python as by `eqfuse train`, and the networks of runs."""

from eqfuse._late import late

_LATE = {
    "Callback": "eqfuse.train.results",
    "CheckpointError": "eqfuse.runs.errors",
    "ConfigError": "eqfuse.runs.errors",
    "Interrupted": "eqfuse.runs.errors",
    "TrainingFailed": "eqfuse.runs.errors",
    "fit": "eqfuse.train.main",
    "load_run": "eqfuse.runs.checkpoint",
    "read_metadata": "eqfuse.runs.checkpoint",
}
__all__ = [*_LATE]
__getattr__, __dir__ = late(__name__, _LATE)
