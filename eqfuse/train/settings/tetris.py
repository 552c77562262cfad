"""The settings of a run on the eight Tetris shapes: its network, data, training and defaults."""

import dataclasses

from eqfuse.train.settings.schema import POSITIVE, check_ranges, require, setting


@dataclasses.dataclass
class TetrisNetSettings:
    """The network of e3nn-jax's Tetris example: three layers, 7170 parameters, no settings."""

    name: str = "tetris"


@dataclasses.dataclass
class TetrisData:
    """Eight shapes of four cubes, to be classified; embedded."""

    name: str = "tetris"
    radius: float = setting(
        1.1,
        "neighbours are cubes nearer than this, in edges of a cube; by default those that share a "
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


def tetris_defaults(model: str, given: dict) -> dict:
    """Return the defaults of a run on the Tetris shapes, where they are not those of the classes.

    Args:
      model: name of the model.
      given: settings of the user, by full name.
    """
    own = {
        "tetris": {},
        "nequip": {"model.channels": 16},  # few channels keep the logits small
        # Products of products make large logits, and rounding, of large steps.
        "mace": {
            "model.channels": 16,
            "model.correlation": 2,
            "model.parity": True,
            "training.lr": 0.003,
        },
        # A cube that sees three cubes in a plane cannot tell one hand from the other.
        "allegro": {
            "model.channels": 16,
            "model.latent_dim": 64,
            "data.radius": given.get("model.cutoff", 5.0),
        },
    }
    return own[model]


def check_network(model) -> None:
    """Refuse settings of a network that the shapes have no use for.

    Raises:
      ConfigError: naming the setting.
    """
    mean = getattr(model, "shift", "mean") == "mean"
    require(mean, "model.shift", "zero", "left out for tetris, which has no energies")
    for name, value, need in (
        ("zbl", "true", "left out for tetris, whose cubes are no nuclei"),
        ("distance_transform", "agnesi", "left out for tetris, whose cubes are no elements"),
    ):
        require(not getattr(model, name, None), f"model.{name}", value, need)
