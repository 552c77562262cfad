"""How a run trains, how long, and at which learning rate: plain numbers, without JAX."""

import dataclasses
import math
import time
from typing import Literal

from eqfuse.runs.schema import FRACTION, NOT_NEGATIVE, POSITIVE, Range, check_ranges, require, value

DEFAULT_EPOCHS = 100
_LABELS = ("energy", "forces", "stress", "hessian")
_ERRORS = [f"{name}_{kind}" for name in _LABELS for kind in ("mae", "rmse")]
_DECAY = Range(lambda value: 0 <= value < 1, "in [0, 1)")


@dataclasses.dataclass
class MoleculeTraining:
    """Training on energies, forces and stress: the weights of `eqfuse.train.metrics.Loss`."""

    lr: float = value(0.01, POSITIVE)
    schedule: Literal["cosine", "wsd", "plateau", "exponential", "constant"] = value("cosine")
    warmup_steps: int = value(50, NOT_NEGATIVE)
    min_lr: float = value(1e-5, POSITIVE)
    patience: int = value(10, POSITIVE)
    factor: float | None = value(None, FRACTION)
    early_stopping: int | None = value(None, POSITIVE)
    optimizer: Literal["muon", "adam", "adamw", "amsgrad"] = value("muon")
    weight_decay: float | None = value(None, NOT_NEGATIVE)
    clip_norm: float | None = value(10.0, POSITIVE)
    ema_decay: float = value(0.99, _DECAY)
    freeze: str | None = value(None)
    loss: Literal["mse", "huber", "universal"] = value("mse")
    huber_delta: float = value(0.01, POSITIVE)
    energy_weight: float = value(1.0, NOT_NEGATIVE)
    forces_weight: float = value(1.0, NOT_NEGATIVE)
    stress_weight: float = value(0.0, NOT_NEGATIVE)
    hessian_weight: float = value(0.0, NOT_NEGATIVE)
    second_stage: float | None = value(0.75, FRACTION)
    second_energy_weight: float = value(10.0, NOT_NEGATIVE)
    best: Literal[("loss", *_ERRORS)] = value("loss")
    validate_every: int | None = value(None, POSITIVE)
    checkpoint_seconds: float = value(10.0, NOT_NEGATIVE)

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

    def epoch_ended(self, validation_loss: float):
        """Lower the learning rate after a validation, of a plateau if it was not better."""
        settings = self._settings
        self._waited = 0 if validation_loss < self._best else self._waited + 1
        self._best = min(self._best, validation_loss)
        if settings.schedule == "plateau" and self._waited and not self._waited % settings.patience:
            self._scale *= settings.factor or 0.5
        if settings.schedule == "exponential":
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
