"""The settings of a run on the eight Tetris shapes: its network, data and training."""

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


def complete(data: TetrisData, model) -> None:
    """Choose the radius of the neighbours for a network, if none is given.

    Raises:
      ConfigError: a setting of the network that the shapes have no use for.
    """
    if data.radius is None:
        # A cube that sees three cubes in a plane cannot distinguish the hands.
        data.radius = model.cutoff if model.name == "allegro" else 1.1
    for name, value, needless in (
        ("shift", "zero", "which has no energies"),
        ("zbl", True, "whose cubes are no nuclei"),
        ("distance_transform", "agnesi", "whose cubes are no elements"),
    ):
        need = f"left out for tetris, {needless}"
        require(getattr(model, name, None) != value, f"model.{name}", str(value).lower(), need)
