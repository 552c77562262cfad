"""What else a run reports to: TensorBoard, Weights & Biases, or a callback of yours."""

import math
import os
from pathlib import Path

from eqfuse.train.settings.schema import ConfigError, one_of


class Callback:
    """Called as a run goes on; a subclass overrides what it needs.

    `eqfuse.train.molecule.run` takes a list of them. Only the process that writes the folder of
    the run calls them.
    """

    def on_start(self, folder: Path, config: dict):
        """Start, given the folder of the run, and its settings as plain values."""

    def on_epoch(self, row: dict):
        """Take the line of metrics.csv of a validation: of an epoch, or of `validate_every`."""

    def on_end(self, errors: list[dict]):
        """Take the errors of the best network, the rows of errors.csv; [] if interrupted."""


class TensorBoard(Callback):
    """Writes the metrics of every validation, by step, to FOLDER/tensorboard."""

    def on_start(self, folder: Path, config: dict):
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("settings", str(config))

    def on_epoch(self, row: dict):
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def on_end(self, errors: list[dict]):
        for row in errors:
            for name, value in _numbers(row).items():
                self._writer.add_scalar(f"{row['set']} {row['group']}/{name}", value, 0)
        self._writer.close()


class WandB(Callback):
    """Logs to Weights & Biases: project eqfuse, unless WANDB_PROJECT names another."""

    def on_start(self, folder: Path, config: dict):
        import wandb

        project = os.environ.get("WANDB_PROJECT", "eqfuse")
        self._run = wandb.init(project=project, name=folder.name, dir=str(folder), config=config)

    def on_epoch(self, row: dict):
        self._run.log(_numbers(row))

    def on_end(self, errors: list[dict]):
        for row in errors:
            group = f"{row['set']}/{row['group']}"
            self._run.summary.update({f"{group}/{n}": v for n, v in _numbers(row).items()})
        self._run.finish()


LOGGERS = {"tensorboard": (TensorBoard, "tensorboardX"), "wandb": (WandB, "wandb")}
"""By name: the callback, and the package that it needs."""


def loggers(names: str | None) -> list[Callback]:
    """Return the callbacks of the setting `loggers`.

    Args:
      names: with commas between them; None for none.
    Raises:
      ConfigError: an unknown name, or a package that is not installed.
    """
    made = []
    for name in [] if names is None else names.split(","):
        one_of("loggers", name, LOGGERS)
        kind, package = LOGGERS[name]
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(
                f"loggers={name} needs {package}: pip install eqfuse[loggers]"
            ) from error
        made.append(kind())
    return made


def _numbers(row: dict) -> dict[str, float]:
    return {k: v for k, v in row.items() if isinstance(v, int | float) and math.isfinite(v)}
