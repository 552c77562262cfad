"""The settings of a run: what can be chosen, and what each setting means."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import eqfuse
from eqfuse.train.data_sets import DATA
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings import tetris
from eqfuse.train.settings.schema import (
    NOT_NEGATIVE,
    POSITIVE,
    ConfigError,
    Range,
    check_ranges,
    fields_of_source,
    require,
    setting,
)
from eqfuse.train.sources import AVERAGE, FIT

_NETWORKS = {"nequip": "NequIP", "allegro": "Allegro", "mace": "MACE"}
_FROM_DATA = ("irreps_out", "num_species", "avg_num_neighbors", "backend", "fused")
_MAY_BE_ZERO = ("lmax", "hidden_lmax", "radial_layers")


@dataclasses.dataclass
class PotentialSettings:
    """What a potential adds to the settings of its network."""

    avg_num_neighbors: float | None = setting(
        None, "neighbours per atom; null: from the data", POSITIVE
    )
    trainable_scale_shift: bool = setting(False, "train the per-species scale and shift (eV)")
    shift: Literal["mean", "zero"] = setting(
        "mean",
        "energy that an atom has besides what the network computes: the mean of the training "
        "energies, relative to the reference energies, or zero, which is right far from the data",
    )
    zbl: bool = setting(False, "add the repulsion of near nuclei (ZBL)")

    def __post_init__(self):
        check_ranges(self, "model.")
        both = getattr(self, "species_linear", False) and self.first_skip
        need = "left out with model.first_skip=true: it is in the place of that skip"
        require(not both, "model.species_linear", "true", need)

    def model_fields(self, avg_num_neighbors: float) -> dict:
        """Return the fields of the module, without those of `Potential`.

        Args:
          avg_num_neighbors: of the data, where none is given.
        """
        fields = dataclasses.asdict(self)
        for name in ("name", "trainable_scale_shift", "shift", "zbl"):
            del fields[name]
        if self.avg_num_neighbors is None:
            fields["avg_num_neighbors"] = avg_num_neighbors
        return fields


def _settings_of(name: str, network: str) -> type:
    """Return the settings of a network, which are the fields of its module, as a dataclass."""
    path = Path(eqfuse.__file__).parent / "models" / f"{name}.py"
    doc, own = fields_of_source(path, network)
    fields = [("name", str, name)]
    for key, kind, default, text in own:
        within = None if kind is bool else NOT_NEGATIVE if key in _MAY_BE_ZERO else POSITIVE
        within = within if kind in (int, float) else None
        if key not in _FROM_DATA:
            fields.append((key, kind, setting(default, text, within)))
    made = dataclasses.make_dataclass(network, fields, bases=(PotentialSettings,))
    made.__doc__ = doc
    return made


@dataclasses.dataclass
class Config:
    """A whole run: the settings of its model, data and training, and those of every run."""

    model: Any
    data: Any
    training: Any
    preset: str | None = setting(None, "settings that go together; see Presets below")
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
    dtype: Literal["float32", "float64"] = setting("float32", "of numbers")
    precision: Literal["auto", "highest", "tf32x3"] = setting(
        "auto",
        "of matmuls in float32; tf32x3 is three products of TF32 with the errors of float32, on "
        "NVIDIA GPUs, and auto takes it where it can be had",
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
        None, "folder of the run; null: runs/<date-time>_<model>_<data>", path="written"
    )
    start_from: str | None = setting(
        None, "folder of a run whose trained network to start from; see Options", path="read"
    )
    elements: Literal["data", "add"] | None = setting(
        None,
        "with start_from=: keep only the elements of the data, or add those that the network does "
        "not know, which begin as similar ones; null: those of the network",
    )
    resume: str | None = setting(
        None,
        "folder of an interrupted run to continue; see Options. Nothing else is needed",
        path="written",
    )

    def __post_init__(self):
        check_ranges(self, "")
        fits = self.precision != "tf32x3" or self.dtype == "float32"
        require(fits, "precision", "tf32x3", "left out with dtype=float64: it is for float32")
        known = self.devices in ("all", "distributed") or self.devices.isdecimal()
        what = "a number of devices, all, or distributed"
        require(known and self.devices.strip("0") != "", "devices", self.devices, what)
        need = "left out without start_from=: a new network has the elements of its data"
        require(not self.elements or self.start_from is not None, "elements", self.elements, need)
        fits = self.start_from is None and getattr(self.data, "reference_energies", None) == FIT
        need = f"a file, energies, average or null: {FIT} is for start_from="
        require(not fits, "data.reference_energies", FIT, need)
        average = getattr(self.data, "reference_energies", None) == AVERAGE
        need = f"{FIT} with start_from=, whose network has reference energies"
        fits = self.start_from is None or not average
        require(fits, "data.reference_energies", AVERAGE, need)
        if self.data.name != "tetris":
            if self.model.name == "tetris":
                raise ConfigError(
                    "model=tetris classifies the Tetris shapes only; use model=nequip with "
                    f"data={self.data.name}"
                )
            return
        tetris.check_network(self.model)


DEFAULTS = {"model": "nequip", "data": "tetris"}
GROUPS = {
    "model": {
        **{name: _settings_of(name, network) for name, network in _NETWORKS.items()},
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
