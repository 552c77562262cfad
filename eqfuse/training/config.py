"""The settings of a run as typed dataclasses; what each means is in its `help` metadata."""

import dataclasses
import difflib
import math
from dataclasses import field
from typing import Any

from omegaconf import MISSING


class ConfigError(ValueError):
    """A setting that is unknown, ill-typed or impossible; the message is for the user."""


def nearest(name: str, valid) -> str:
    """The valid names closest to `name`, or all of them, as the end of an error message."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.6)
    rest = "choose from: " + ", ".join(valid) if len(valid) <= 8 else "--help lists all of them"
    return f"nearest: {', '.join(close)}; {rest}" if close else rest


def _setting(default, text: str):
    return field(default=default, metadata={"help": text})


def _require(ok: bool, key: str, value, what: str):
    if not ok:
        raise ConfigError(f"{key}={value} is impossible: it must be {what}")


def _positive(config, prefix: str, *names: str):
    for name in names:
        value = getattr(config, name)
        positive = value is None or (value > 0 and math.isfinite(value))
        _require(positive, f"{prefix}{name}", value, "finite and greater than zero")


def _one_of(key: str, value: str, valid):
    if value not in valid:
        raise ConfigError(f"{key}={value} is unknown; {nearest(str(value), valid)}")


@dataclasses.dataclass
class NequIPConfig:
    """NequIP: equivariant message passing (Batzner et al. 2022)."""

    name: str = "nequip"
    layers: int = _setting(3, "number of interaction layers")
    channels: int | None = _setting(
        None, "channels (multiplicity) of every irrep; null: 32, or 16 for tetris"
    )
    lmax: int = _setting(2, "highest order of the spherical harmonics and features")
    parity: bool = _setting(True, "keep irreps of both parities")
    cutoff: float = _setting(5.0, "radius of the neighbourhood, Å")
    num_bessel: int = _setting(8, "number of Bessel radial functions")
    poly_power: int = _setting(6, "power of the polynomial cutoff")
    radial_layers: int = _setting(2, "hidden layers of the radial network")
    radial_hidden: int = _setting(64, "width of the radial network")
    avg_num_neighbors: float | None = _setting(None, "neighbours per atom; null: from the data")
    trainable_scale_shift: bool = _setting(False, "train the per-species scale and shift (eV)")

    def __post_init__(self):
        _one_of("model.name", self.name, ["nequip"])
        _positive(self, "model.", "layers", "channels", "cutoff", "num_bessel", "radial_hidden")
        _positive(self, "model.", "avg_num_neighbors", "poly_power")
        for name in ("lmax", "radial_layers"):
            value = getattr(self, name)
            _require(value >= 0, f"model.{name}", value, "zero or more")

    def settle(self, data: str):
        """Fill in what follows from the data: few channels keep the logits of Tetris small."""
        if self.channels is None:
            self.channels = 16 if data == "tetris" else 32


@dataclasses.dataclass
class MACEConfig:
    """MACE: message passing with higher-order messages (Batatia et al. 2022)."""

    name: str = "mace"
    layers: int = _setting(2, "number of layers")
    channels: int | None = _setting(
        None, "channels (multiplicity) of every irrep; null: 32, or 16 for tetris"
    )
    lmax: int = _setting(2, "highest order of the spherical harmonics and of what is contracted")
    hidden_lmax: int = _setting(1, "highest order of the features between layers")
    correlation: int | None = _setting(
        None, "factors in a message, at most: body order less one; null: 3, or 2 for tetris"
    )
    parity: bool | None = _setting(
        None, "keep irreps of both parities; null: true for tetris, which needs a pseudoscalar"
    )
    first_skip: bool = _setting(False, "a skip (residual connection) in the first layer too")
    cutoff: float = _setting(5.0, "radius of the neighbourhood, Å")
    num_bessel: int = _setting(8, "number of Bessel radial functions")
    poly_power: int = _setting(5, "power of the polynomial cutoff")
    radial_layers: int = _setting(2, "hidden layers of the radial network")
    radial_hidden: int = _setting(64, "width of the radial network")
    readout_hidden: int = _setting(16, "width of the last readout")
    avg_num_neighbors: float | None = _setting(None, "neighbours per atom; null: from the data")
    trainable_scale_shift: bool = _setting(False, "train the per-species scale and shift (eV)")

    def __post_init__(self):
        _one_of("model.name", self.name, ["mace"])
        _positive(self, "model.", "layers", "channels", "correlation", "cutoff", "num_bessel")
        _positive(self, "model.", "radial_hidden", "readout_hidden", "avg_num_neighbors")
        _positive(self, "model.", "poly_power")
        for name in ("lmax", "hidden_lmax", "radial_layers"):
            value = getattr(self, name)
            _require(value >= 0, f"model.{name}", value, "zero or more")

    def settle(self, data: str):
        """Fill in what follows from the data."""
        if self.channels is None:
            self.channels = 16 if data == "tetris" else 32
        if self.correlation is None:
            self.correlation = 2 if data == "tetris" else 3
        if self.parity is None:
            self.parity = data == "tetris"


@dataclasses.dataclass
class AllegroConfig:
    """Allegro: strictly local features of edges (Musaelian et al. 2023)."""

    name: str = "allegro"
    layers: int = _setting(2, "number of layers")
    channels: int | None = _setting(
        None, "channels (multiplicity) of every irrep; null: 32, or 16 for tetris"
    )
    lmax: int = _setting(2, "highest order of the spherical harmonics and features")
    parity: bool = _setting(True, "keep irreps of both parities")
    latent_dim: int | None = _setting(None, "width of the latents; null: 128, or 64 for tetris")
    two_body_layers: int = _setting(3, "matrices of the first network; widths double up to it")
    latent_layers: int = _setting(2, "matrices of the network of each layer")
    latent_activation: bool = _setting(True, "silu between them, or nothing")
    readout_hidden: int = _setting(32, "width of the last network, which is linear")
    cutoff: float = _setting(5.0, "radius of the neighbourhood, all that an atom sees, Å")
    num_bessel: int = _setting(8, "number of Bessel radial functions")
    poly_power: int = _setting(6, "power of the polynomial cutoff")
    avg_num_neighbors: float | None = _setting(None, "neighbours per atom; null: from the data")
    trainable_scale_shift: bool = _setting(False, "train the per-species scale and shift (eV)")

    def __post_init__(self):
        _one_of("model.name", self.name, ["allegro"])
        _positive(self, "model.", "layers", "channels", "latent_dim", "two_body_layers")
        _positive(self, "model.", "latent_layers", "readout_hidden", "cutoff", "num_bessel")
        _positive(self, "model.", "poly_power", "avg_num_neighbors")
        _require(self.lmax >= 0, "model.lmax", self.lmax, "zero or more")

    def settle(self, data: str):
        """Fill in what follows from the data."""
        if self.channels is None:
            self.channels = 16 if data == "tetris" else 32
        if self.latent_dim is None:
            self.latent_dim = 64 if data == "tetris" else 128


@dataclasses.dataclass
class TetrisNetConfig:
    """The network of e3nn-jax's Tetris example: three layers, 7170 parameters, nothing to set."""

    name: str = "tetris"

    def __post_init__(self):
        _one_of("model.name", self.name, ["tetris"])

    def settle(self, data: str):
        """Nothing to fill in; other data are refused."""
        if data != "tetris":
            raise ConfigError(
                f"model=tetris classifies the Tetris shapes only; use model=nequip with data={data}"
            )


@dataclasses.dataclass
class TetrisData:
    """Eight shapes of four cubes, to be told apart; embedded."""

    name: str = "tetris"
    radius: float | None = _setting(
        None,
        "cubes nearer than this see each other, in edges of a cube; null: 1.1, those that share a "
        "face, or the cutoff for allegro, which is strictly local",
    )

    def __post_init__(self):
        _one_of("data.name", self.name, ["tetris"])
        _positive(self, "data.", "radius")


@dataclasses.dataclass
class RMD17Data:
    """A file of the revised MD17 set (.npz; kcal/mol, converted to eV)."""

    name: str = "rmd17"
    path: str | None = _setting(None, "the file to train on (required)")
    train: float | None = _setting(None, "training frames: fraction below 1, or number; null: rest")
    val: float = _setting(0.1, "validation frames: fraction below 1, or number")
    batch_size: int = _setting(5, "structures per step")
    reference_energies: str | None = _setting(
        None, "extxyz file of isolated atoms (energies in eV); null: least squares per species"
    )

    def __post_init__(self):
        _one_of("data.name", self.name, ["rmd17", "extxyz"])
        self._check_path()
        self._check_sizes()

    def _check_path(self):
        _require(
            self.path is not None,
            "data.path",
            "null",
            f"the file to train on: data={self.name} data.path=FILE",
        )

    def _check_sizes(self):
        _positive(self, "data.", "batch_size")
        for name in ("train", "val"):
            value = getattr(self, name)
            fits = value is None or 0 < value < 1 or (value >= 1 and value == int(value))
            _require(fits, f"data.{name}", value, "a fraction between 0 and 1 or a whole number")


@dataclasses.dataclass
class ExtxyzData(RMD17Data):
    """An extended-xyz file, read by ASE: molecules or periodic cells (eV, Å)."""

    name: str = "extxyz"
    energy_key: str = _setting("energy", "name of the energies in the file, eV")
    forces_key: str = _setting("forces", "name of the forces in the file, eV/Å")
    stress_key: str = _setting("stress", "name of the stresses in the file, eV/Å^3 (optional)")


@dataclasses.dataclass
class EthanolData(RMD17Data):
    """1000 frames of ethanol at 300 and 500 K (GFN2-xTB; eV, Å); embedded."""

    name: str = "ethanol"

    def __post_init__(self):
        _one_of("data.name", self.name, ["ethanol"])
        _require(self.path is None, "data.path", self.path, "left out: the data are embedded")
        self._check_sizes()


@dataclasses.dataclass
class TetrisTraining:
    """Mean cross-entropy over the eight shapes, Adam, until all are told apart."""

    lr: float | None = _setting(None, "learning rate of Adam; null: 0.01, or 0.003 for mace")
    rotations: int = _setting(10, "random rotations that the trained network is shown")

    def __post_init__(self):
        _positive(self, "training.", "lr", "rotations")


@dataclasses.dataclass
class MoleculeTraining:
    """Loss on energy per atom and forces; see the fields."""

    lr: float = _setting(0.01, "highest learning rate")
    optimizer: str = _setting("adam", "adam, amsgrad or adamw")
    weight_decay: float = _setting(0.01, "weight decay; adamw only")
    energy_weight: float = _setting(1.0, "weight of the squared error of the energy per atom")
    forces_weight: float = _setting(1.0, "weight of the squared error of the force components")
    stress_weight: float = _setting(0.0, "weight of the squared error of the stress; 0: not used")
    clip_norm: float | None = _setting(10.0, "largest global norm of the gradient; null: no limit")
    ema_decay: float = _setting(0.99, "decay of the average of the parameters; 0: no average")
    schedule: str = _setting("cosine", "learning rate: cosine, plateau or constant")
    warmup_steps: int = _setting(50, "steps over which the learning rate rises from zero")
    min_lr: float = _setting(1e-5, "lowest learning rate; plateau stops there")
    patience: int = _setting(10, "plateau: epochs without improvement before the rate falls")
    factor: float = _setting(0.5, "plateau: by how much it falls")
    checkpoint_seconds: float = _setting(10.0, "least time between two writes of a checkpoint, s")

    def __post_init__(self):
        _positive(self, "training.", "lr", "min_lr", "patience", "clip_norm")
        _one_of("training.optimizer", self.optimizer, ["adam", "amsgrad", "adamw"])
        _one_of("training.schedule", self.schedule, ["cosine", "plateau", "constant"])
        weights = ("energy_weight", "forces_weight", "stress_weight")
        for name in (*weights, "weight_decay", "warmup_steps", "checkpoint_seconds"):
            value = getattr(self, name)
            fits = value >= 0 and math.isfinite(value)
            _require(fits, f"training.{name}", value, "finite and zero or more")
        weights = [getattr(self, name) for name in weights]
        _require(any(weights), "training.*_weight", 0.0, "greater than zero for one of them")
        _require(0 <= self.ema_decay < 1, "training.ema_decay", self.ema_decay, "in [0, 1)")
        _require(0 < self.factor < 1, "training.factor", self.factor, "between 0 and 1")


@dataclasses.dataclass
class Config:
    """A whole run."""

    model: Any = MISSING
    data: Any = MISSING
    training: Any = MISSING
    preset: str | None = _setting(None, "settings that go together; see Presets below")
    seed: int = _setting(0, "of the initial parameters, the split and the order of the data")
    backend: str | None = _setting(None, "implementation of the ops; null: by device")
    dtype: str = _setting("float32", "float32 or float64")
    steps: int | None = _setting(None, "stop after so many steps; null: 100 for tetris")
    epochs: int | None = _setting(None, "stop after so many epochs; null: 100 for molecules")
    max_minutes: float | None = _setting(None, "stop after so long, minutes")
    run: str | None = _setting(None, "folder of the run; null: runs/<date-time>_<model>_<data>")
    resume: str | None = _setting(
        None, "folder of an interrupted run to go on with; see Options. Nothing else is needed"
    )

    def __post_init__(self):
        _one_of("dtype", self.dtype, ["float32", "float64"])
        _positive(self, "", "steps", "epochs", "max_minutes")
        _require(self.seed >= 0, "seed", self.seed, "zero or more")
        self.model.settle(self.data.name)
        if self.data.name == "tetris" and self.data.radius is None:
            # A cube that sees three cubes in a plane cannot tell one hand from the other.
            self.data.radius = self.model.cutoff if self.model.name == "allegro" else 1.1
        if self.training.lr is None:
            # Products of products make large logits, and rounding, of large steps.
            self.training.lr = 0.003 if self.model.name == "mace" else 0.01


GROUPS = {
    "model": {
        "nequip": NequIPConfig,
        "allegro": AllegroConfig,
        "mace": MACEConfig,
        "tetris": TetrisNetConfig,
    },
    "data": {
        "tetris": TetrisData,
        "ethanol": EthanolData,
        "extxyz": ExtxyzData,
        "rmd17": RMD17Data,
    },
    "training": {
        "tetris": TetrisTraining,
        "ethanol": MoleculeTraining,
        "extxyz": MoleculeTraining,
        "rmd17": MoleculeTraining,
    },
}
DEFAULTS = {"model": "nequip", "data": "tetris"}
SHORTHANDS = {
    "layers": "model.layers",
    "channels": "model.channels",
    "lmax": "model.lmax",
    "cutoff": "model.cutoff",
    "lr": "training.lr",
    "batch_size": "data.batch_size",
}
