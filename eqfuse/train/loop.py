"""The training loop: steps, epochs, validation, and when to stop."""

import dataclasses
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse.data import Batch, Batcher, prefetched
from eqfuse.models import Potential, predict
from eqfuse.train.device.parallel import Devices
from eqfuse.train.device.profiling import profile
from eqfuse.train.device.sequences import compiled_step, may_be_sequence
from eqfuse.train.metrics import Errors, Loss, error_sums
from eqfuse.train.optimizer import (
    LearningRate,
    TrainState,
    apply_gradient,
    flat_training,
    init_state,
)
from eqfuse.train.run.progress import Progress, duration
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.run.saving import Checkpoints
from eqfuse.train.run.stopping import Interrupted, StopRequest, TrainingFailed
from eqfuse.train.settings.config import Config

DEFAULT_EPOCHS = 100
_ALL_STEPS = "all steps done"


class Limits:
    """How long a run may take, in steps and in time.

    Args:
      config: gives steps, epochs and max_minutes; 100 epochs if it gives none of them.
      steps_per_epoch: batches in an epoch.
      elapsed: time that the run took before it was interrupted, s.
    Attributes:
      steps: in all; math.inf where only the time is limited.
      elapsed: time that the run took, s, when it was last asked for; every process has the same.
    """

    def __init__(self, config: Config, steps_per_epoch: int, elapsed: float = 0.0):
        epochs = config.epochs
        if epochs is None and config.steps is None and config.max_minutes is None:
            epochs = DEFAULT_EPOCHS
        by_epochs = math.inf if epochs is None else epochs * steps_per_epoch
        self.steps = min(by_epochs, config.steps or math.inf)
        self.seconds = 60.0 * (config.max_minutes or math.inf)
        self._start = time.monotonic() - elapsed
        self.elapsed = elapsed

    def clock(self) -> float:
        """Time since the start, s, of this process."""
        return time.monotonic() - self._start

    def fraction(self, step: int) -> float:
        """Return how much of the run is over, by steps or by time, whichever is further."""
        return max(step / self.steps, self.elapsed / self.seconds)

    def left(self, step: int, seconds_per_step: float) -> float:
        """Estimated time left, s; not finite where nothing is known of it."""
        missing = self.steps - step
        by_steps = missing * seconds_per_step if missing > 0 else 0.0
        by_time = self.seconds - self.elapsed
        return by_time if math.isnan(by_steps) else max(0.0, min(by_steps, by_time))


@dataclasses.dataclass
class Position:
    """Where a run is, besides the state of its training: what an interrupted run needs to know.

    Attributes:
      epoch: the current one, from 1; 0 is the validation of a network that was trained before.
      batch: how many of its batches are done.
      error_sums, loss_sum: of these batches; see `Errors`.
      best: lowest validation loss so far.
      elapsed: s.
      learning_rate: see `LearningRate.to_plain`.
    """

    epoch: int = 1
    batch: int = 0
    error_sums: dict = dataclasses.field(default_factory=dict)
    loss_sum: float = 0.0
    best: float = math.inf
    elapsed: float = 0.0
    learning_rate: dict = dataclasses.field(default_factory=dict)


class Fit:
    """Trains a potential; `run` does it.

    Args:
      config: of the run.
      potential, loss: what is trained, and on what.
      params: initial parameters, or those of a trained network (`start_from=`).
      batchers: of the training and the validation samples.
      folder, checkpoints: where the results go.
      devices: which share every batch.
    """

    def __init__(
        self,
        config: Config,
        potential: Potential,
        loss: Loss,
        params,
        batchers: tuple[Batcher, Batcher],
        folder: RunFolder,
        checkpoints: Checkpoints,
        devices: Devices,
    ):
        self._config = config
        self._train, self._val = batchers
        self._loss = loss
        self._folder = folder
        self._checkpoints = checkpoints
        self._learning_rate = LearningRate(config.training)
        self._devices = devices
        self._compiled_shapes = set()
        self._flat, optimizer = flat_training(config.training, params)
        self._initial = lambda: init_state(self._flat.flatten(params), optimizer)
        unflatten, stress = self._flat.unflatten, loss.stress > 0

        @devices.summed
        def errors(params, batch: Batch):
            prediction = predict(potential, unflatten(params), batch.graph, stress=stress)
            return error_sums(prediction, batch.labels, batch.graph)

        def loss_of(params, batch: Batch):
            sums = errors(params, batch)
            return loss(sums), sums

        def train_step(state: TrainState, batch: Batch, learning_rate):
            gradient_of = jax.value_and_grad(loss_of, has_aux=True)
            (value, sums), gradient = gradient_of(state.params, batch)
            # A gradient may be NaN where the loss is not; the step after it would be too late.
            value = jnp.where(jnp.isfinite(optax.tree.norm(gradient)), value, jnp.nan)
            decay = config.training.ema_decay
            state = apply_gradient(state, gradient, learning_rate, optimizer, decay)
            return state, value, sums

        self._choices: list[str] = []  # of sequences, to be said when the display allows it
        self._is_sequence = devices.count == 1 and may_be_sequence(config)
        say = self._choices.append
        self._train_step = compiled_step(train_step, config, say, one_device=devices.count == 1)
        self._errors = compiled_step(
            errors, config, lambda choice: None, one_device=devices.count == 1
        )

    def run(self, resume: tuple[TrainState, dict] | None = None) -> TrainState:
        """Train until a limit is reached.

        A network that was trained before is validated first, as epoch 0.

        Args:
          resume: state and position of an interrupted run to go on from, as they were offered to
            the checkpoints; None to begin.
        Returns:
          The last state.
        Raises:
          TrainingFailed: the loss is not finite.
          Interrupted: by a signal, the checkpoint being written.
        """
        state = self._initial()
        at = Position(epoch=1 if self._config.start_from is None else 0)
        if resume is not None:
            state, at = resume[0], Position(**resume[1])
            self._learning_rate.restore(at.learning_rate)
        state = self._devices.replicated(state)
        if self._config.profile:
            self._profile(state, at)
        self._say_choice(state, at)
        limits = Limits(self._config, len(self._train), at.elapsed)
        if resume is None:
            self._keep(state, at, limits)
        with StopRequest() as stop, Progress(len(self._train), self._loss.stress > 0) as progress:
            self._signal(stop, limits)
            reason = self._reason_to_stop(int(state.step), limits)
            unfinished = at.epoch == 0 or at.batch == len(self._train)  # but for its validation
            if resume is not None and (reason is None or unfinished):
                with self._devices.together():
                    self._folder.forget_after(at.epoch - 1)
            if unfinished:
                at = self._end_epoch(state, at, [], limits, progress)
                reason = reason or self._reason_to_stop(int(state.step), limits)
            elif resume is not None and reason == _ALL_STEPS:
                progress.say(
                    f"the run has done {int(state.step)} steps, {at.epoch - 1} epochs, and was "
                    f"asked for {limits.steps} steps; more epochs= or steps= make it longer"
                )
            while reason is None:
                progress.start_epoch(at.epoch, at.batch)
                state, times = self._epoch(state, at, limits, stop, progress)
                if signum := self._signal(stop, limits):
                    raise self._interrupted(signum, state, at, limits)
                if at.batch:  # none where the time was up before the first step
                    at = self._end_epoch(state, at, times, limits, progress)
                self._signal(stop, limits)
                reason = self._reason_to_stop(int(state.step), limits)
            progress.say(
                f"{reason} after {duration(limits.elapsed)}; results in {self._folder.path}"
            )
        return state

    def _next(self, state: TrainState, at: Position) -> tuple:
        """Return the arguments of the step on the next batch."""
        start = at.batch % len(self._train)  # none is left of an epoch that is to be validated
        batch = next(self._train.batches(at.epoch, shuffle=True, start=start))
        return state, self._devices.spread(batch), self._learning_rate(int(state.step), 0.0)

    def _profile(self, state: TrainState, at: Position):
        """Trace the step on the next batch, and print what it launched; nothing is trained."""
        args, writes = self._next(state, at), self._devices.is_main
        with self._devices.together():
            print(profile(self._train_step, args, self._folder.profile, writes), flush=True)

    def _say_choice(self, state: TrainState, at: Position):
        """Print whether the step is a native call; it is traced for that, and then not again."""
        if self._is_sequence:
            self._train_step.trace(*self._next(state, at))
            print("\n".join(self._choices), flush=True)
            self._choices.clear()

    def _signal(self, stop: StopRequest, limits: Limits) -> int | None:
        """Return the signal to stop at, if there was one; sets the time too, for all processes
        alike.
        """
        limits.elapsed, signum = self._devices.agreed(limits.clock(), stop.signum)
        return signum

    def _interrupted(self, signum: int, state: TrainState, at: Position, limits: Limits):
        self._keep(state, at, limits)
        with self._devices.together():
            self._checkpoints.flush()
        return Interrupted(
            signum,
            f"interrupted in epoch {at.epoch}, step {int(state.step)}; the checkpoint is in "
            f"{self._folder.checkpoints}; go on with resume={self._folder.path}",
        )

    def _keep(self, state: TrainState, at: Position, limits: Limits, validation=None):
        """Offer the last checkpoint."""
        at.elapsed, at.learning_rate = limits.elapsed, self._learning_rate.to_plain()
        progress = {"epoch": at.epoch if at.batch else max(0, at.epoch - 1)}
        if validation is not None:
            progress["validation"] = validation
        plain = {**progress, "position": dataclasses.asdict(at)}
        with self._devices.together():
            self._checkpoints.offer(
                "last", int(state.step), self._average_of(state), plain, state=state
            )

    def _average_of(self, state: TrainState) -> Callable:
        """Return what gives the averaged parameters, as a tree, to those who want them."""
        return lambda: self._flat.unflatten(np.asarray(state.average))

    def _epoch(self, state: TrainState, at: Position, limits: Limits, stop, progress):
        """Return the rest of a pass over the training batches, or what a limit or a signal leaves
        of it.

        Moves `at`. Returns the state and the time of each step that compiled nothing, s.
        """
        errors, times = Errors(at.error_sums), []
        step = int(state.step)
        for batch in self._batches(self._train, at.epoch, shuffle=True, start=at.batch):
            if self._signal(stop, limits) or limits.fraction(step) >= 1.0:
                break
            start = time.monotonic()
            rate = self._learning_rate(step, limits.fraction(step))
            new_state, value, sums = self._train_step(state, batch, rate)
            while self._choices:  # of a batch of another shape than the first
                progress.say(self._choices.pop(0))
            value = float(value)
            if not math.isfinite(value):
                raise TrainingFailed(self._not_finite(value, at, step))
            state, step = new_state, step + 1
            errors.add(sums)
            at.batch, at.loss_sum, at.error_sums = at.batch + 1, at.loss_sum + value, errors.sums
            self._keep(state, at, limits)
            shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
            if shapes in self._compiled_shapes:
                times.append(time.monotonic() - start)
            self._compiled_shapes.add(shapes)
            progress.step()
        return state, times

    def _batches(self, batcher: Batcher, *args, **kwargs):
        """Return the batches of an epoch on their devices, made ahead of their use."""
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

    def _end_epoch(self, state, at: Position, times, limits, progress) -> Position:
        """Validate, write metrics and checkpoints, print; the position after it."""
        start = time.monotonic()
        validation = Errors()
        for batch in self._batches(self._val, shuffle=False):
            validation.add(self._errors(state.average, batch))
        val_loss = self._loss(validation.sums)
        trained = Errors(at.error_sums).table() or dict.fromkeys(validation.table(), math.nan)
        step = int(state.step)
        per_step = float(np.median(times)) if times else math.nan
        row = {
            "epoch": at.epoch,
            "step": step,
            "lr": self._learning_rate(step, limits.fraction(step)),
            "train_loss": at.loss_sum / at.batch if at.batch else math.nan,
            "val_loss": val_loss,
            **{f"train_{name}": value for name, value in trained.items()},
            **{f"val_{name}": value for name, value in validation.table().items()},
            "ms_per_step": 1e3 * per_step,
            "elapsed_s": limits.elapsed,
        }
        with self._devices.together():
            self._folder.log(row)
        errors = {k: v for k, v in row.items() if "val_" in k}
        after = dataclasses.replace(at, best=min(at.best, val_loss))
        # A limit within an epoch ends the run; made longer, it goes on where it was.
        if at.epoch == 0 or at.batch == len(self._train):
            self._learning_rate.epoch_ended(val_loss)
            after = Position(epoch=at.epoch + 1, best=after.best)
        if val_loss < at.best:
            record = {"epoch": at.epoch, "validation": errors}
            self._checkpoints.offer("best", step, self._average_of(state), record)
        self._keep(state, after, limits, errors)
        validating = (time.monotonic() - start) / at.batch if at.epoch > 1 else 0.0
        progress.end_epoch(row, limits.left(step, per_step + validating))
        return after

    def _reason_to_stop(self, step: int, limits: Limits) -> str | None:
        if step >= limits.steps:
            return _ALL_STEPS
        if limits.elapsed >= limits.seconds:
            return "time is up"
        if self._learning_rate.exhausted:
            return "learning rate exhausted"
        return None
