"""The settings of a run as typed dataclasses; what each means is in its `help` metadata."""

import dataclasses
import math
from typing import Any, ClassVar

from omegaconf import MISSING

from eqfuse.train.settings.data_config import DATA, FIT
from eqfuse.train.settings.settings import ConfigError, one_of, positive, require, setting


@dataclasses.dataclass
class PotentialConfig:
    """What NequIP, MACE and Allegro have in common; `NAME` is that of the model."""

    NAME: ClassVar[str] = ""
    name: str = MISSING
    layers: int = setting(2, "number of layers")
    channels: int | None = setting(
        None, "channels (multiplicity) of every irrep; null: 32, or 16 for tetris"
    )
    lmax: int = setting(2, "highest order of the spherical harmonics and features")
    cutoff: float = setting(5.0, "radius of the neighbourhood, Å")
    num_bessel: int = setting(8, "number of Bessel radial functions")
    poly_power: int = setting(6, "power of the polynomial cutoff")
    avg_num_neighbors: float | None = setting(None, "neighbours per atom; null: from the data")
    trainable_scale_shift: bool = setting(False, "train the per-species scale and shift (eV)")
    zbl: bool = setting(False, "add the repulsion of near nuclei (ZBL)")

    def __post_init__(self):
        one_of("model.name", self.name, [self.NAME])
        positive(self, "model.", "layers", "channels", "cutoff", "num_bessel", "poly_power")
        positive(self, "model.", "avg_num_neighbors")
        self._not_negative("lmax")

    def _not_negative(self, *names: str):
        for name in names:
            value = getattr(self, name)
            require(value >= 0, f"model.{name}", value, "zero or more")

    def settle(self, data: str):
        """Fill in what follows from the data: few channels keep the logits of Tetris small."""
        if self.channels is None:
            self.channels = 16 if data == "tetris" else 32


@dataclasses.dataclass
class NequIPConfig(PotentialConfig):
    """NequIP: equivariant message passing (Batzner et al. 2022)."""

    NAME = "nequip"
    name: str = NAME
    layers: int = setting(3, "number of interaction layers")
    parity: bool = setting(True, "keep irreps of both parities")
    radial_layers: int = setting(2, "hidden layers of the radial network")
    radial_hidden: int = setting(64, "width of the radial network")

    def __post_init__(self):
        super().__post_init__()
        positive(self, "model.", "radial_hidden")
        self._not_negative("radial_layers")


@dataclasses.dataclass
class MACEConfig(PotentialConfig):
    """MACE: message passing with higher-order messages (Batatia et al. 2022)."""

    NAME = "mace"
    name: str = NAME
    lmax: int = setting(2, "highest order of the spherical harmonics and of what is contracted")
    hidden_lmax: int = setting(1, "highest order of the features between layers")
    correlation: int | None = setting(
        None, "factors in a message, at most: body order less one; null: 3, or 2 for tetris"
    )
    parity: bool | None = setting(
        None, "keep irreps of both parities; null: true for tetris, which needs a pseudoscalar"
    )
    first_skip: bool = setting(False, "a skip (residual connection) in the first layer too")
    species_linear: bool = setting(False, "without it, a Linear for each element in its place")
    density_normalization: bool = setting(
        False, "divide by a density of neighbours that is learned, not by avg_num_neighbors"
    )
    distance_transform: str | None = setting(
        None, "of lengths before the Bessel functions: agnesi, by covalent radii; null: none"
    )
    poly_power: int = setting(5, "power of the polynomial cutoff")
    radial_layers: int = setting(2, "hidden layers of the radial network")
    radial_hidden: int = setting(64, "width of the radial network")
    readout_hidden: int = setting(16, "width of the last readout")

    def __post_init__(self):
        super().__post_init__()
        if self.distance_transform is not None:
            one_of("model.distance_transform", self.distance_transform, ["agnesi"])
        idle = self.species_linear and self.first_skip
        need = "left out with model.first_skip=true: it is in the place of that skip"
        require(not idle, "model.species_linear", self.species_linear, need)
        positive(self, "model.", "correlation", "radial_hidden", "readout_hidden")
        self._not_negative("hidden_lmax", "radial_layers")

    def settle(self, data: str):
        """Fill in what follows from the data."""
        super().settle(data)
        if self.correlation is None:
            self.correlation = 2 if data == "tetris" else 3
        if self.parity is None:
            self.parity = data == "tetris"
        fits = self.distance_transform is None or data != "tetris"
        need = "left out for tetris, whose cubes are no elements"
        require(fits, "model.distance_transform", self.distance_transform, need)


@dataclasses.dataclass
class AllegroConfig(PotentialConfig):
    """Allegro: strictly local features of edges (Musaelian et al. 2023)."""

    NAME = "allegro"
    name: str = NAME
    cutoff: float = setting(5.0, "radius of the neighbourhood, all that an atom sees, Å")
    parity: bool = setting(True, "keep irreps of both parities")
    latent_dim: int | None = setting(None, "width of the latents; null: 128, or 64 for tetris")
    two_body_layers: int = setting(3, "matrices of the first network; widths double up to it")
    latent_layers: int = setting(2, "matrices of the network of each layer")
    latent_activation: bool = setting(True, "silu between them, or nothing")
    readout_hidden: int = setting(32, "width of the last network, which is linear")

    def __post_init__(self):
        super().__post_init__()
        positive(self, "model.", "latent_dim", "two_body_layers", "latent_layers", "readout_hidden")

    def settle(self, data: str):
        """Fill in what follows from the data."""
        super().settle(data)
        if self.latent_dim is None:
            self.latent_dim = 64 if data == "tetris" else 128


@dataclasses.dataclass
class TetrisNetConfig:
    """The network of e3nn-jax's Tetris example: three layers, 7170 parameters, nothing to set."""

    name: str = "tetris"

    def __post_init__(self):
        one_of("model.name", self.name, ["tetris"])

    def settle(self, data: str):
        """Nothing to fill in; other data are refused."""
        if data != "tetris":
            raise ConfigError(
                f"model=tetris classifies the Tetris shapes only; use model=nequip with data={data}"
            )


@dataclasses.dataclass
class TetrisTraining:
    """Mean cross-entropy over the eight shapes, Adam, until all are told apart."""

    lr: float | None = setting(None, "learning rate of Adam; null: 0.01, or 0.003 for mace")
    rotations: int = setting(10, "random rotations that the trained network is shown")

    def __post_init__(self):
        positive(self, "training.", "lr", "rotations")


@dataclasses.dataclass
class MoleculeTraining:
    """Loss on energy per atom and forces; see the fields."""

    lr: float = setting(0.01, "highest learning rate")
    optimizer: str = setting("muon", "muon, adam, adamw or amsgrad")
    weight_decay: float = setting(0.01, "weight decay; adamw only")
    energy_weight: float = setting(1.0, "weight of the squared error of the energy per atom")
    forces_weight: float = setting(1.0, "weight of the squared error of the force components")
    stress_weight: float = setting(0.0, "weight of the squared error of the stress; 0: not used")
    clip_norm: float | None = setting(10.0, "largest global norm of the gradient; null: no limit")
    ema_decay: float = setting(0.99, "decay of the average of the parameters; 0: no average")
    freeze: str | None = setting(
        None,
        "parameters that keep their values, by names and patterns: 'embedding,radial,layer_0/*'",
    )
    schedule: str = setting("cosine", "learning rate: cosine, plateau or constant")
    warmup_steps: int = setting(50, "steps over which the learning rate rises from zero")
    min_lr: float = setting(1e-5, "lowest learning rate; plateau stops there")
    patience: int = setting(10, "plateau: epochs without improvement before the rate falls")
    factor: float = setting(0.5, "plateau: by how much it falls")
    checkpoint_seconds: float = setting(10.0, "least time between two writes of a checkpoint, s")

    def __post_init__(self):
        positive(self, "training.", "lr", "min_lr", "patience", "clip_norm")
        one_of("training.optimizer", self.optimizer, ["muon", "adam", "adamw", "amsgrad"])
        one_of("training.schedule", self.schedule, ["cosine", "plateau", "constant"])
        falls = self.schedule == "constant" or self.min_lr <= self.lr
        require(falls, "training.min_lr", self.min_lr, f"at most lr={self.lr}; lower it as well")
        weights = ("energy_weight", "forces_weight", "stress_weight")
        for name in (*weights, "weight_decay", "warmup_steps", "checkpoint_seconds"):
            value = getattr(self, name)
            fits = value >= 0 and math.isfinite(value)
            require(fits, f"training.{name}", value, "finite and zero or more")
        decay = self.weight_decay == 0.01 or self.optimizer == "adamw"
        require(decay, "training.weight_decay", self.weight_decay, "left out: only adamw has it")
        weights = [getattr(self, name) for name in weights]
        require(any(weights), "training.*_weight", 0.0, "greater than zero for one of them")
        require(0 <= self.ema_decay < 1, "training.ema_decay", self.ema_decay, "in [0, 1)")
        require(0 < self.factor < 1, "training.factor", self.factor, "between 0 and 1")


@dataclasses.dataclass
class Config:
    """A whole run."""

    model: Any = MISSING
    data: Any = MISSING
    training: Any = MISSING
    preset: str | None = setting(None, "settings that go together; see Presets below")
    seed: int = setting(0, "of the initial parameters, the split and the order of the data")
    backend: str | None = setting(
        None,
        "implementation of the ops: triton, llvm, xla or e3nn, and of single ops: "
        "triton,linear=xla; null: by device",
    )
    devices: str = setting(
        "1", "to share every batch between: a number; all of this machine; distributed, see Options"
    )
    dtype: str = setting("float32", "float32 or float64")
    precision: str = setting(
        "auto",
        "of the matmuls in float32: highest, or tf32x3, three products of TF32 with the errors of "
        "float32, on NVIDIA GPUs; auto: tf32x3 where it can be had",
    )
    sequence: str = setting(
        "auto",
        "a training step in one native call or launch: on, off, or auto: for small networks on a "
        "CPU, without profile=",
    )
    steps: int | None = setting(None, "stop after so many steps; null: 100 for tetris")
    epochs: int | None = setting(
        None, "stop after so many epochs; null: 100, unless steps or max_minutes is given"
    )
    max_minutes: float | None = setting(None, "stop after so long, minutes, or at steps or epochs")
    profile: bool = setting(
        False, "trace a few steps before the training, and print what they launch and how long"
    )
    run: str | None = setting(None, "folder of the run; null: runs/<date-time>_<model>_<data>")
    start_from: str | None = setting(
        None, "folder of a run whose trained network to start from; see Options", reads=True
    )
    elements: str | None = setting(
        None, "with start_from=: data keeps only the elements that the data have; null: all"
    )
    resume: str | None = setting(
        None, "folder of an interrupted run to go on with; see Options. Nothing else is needed"
    )

    def __post_init__(self):
        for prefix, part in (("", self), ("data.", self.data)):
            for name, value in vars(part).items():
                nul = isinstance(value, str) and "\0" in value
                require(not nul, f"{prefix}{name}", repr(value), "without NUL characters")
        one_of("dtype", self.dtype, ["float32", "float64"])
        one_of("sequence", self.sequence, ["auto", "on", "off"])
        one_of("precision", self.precision, ["auto", "highest", "tf32x3"])
        fits = self.precision != "tf32x3" or self.dtype == "float32"
        require(fits, "precision", "tf32x3", "left out with dtype=float64: it is for float32")
        positive(self, "", "steps", "epochs", "max_minutes")
        known = self.devices in ("all", "distributed") or self.devices.isdecimal()
        what = "a number of devices, all, or distributed"
        require(known and self.devices.strip("0") != "", "devices", self.devices, what)
        require(0 <= self.seed < 2**32, "seed", self.seed, "zero or more, and less than 2^32")
        if self.elements is not None:
            one_of("elements", self.elements, ["data"])
            need = "left out without start_from=: a new network has the elements of its data"
            require(self.start_from is not None, "elements", self.elements, need)
        fits = self.start_from is None and getattr(self.data, "reference_energies", None) == FIT
        need = f"a file, or null: {FIT} is for start_from=, and null fits them to the data"
        require(not fits, "data.reference_energies", FIT, need)
        self.model.settle(self.data.name)
        fits = self.data.name != "tetris" or not getattr(self.model, "zbl", False)
        require(fits, "model.zbl", "true", "left out for tetris, whose cubes are no nuclei")
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
    "data": DATA,
    "training": {name: TetrisTraining if name == "tetris" else MoleculeTraining for name in DATA},
}
DEFAULTS = {"model": "nequip", "data": "tetris"}
SHORTHANDS = {
    "layers": "model.layers",
    "channels": "model.channels",
    "lmax": "model.lmax",
    "cutoff": "model.cutoff",
    "lr": "training.lr",
    "batch_size": "data.batch_size",
    "freeze": "training.freeze",
}
