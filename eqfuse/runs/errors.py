"""The errors of commands; each message is for the user. Without JAX, which takes seconds."""

import contextlib

from eqfuse.data import DataError

OLD_ALLEGRO = (
    "is of the Allegro of eqfuse 0.2.0 and before, which that version reads: pip install "
    "eqfuse==0.2.0. The network of model=allegro is now another one; train it in a new run"
)
"""What is said of a run whose network has the setting `latent_activation`, after its name."""


class ConfigError(ValueError):
    """A setting that is unknown, ill-typed or impossible; the message is for the user."""


class CheckpointError(ValueError):
    """A run folder or network file that cannot be read; the message is for the user."""


@contextlib.contextmanager
def naming(name: str | None):
    """Return a context whose ConfigError or DataError begins with a name, unless that is None."""
    try:
        yield
    except (ConfigError, DataError) as error:
        if name is None:
            raise
        raise type(error)(f"{name}: {error}") from error


class TrainingFailed(RuntimeError):
    """The run ended without what it was for; the message is for the user."""


class Interrupted(Exception):
    """The run was asked to stop; `signum` is the signal that did it."""

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum
