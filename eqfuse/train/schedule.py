"""How a run trains, how long, and at which learning rate: plain numbers, without JAX."""

import dataclasses
import math
import time
from typing import Literal

from eqfuse.runs.schema import (
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    Range,
    check_ranges,
    documented,
    require,
    value,
)

DEFAULT_EPOCHS = 100
_LABELS = ("energy", "forces", "stress", "hessian")
_ERRORS = [f"{name}_{kind}" for name in _LABELS for kind in ("mae", "rmse")]
_DECAY = Range(lambda value: 0 <= value < 1, "in [0, 1)")


@documented
@dataclasses.dataclass
class MoleculeTraining:
    """Training on energies, forces and stress: the weights of `eqfuse.train.metrics.Loss`."""

    lr: float = value(0.01, POSITIVE)
    """highest learning rate"""
    schedule: Literal["cosine", "wsd", "plateau", "exponential", "constant"] = value("cosine")
    """how the learning rate changes after the warm-up; wsd (warm-up, stable, decay) falls only in
    the last quarter, so that a run can be made longer"""
    warmup_steps: int = value(50, NOT_NEGATIVE)
    """steps until the learning rate is highest"""
    min_lr: float = value(1e-5, POSITIVE)
    """lowest learning rate; a run with plateau ends there"""
    patience: int = value(10, POSITIVE)
    """plateau: validations without improvement before it falls"""
    factor: float | None = value(None, FRACTION)
    """what the learning rate is multiplied by: for plateau, null is 0.5; for exponential after each
    validation, and null is what ends at min_lr"""
    early_stopping: int | None = value(None, POSITIVE)
    """end the run after this many validations without improvement, counted anew in the second
    stage; null: never"""
    optimizer: Literal["muon", "adam", "adamw", "amsgrad"] = value("muon")
    """the optimizer"""
    weight_decay: float | None = value(None, NOT_NEGATIVE)
    """decay of the weights, for muon and adamw; null: 0.01 for adamw, else 0"""
    clip_norm: float | None = value(10.0, POSITIVE)
    """largest norm of the gradient; null: no limit"""
    ema_decay: float = value(0.99, _DECAY)
    """decay of the averaged parameters; 0: no average"""
    freeze: str | None = value(None)
    """parameters that keep their values, by names and patterns: 'embedding,radial,layer_0/*'"""
    loss: Literal["mse", "huber", "universal"] = value("mse")
    """squared errors; huber: linear above huber_delta; universal: as huber, with a lower threshold
    for large forces"""
    huber_delta: float = value(0.01, POSITIVE)
    """threshold of huber and universal, eV/atom, eV/Å or eV/Å^3"""
    energy_weight: float = value(1.0, NOT_NEGATIVE)
    """weight of errors of eV per atom in the loss"""
    forces_weight: float = value(1.0, NOT_NEGATIVE)
    """weight of errors of forces in the loss"""
    stress_weight: float = value(0.0, NOT_NEGATIVE)
    """weight of errors of the stress in the loss"""
    hessian_weight: float = value(0.0, NOT_NEGATIVE)
    """weight of errors of Hessians, eV/Å^2, in the loss: a random row of each in each step"""
    second_stage: float | None = value(0.75, FRACTION)
    """fraction of the run after which second_energy_weight weighs energies, and parameters are
    averaged; null: no second stage"""
    second_energy_weight: float | None = value(None, NOT_NEGATIVE)
    """energy_weight of the second stage; null: 10, or 0 with energy_weight=0"""
    best: Literal[("loss", *_ERRORS)] = value("loss")
    """error on the validation frames by which the best network is chosen"""
    validate_every: int | None = value(None, POSITIVE)
    """validate after this many steps, and at the end of the run; null: after each epoch"""
    checkpoint_seconds: float = value(10.0, NOT_NEGATIVE)
    """least time between checkpoints, s"""

    def __post_init__(self):
        check_ranges(self, "training.")
        falls = self.schedule == "constant" or self.min_lr <= self.lr
        require(falls, "training.min_lr", self.min_lr, f"at most lr={self.lr}; lower it as well")
        has = not self.weight_decay or self.optimizer in ("muon", "adamw")
        need = "left out: only muon and adamw have it"
        require(has, "training.weight_decay", self.weight_decay, need)
        require(self.trained, "training.*_weight", 0.0, "greater than zero for one of them")

    @property
    def trained(self) -> list[str]:
        """Return the labels with a weight in the loss."""
        return [name for name in _LABELS if getattr(self, f"{name}_weight")]

    @property
    def stable_until(self) -> float:
        """Return the fraction of a run after which the learning rate of wsd falls."""
        return self.second_stage or 0.75


def average_decay(ema_decay: float, step: int, since: int | None) -> float:
    """Return the part of the averaged parameters that stays in a step.

    It rises to `ema_decay` as (2 + step) / (11 + step), so that the random initial parameters are
    soon forgotten. In the second stage all parameters `since` it began have the same weight.

    References: Izmailov et al. 2018, arXiv:1803.05407 (the second).
    """
    if since is not None:
        return (step - since) / (step - since + 1)
    return min(ema_decay, (2 + step) / (11 + step)) if ema_decay else 0.0


class LearningRate:
    """The learning rate of every step: a linear rise, then a schedule; and when it ends a run.

    Cosine falls from `lr` to `min_lr` as the run passes, by steps or by time, whichever is further.
    So does wsd in the last part of the run, with the square root of what has passed of it.
    Plateau multiplies by `factor` after `patience` validations without a better loss, exponential
    after each validation.

    References: Hägele et al. 2024, arXiv:2405.18392 (wsd).
    """

    def __init__(self, settings: MoleculeTraining, scale=1.0, best=math.inf, waited=0):
        self._settings = settings
        self._scale, self._best, self._waited = scale, best, waited

    def __call__(self, step: int, fraction: float) -> float:
        """Return the learning rate of step `step` (from 0), after `fraction` of the run."""
        settings, fraction = self._settings, min(fraction, 1.0)
        value, stable = settings.lr * self._scale, settings.stable_until
        if settings.schedule == "cosine":
            wave = 0.5 * (1.0 + math.cos(math.pi * fraction))
            value = settings.min_lr + (settings.lr - settings.min_lr) * wave
        elif settings.schedule == "wsd" and fraction > stable:
            left = 1.0 - math.sqrt((fraction - stable) / (1.0 - stable))
            value = settings.min_lr + (settings.lr - settings.min_lr) * left
        elif settings.schedule == "exponential" and settings.factor is None:
            value *= (settings.min_lr / settings.lr) ** fraction
        return value * min(1.0, (step + 1) / max(settings.warmup_steps, 1))

    def epoch_ended(self, validation_loss: float, trained: bool = True):
        """Lower the learning rate after a validation, of a plateau if it was not better.

        A network is validated before it is `trained`, too, where a run starts from one.
        """
        settings = self._settings
        self._waited = 0 if validation_loss < self._best else self._waited + 1
        self._best = min(self._best, validation_loss)
        if settings.schedule == "plateau" and self._waited and not self._waited % settings.patience:
            self._scale *= settings.factor or 0.5
        if settings.schedule == "exponential" and trained:
            self._scale *= settings.factor or 1.0

    def forget_best(self):
        """Compare later validation losses with each other only: the loss is another one."""
        self._best, self._waited = math.inf, 0

    def to_plain(self) -> dict:
        """Return the arguments, besides the settings, of one that continues."""
        return {"scale": self._scale, "best": self._best, "waited": self._waited}

    @property
    def reason_to_stop(self) -> str | None:
        """Return why a run ends: its plateau is below `min_lr`, or it stops early."""
        settings = self._settings
        if settings.schedule == "plateau" and settings.lr * self._scale < settings.min_lr:
            return "learning rate exhausted"
        if settings.early_stopping and self._waited >= settings.early_stopping:
            return f"no better validation in {self._waited}"
        return None


class Limits:
    """The limits of a run in steps and in time; 100 epochs if none is given.

    `elapsed` are seconds from the start to the last `clock` of the main process.
    """

    def __init__(self, steps_per_epoch: int, steps=None, epochs=None, max_minutes=None):
        if epochs is steps is max_minutes is None:
            epochs = DEFAULT_EPOCHS
        self.steps = min((epochs or math.inf) * steps_per_epoch, steps or math.inf)
        self.seconds = 60.0 * (max_minutes or math.inf)
        self.reserved = 0.0  # s, kept for the last validation
        self.start()

    def reserve(self, seconds: float):
        """Keep time for the last validation, but never more than half of all."""
        self.reserved = min(seconds, 0.5 * self.seconds)

    @property
    def time_is_up(self) -> bool:
        """Test whether only the time of the last validation is left."""
        return self.elapsed >= self.seconds - self.reserved

    def start(self, elapsed: float = 0.0):
        """Start the clock of a run that has taken `elapsed` seconds before."""
        self._start, self.elapsed = time.monotonic() - elapsed, elapsed

    def clock(self) -> float:
        """Return the time since the start of this process's clock, s."""
        return time.monotonic() - self._start

    def fraction(self, step: int) -> float:
        """Return the fraction of the run that is over, by steps or by time, whichever is more."""
        return max(step / self.steps, self.elapsed / (self.seconds - self.reserved))

    def left(self, step: int) -> float:
        """Return an estimate of the time left, s; not finite where nothing is known of it."""
        fraction = self.fraction(step)
        return max(0.0, self.elapsed / fraction - self.elapsed) if fraction else math.nan
