"""The folder of a run: configuration, metrics, checkpoints."""

import csv
import datetime
from pathlib import Path

from eqfuse import __version__
from eqfuse.training.config import Config, ConfigError
from eqfuse.training.options import to_yaml


class RunFolder:
    """A new folder with `config.yaml`, a growing `metrics.csv` and `checkpoints/`.

    Attributes:
      path: the folder.
    Raises:
      ConfigError: the folder exists already (nothing is ever overwritten), or cannot be made.
    """

    def __init__(self, config: Config):
        self.path = folder_for(config)
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            raise ConfigError(_exists(self.path)) from error
        except OSError as error:
            raise ConfigError(f"run={self.path} cannot be made: {error.strerror}") from error
        header = f"# eqfuse {__version__}\n"
        (self.path / "config.yaml").write_text(header + to_yaml(config), encoding="utf-8")
        self._columns = None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def log(self, row: dict):
        """Append one line to metrics.csv; the first one decides the columns."""
        first = self._columns is None
        if first:
            self._columns = list(row)
        with open(self.path / "metrics.csv", "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            if first:
                writer.writeheader()
            writer.writerow(row)


def folder_for(config: Config) -> Path:
    """Where the run will write.

    Raises:
      ConfigError: `run` names something that exists.
    """
    if config.run is not None:
        path = Path(config.run)
        if path.exists():
            raise ConfigError(_exists(path))
        return path
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    base = Path("runs") / f"{stamp}_{config.model.name}_{config.data.name}"
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}_{count}")
    return path


def _exists(path: Path) -> str:
    return f"run={path} exists already and is not overwritten; name another folder, or remove it"
