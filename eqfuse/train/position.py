"""How far a run is: what its checkpoint holds besides the state of the training."""

import dataclasses
import math


@dataclasses.dataclass
class Position:
    """How far a run is, besides the state of its training; an interrupted run continues there.

    Attributes:
      epoch: the current one, from 1; 0 is the validation of a network that was trained before.
      batch: how many of its batches are done.
      unvalidated: steps since the last validation that was due.
      error_sums, loss_sum: of the batches of these steps; see `Errors`.
      best: lowest validation error so far, by the criterion of `training.best`.
      second_since: the first step of the second stage, or None.
      elapsed: s.
      learning_rate: see `LearningRate.to_plain`.
    """

    epoch: int = 1
    batch: int = 0
    unvalidated: int = 0
    error_sums: dict = dataclasses.field(default_factory=dict)
    loss_sum: float = 0.0
    best: float = math.inf
    second_since: int | None = None
    elapsed: float = 0.0
    learning_rate: dict = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, plain: dict) -> "Position":
        """Return the position in a checkpoint; earlier versions validated after each epoch only."""
        return cls(**{"unvalidated": plain["batch"], **plain})

    def validated(self, ends_epoch: bool) -> "Position":
        """Return the position after a validation that was due; maybe that of the next epoch."""
        after = dataclasses.replace(self, unvalidated=0, error_sums={}, loss_sum=0.0)
        return after.next_epoch() if ends_epoch else after

    def next_epoch(self) -> "Position":
        """Return the position at the beginning of the next epoch."""
        return dataclasses.replace(self, epoch=self.epoch + 1, batch=0)
