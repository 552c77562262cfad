"""The settings of a run: what can be chosen, and what each setting means."""

import dataclasses
import os
import re
from typing import Any, Literal

from eqfuse.train.data_sets import DATA
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings import tetris
from eqfuse.train.settings.networks import settings_of_network
from eqfuse.train.settings.schema import (
    POSITIVE,
    ConfigError,
    Range,
    absolute,
    check_ranges,
    require,
    setting,
)
from eqfuse.train.sources import AVERAGE, FIT

_NETWORKS = {"nequip": "NequIP", "allegro": "Allegro", "mace": "MACE"}


@dataclasses.dataclass
class Config:
    """A whole run: the settings of its model, data and training, and those of every run."""

    model: Any
    data: Any
    training: Any
    preset: str | None = setting(None, "settings that go together, see Presets")
    seed: int = setting(
        0,
        "seed of the initial parameters, the split and the order of the data",
        Range(lambda value: 0 <= value < 2**32, "zero or more, and less than 2^32"),
    )
    backend: str | None = setting(
        None,
        "implementation of the ops: triton, llvm, xla or e3nn, and of single ops: "
        "triton,linear=xla; null: by device",
    )
    devices: str = setting(
        "1", "share every batch between a number of devices, all, or distributed; see Options"
    )
    dtype: Literal["float32", "float64"] = setting("float32", "dtype of parameters and data")
    precision: Literal["auto", "highest", "tf32x3"] = setting(
        "auto",
        "of matmuls in float32; tf32x3 computes three products of TF32 on NVIDIA GPUs, with the "
        "errors of float32, and auto takes it where it exists",
    )
    sequence: Literal["auto", "on", "off"] = setting(
        "auto",
        "run a training step in one native call or launch; auto: for small networks on a CPU, "
        "without profile=",
    )
    steps: int | None = setting(
        None, "stop after this many steps; null: 100 for tetris, no limit for others", POSITIVE
    )
    epochs: int | None = setting(
        None,
        "stop after this many epochs; null: 100, unless steps or max_minutes is given",
        POSITIVE,
    )
    max_minutes: float | None = setting(
        None, "stop after this many minutes, or at steps or epochs if these come first", POSITIVE
    )
    loggers: str | None = setting(
        None, "report to tensorboard or wandb, too, or to both: tensorboard,wandb"
    )
    profile: bool = setting(
        False, "trace a few steps before the training, and print their kernels and times"
    )
    run: str | None = setting(
        None, "folder of the run; null: runs/<date-time>_<model>_<data>", convert=os.path.expanduser
    )
    start_from: str | None = setting(
        None, "folder of a run whose trained network to start from; see Options", convert=absolute
    )
    elements: Literal["data", "add"] | None = setting(
        None,
        "with start_from=: keep only the elements of the data, or add those that the network does "
        "not know, which begin as similar ones; null: those of the network",
    )
    resume: str | None = setting(
        None,
        "folder of an interrupted run to continue; see Options. Nothing else is needed",
        convert=os.path.expanduser,
    )

    def __post_init__(self):
        check_ranges(self, "")
        fits = self.precision != "tf32x3" or self.dtype == "float32"
        require(fits, "precision", "tf32x3", "left out with dtype=float64: it is for float32")
        fits = re.fullmatch("all|distributed|0*[1-9][0-9]*", self.devices)
        require(fits, "devices", self.devices, "a number of devices, all, or distributed")
        wrong, need = AVERAGE, f"{FIT} with start_from=, whose network has reference energies"
        if self.start_from is None:
            need = "left out without start_from=: a new network has the elements of its data"
            require(not self.elements, "elements", self.elements, need)
            wrong, need = FIT, f"a file, energies, average or null: {FIT} is for start_from="
        fits = getattr(self.data, "reference_energies", None) != wrong
        require(fits, "data.reference_energies", wrong, need)
        if self.data.name == "tetris":
            tetris.complete(self.data, self.model)
        elif self.model.name == "tetris":
            raise ConfigError(
                "model=tetris classifies the Tetris shapes only; use model=nequip with "
                f"data={self.data.name}"
            )


DEFAULTS = {"model": "nequip", "data": "tetris"}
GROUPS = {
    "model": {
        **{name: settings_of_network(name, network) for name, network in _NETWORKS.items()},
        "tetris": tetris.TetrisNetSettings,
    },
    "data": {"tetris": tetris.TetrisData, **DATA},
    "training": {"tetris": tetris.TetrisTraining, **dict.fromkeys(DATA, MoleculeTraining)},
}
"""The dataclasses of what can be chosen; training follows from the data."""
SHORTHANDS = {
    "layers": "model.layers",
    "channels": "model.channels",
    "lmax": "model.lmax",
    "cutoff": "model.cutoff",
    "lr": "training.lr",
    "batch_size": "data.batch_size",
    "freeze": "training.freeze",
}
