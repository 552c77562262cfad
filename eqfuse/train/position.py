"""How far a run is: what its checkpoint holds besides the state of the training."""

import dataclasses
import math


@dataclasses.dataclass
class Position:
    """How far a run is, besides the state of its training; an interrupted run continues there.

    Attributes:
      epoch: the current one, from 1; 0 is the validation of a network that was trained before.
      batch: how many of its batches are done.
      error_sums, loss_sum: of these batches; see `Errors`.
      best: lowest validation error so far, by the criterion of `training.best`.
      second_since: the first step of the second stage, or None.
      elapsed: s.
      learning_rate: see `LearningRate.to_plain`.
    """

    epoch: int = 1
    batch: int = 0
    error_sums: dict = dataclasses.field(default_factory=dict)
    loss_sum: float = 0.0
    best: float = math.inf
    second_since: int | None = None
    elapsed: float = 0.0
    learning_rate: dict = dataclasses.field(default_factory=dict)
