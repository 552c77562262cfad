"""The settings of a run on the eight Tetris shapes, which `eqfuse train` is without data=."""

import dataclasses

from eqfuse.train.settings.config import NETWORKS, NetworkSettings, RunSettings, settings_of_network
from eqfuse.train.settings.options import config_file, flat, read_yaml
from eqfuse.train.settings.schema import (
    POSITIVE,
    ConfigError,
    Schema,
    check_ranges,
    require,
    setting,
)


@dataclasses.dataclass
class TetrisNetSettings:
    """The network of e3nn-jax's Tetris example: three layers, 7170 parameters, no settings."""

    name: str = "tetris"


@dataclasses.dataclass
class TetrisData:
    """Eight shapes of four cubes, to be classified; embedded."""

    name: str = "tetris"
    radius: float | None = setting(
        None,
        "neighbours are cubes nearer than this, in edges of a cube; null: 1.1, those that share a "
        "face, or the cutoff for allegro, which is strictly local",
        POSITIVE,
    )

    def __post_init__(self):
        check_ranges(self, "data.")


@dataclasses.dataclass
class TetrisTraining:
    """Mean cross-entropy over the eight shapes, Adam, until the accuracy is 100%."""

    lr: float = setting(0.01, "learning rate of Adam; 0.003 for mace", POSITIVE)
    rotations: int = setting(10, "random rotations that test the trained network", POSITIVE)

    def __post_init__(self):
        check_ranges(self, "training.")


@dataclasses.dataclass(kw_only=True)
class TetrisConfig(RunSettings):
    """A run on the Tetris shapes."""

    def __post_init__(self):
        super().__post_init__()
        transform = getattr(self.model, "distance_transform", None)
        need = "left out for tetris, whose cubes are no elements"
        require(transform is None, "model.distance_transform", transform, need)
        if self.data.radius is None:
            # A cube that sees three cubes in a plane cannot distinguish the hands.
            self.data.radius = self.model.cutoff if self.model.name == "allegro" else 1.1


_NETWORKS = {name: settings_of_network(name, NetworkSettings) for name in NETWORKS}
TETRIS = Schema(
    TetrisConfig,
    {"model": {**_NETWORKS, "tetris": TetrisNetSettings}, "data": {"tetris": TetrisData}},
    TetrisTraining,
    {"model": "nequip", "data": "tetris"},
    {
        "nequip": {"model.channels": 16},  # few channels keep the logits small
        "allegro": {"model.channels": 16, "model.latent_dim": 64},
        # Products of products make large logits, and rounding, of large steps.
        "mace": {
            "model.channels": 16,
            "model.correlation": 2,
            "model.parity": True,
            "training.lr": 0.003,
        },
    },
)


def asks_for_tetris(arguments: list[str]) -> bool:
    """Test for the settings of a run on the Tetris shapes, which does not go on; refuse that."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    for name in ("resume", "start_from", "config"):
        if given.get(name) in (None, "", "null") or (name == "config" and "data" in given):
            continue
        try:
            file = config_file(given[name])
            is_tetris = flat(read_yaml(file), file).get("data", "tetris") == "tetris"
        except ConfigError:  # is raised where it is needed
            return False
        if is_tetris and name != "config":
            raise ConfigError(
                f"the network of {given[name]} classifies the Tetris shapes, which it learns in "
                f"seconds; {name}= takes one of energies and forces"
            )
        return is_tetris
    names = {argument.partition("=")[0] for argument in arguments}
    others = {"resume", "start_from", "data.path", "data.val_path"}
    return given.get("data", "tetris") == "tetris" and not names & others
