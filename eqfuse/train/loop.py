"""The training loop: epochs, validation, checkpoints, and when to stop."""

import dataclasses
import math
import time
from collections.abc import Sequence

import jax
import numpy as np

from eqfuse.data import Batcher, prefetched
from eqfuse.runs.checkpoint import Checkpoints
from eqfuse.runs.errors import Interrupted, TrainingFailed
from eqfuse.runs.files import RunFolder
from eqfuse.runs.log import say, warn
from eqfuse.runs.stopping import StopRequest
from eqfuse.train.metrics import added, best_of, error_row
from eqfuse.train.results import Callback
from eqfuse.train.schedule import LearningRate, Limits, average_decay
from eqfuse.train.step import Compiled, TrainState
from eqfuse.train.terminal import Progress, duration


@dataclasses.dataclass
class Position:
    """How far a run is, besides the state of its training; an interrupted run continues there."""

    epoch: int = 1  # 0 is the validation of a network that was trained before
    batch: int = 0  # how many batches of the epoch are done
    unvalidated: int = 0  # steps since the last validation that was due
    error_sums: dict = dataclasses.field(default_factory=dict)  # of these steps, see `added`
    loss_sum: float = 0.0  # of these steps
    best: float = math.inf  # lowest validation error so far, by `training.best`
    second_since: int | None = None  # the first step of the second stage
    falls_since: int | None = None  # with wsd, the first step of a lower learning rate
    fraction: float = 0.0  # of the run that is over
    elapsed: float = 0.0  # s
    learning_rate: dict = dataclasses.field(default_factory=dict)  # see `LearningRate.to_plain`


class Fit:
    """Trains a `Prepared` run; a network to start from is validated first, as epoch 0."""

    def __init__(
        self,
        ready,
        compiled: Compiled,
        folder: RunFolder,
        checkpoints: Checkpoints,
        callbacks: Sequence[Callback] = (),
    ):
        config, self._devices = ready.config, ready.devices
        self._train, self._val = ready.batchers
        self._settings, self._compiled = config.training, compiled
        lengths = config.steps, config.epochs, config.max_minutes
        self.limits = Limits(len(self._train), *lengths)
        self._folder, self._checkpoints = folder, checkpoints
        self._callbacks = callbacks
        self._first_epoch = 1 if ready.starts[0] is None else 0
        self._learning_rate = LearningRate(config.training)
        self._compiled_shapes = set()

    def run(self, resume: tuple[TrainState, dict] | None = None) -> TrainState:
        """Train until a limit is reached, and return the last state.

        `resume` is state and position of an interrupted run, as they were offered to checkpoints.
        """
        state, at = self._compiled.initial(), Position(epoch=self._first_epoch)
        if resume is not None:
            state, at = resume[0], Position(**resume[1])
            self._learning_rate = LearningRate(self._settings, **at.learning_rate)
        state = self._devices.replicated(state)
        self.limits.start(at.elapsed)
        if resume is None:
            self._keep(state, at)
        with StopRequest() as stop:
            return self._train_until(stop, state, at, resumed=resume is not None)

    def _train_until(self, stop: StopRequest, state: TrainState, at: Position, *, resumed: bool):
        step = int(state.step)
        due = self._validation_is_due(step, at)
        goes_on = due or self._reason_to_stop(step) is None
        if goes_on:
            self._prepare(state, at)
            self._warn_of_rise(step, at)
        by = "epoch" if self._settings.validate_every is None else "step"
        shown = [*dict.fromkeys(["energy", "forces", *self._settings.trained])]
        with Progress(len(self._train), shown, by) as progress:
            self._signal(stop)
            if resumed and goes_on:
                with self._devices.together():
                    self._folder.forget_after(step - at.unvalidated if at.epoch else -1)
            if due:
                at = self._validate(state, at, [], progress)
            elif resumed and step >= self.limits.steps:
                progress.log(
                    f"the run has done {step} steps, {at.epoch - 1} epochs, and was asked for "
                    f"{self.limits.steps} steps; more epochs= or steps= make it longer"
                )
            while (reason := self._reason_to_stop(int(state.step))) is None:
                progress.start_epoch(at.epoch, at.batch)
                state, times = self._epoch(state, at, stop, progress)
                if signum := self._signal(stop):
                    raise self._interrupted(signum, state, at)
                step = int(state.step)
                is_last = self._reason_to_stop(step) is not None
                if at.unvalidated and (is_last or self._validation_is_due(step, at)):
                    at = self._validate(state, at, times, progress)
                elif at.batch == len(self._train):
                    at = dataclasses.replace(at, epoch=at.epoch + 1, batch=0)
                self._signal(stop)
            progress.log(
                f"{reason} after {duration(self.limits.elapsed)}; results in {self._folder.path}"
            )
        return state

    def _validation_is_due(self, step: int, at: Position) -> bool:
        """Test whether a step ends an epoch, or as many steps as `validate_every`."""
        every = self._settings.validate_every
        if at.epoch == 0:
            return True
        ends = at.batch == len(self._train) if every is None else step % every == 0
        return ends and at.unvalidated > 0

    def _step_arguments(self, step: int, at: Position) -> tuple:
        rate = self._learning_rate(step, self.limits.fraction(step))
        decay = average_decay(self._settings.ema_decay, step, at.second_since)
        return rate, decay, self._compiled.device_losses[at.second_since is not None]

    def _warn_of_rise(self, step: int, at: Position):
        fractions = at.fraction, self.limits.fraction(step)
        before, now = (self._learning_rate(step, fraction) for fraction in fractions)
        goes_back = self._settings.schedule == "wsd"
        if now - before > 0.05 * self._settings.lr and not goes_back and self._devices.is_main:
            stage = "" if at.second_since is None else ", in its second stage"
            warn(
                f"the run is longer now{stage}, and its learning rate rises from {before:.1e} to "
                f"{now:.1e}: it will hardly be as good as one that was so long from its start. "
                f"start_from={self._folder.path} trains its network in a new run; a run with "
                "training.schedule=wsd can be made longer"
            )

    def _prepare(self, state: TrainState, at: Position):
        """Compile a step and the validation, and measure this, before the clock starts."""
        say("compiling the training step and the validation")
        start = at.batch % len(self._train)  # none is left of an epoch that is to be validated
        batch = next(self._train.batches(at.epoch, shuffle=True, start=start))
        self._compiled.measure(self._devices.part(batch))
        batch = self._devices.spread(batch)
        arguments = self._step_arguments(int(state.step), at)
        jax.block_until_ready(self._compiled.step(state, batch, *arguments))
        batch = self._devices.spread(next(self._val.batches(shuffle=False)))
        for _ in range(2):  # the first one compiles
            start = time.monotonic()
            jax.block_until_ready(self._compiled.errors(state.average, batch))
        seconds = len(self._val) * (time.monotonic() - start)
        self.limits.reserve(self._devices.agreed(seconds, None)[0])
        self.limits.start(at.elapsed)

    def _signal(self, stop: StopRequest) -> int | None:
        """Set the time, and return the signal that ends the run; the same in all processes."""
        clock = self.limits.clock()
        self.limits.elapsed, signum = self._devices.agreed(clock, stop.signum)
        return signum

    def _interrupted(self, signum: int, state: TrainState, at: Position):
        self._keep(state, at)
        with self._devices.together():
            self._checkpoints.flush()
        return Interrupted(
            signum,
            f"interrupted in epoch {at.epoch}, step {int(state.step)}; the checkpoint is in "
            f"{self._folder.checkpoints}; go on with resume={self._folder.path}",
        )

    def _keep(self, state: TrainState, at: Position, validation=None, name: str = "last"):
        at.fraction = self.limits.fraction(int(state.step))
        at.elapsed, at.learning_rate = self.limits.elapsed, self._learning_rate.to_plain()
        plain = {"epoch": at.epoch if at.batch else max(0, at.epoch - 1)}
        plain |= {} if validation is None else {"validation": validation}
        plain["position"] = dataclasses.asdict(at)
        with self._devices.together():
            self._checkpoints.offer(
                name, int(state.step), self._compiled.average_of(state), plain, state=state
            )

    def _epoch(self, state: TrainState, at: Position, stop, progress):
        """Train on the rest of the batches of an epoch, or until a validation, limit or signal.

        Moves `at`. Returns the state and the time of each step that compiled nothing, s.
        """
        limits, settings, times, step = self.limits, self._settings, [], int(state.step)
        for batch in self._batches(self._train, at.epoch, shuffle=True, start=at.batch):
            if self._signal(stop) or (fraction := limits.fraction(step)) >= 1.0:
                break
            falls = settings.schedule == "wsd" and fraction >= settings.stable_until
            if falls and at.falls_since is None:  # from where a longer run goes on
                self._keep(state, at, name="stable")
                at.falls_since = step
            begin = settings.second_stage
            if begin is not None and at.second_since is None and fraction >= begin:
                at.second_since, at.best = step, math.inf
                self._learning_rate.forget_best()
                weight = self._compiled.losses[1].energy
                progress.log(f"second stage: energy_weight={weight:g}, and averaged parameters")
            start = time.monotonic()
            arguments = self._step_arguments(step, at)
            new_state, value, sums = self._compiled.step(state, batch, *arguments)
            value = float(value)
            if not math.isfinite(value):
                raise TrainingFailed(self._not_finite(value, at, step))
            state, step = new_state, step + 1
            at.batch, at.unvalidated = at.batch + 1, at.unvalidated + 1
            at.loss_sum, at.error_sums = at.loss_sum + value, added(at.error_sums, sums)
            self._keep(state, at)
            shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
            if shapes in self._compiled_shapes:
                times.append(time.monotonic() - start)
            self._compiled_shapes.add(shapes)
            progress.step(value)
            if self._validation_is_due(step, at):
                break
        return state, times

    def _batches(self, batcher: Batcher, *args, **kwargs):
        # Put there by this thread: whether JAX has float64 is a setting of a thread.
        return map(self._devices.spread, prefetched(batcher.batches(*args, **kwargs)))

    def _not_finite(self, value: float, at: Position, step: int) -> str:
        group = self._train.groups(at.epoch)[at.batch]
        names = "; ".join(self._train.samples[i].name for i in group)
        return (
            f"the loss became {value} (or its gradient) in epoch {at.epoch}, step {step + 1}, on "
            f"{names} (counted from 0); look at these, or try a smaller lr= or dtype=float64. The "
            f"last good checkpoint is in {self._folder.checkpoints}"
        )

    def _validate(self, state, at: Position, times, progress) -> Position:
        """Validate, write metrics and checkpoints, print; return the position after it."""
        limits, sums, start = self.limits, {}, time.monotonic()
        for number, batch in enumerate(self._batches(self._val, shuffle=False)):
            sums = added(sums, self._compiled.errors(state.average, batch))
            progress.heartbeat(f"validation, batch {number + 1} of {len(self._val)}")
        limits.reserve(self._devices.agreed(time.monotonic() - start, None)[0])
        val_loss = self._compiled.losses[at.second_since is not None](sums)
        validation = error_row(sums)
        trained = error_row(at.error_sums) or dict.fromkeys(validation, math.nan)
        step = int(state.step)
        row = {
            "epoch": at.epoch,
            "step": step,
            "lr": self._learning_rate(step, limits.fraction(step)),
            "train_loss": at.loss_sum / at.unvalidated if at.unvalidated else math.nan,
            "val_loss": val_loss,
            **{f"train_{name}": value for name, value in trained.items()},
            **{f"val_{name}": value for name, value in validation.items()},
            "ms_per_step": 1e3 * float(np.median(times)) if times else math.nan,
            "elapsed_s": limits.elapsed,
        }
        with self._devices.together():
            self._folder.log(row)
        for callback in self._callbacks:
            callback.on_epoch(dict(row))
        errors = {k: v for k, v in row.items() if "val_" in k}
        criterion = best_of(row, self._settings.best)
        after = dataclasses.replace(at, best=min(at.best, criterion))
        # A limit before a validation is due ends the run; made longer, it goes on where it was.
        if self._validation_is_due(step, at):
            self._learning_rate.epoch_ended(criterion, trained=at.epoch > 0)
            after = dataclasses.replace(after, unvalidated=0, error_sums={}, loss_sum=0.0)
            if at.epoch == 0 or at.batch == len(self._train):
                after = dataclasses.replace(after, epoch=at.epoch + 1, batch=0)
        if criterion < at.best:
            record = {"epoch": at.epoch, "validation": errors}
            self._checkpoints.offer("best", step, self._compiled.average_of(state), record)
        self._keep(state, after, errors)
        progress.end_epoch(row, limits.left(step))
        return after

    def _reason_to_stop(self, step: int) -> str | None:
        if step >= self.limits.steps:
            return "all steps done"
        if self.limits.time_is_up:
            return "time is up"
        return self._learning_rate.reason_to_stop
