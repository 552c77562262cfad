"""The training loop: steps, epochs, validation, and when to stop."""

import math
import time

import jax
import numpy as np

from eqfuse.data import Batch, Batcher
from eqfuse.models import Potential, predict
from eqfuse.training.checkpoint import Checkpoints
from eqfuse.training.config import Config
from eqfuse.training.metrics import Errors, Loss, error_sums
from eqfuse.training.optimizer import (
    LearningRate,
    TrainState,
    apply_gradient,
    init_state,
    make_optimizer,
)
from eqfuse.training.progress import Progress, duration
from eqfuse.training.runs import RunFolder
from eqfuse.training.stopping import Interrupted, StopRequest, TrainingFailed

DEFAULT_EPOCHS = 100


class Limits:
    """How long a run may take, in steps and in time.

    Args:
      config: gives steps, epochs and max_minutes; 100 epochs if it gives no steps and no epochs.
      steps_per_epoch: batches in an epoch.
    """

    def __init__(self, config: Config, steps_per_epoch: int):
        epochs = config.epochs
        if epochs is None and config.steps is None:
            epochs = DEFAULT_EPOCHS
        by_epochs = math.inf if epochs is None else epochs * steps_per_epoch
        self.steps = int(min(by_epochs, config.steps or math.inf))
        self.seconds = 60.0 * (config.max_minutes or math.inf)
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def fraction(self, step: int) -> float:
        """How much of the run is over, by steps or by time, whichever is further."""
        return max(step / self.steps, self.elapsed / self.seconds)

    def left(self, step: int, seconds_per_step: float) -> float:
        """Estimated time left, s."""
        by_steps = (self.steps - step) * seconds_per_step
        return max(0.0, min(by_steps, self.seconds - self.elapsed))


class Fit:
    """Trains a potential; `run` does it.

    Args:
      config: of the run.
      potential, loss: what is trained, and on what.
      batchers: of the training and the validation samples.
      folder, checkpoints: where the results go.
    """

    def __init__(
        self,
        config: Config,
        potential: Potential,
        loss: Loss,
        batchers: tuple[Batcher, Batcher],
        folder: RunFolder,
        checkpoints: Checkpoints,
    ):
        self._config = config
        self._train, self._val = batchers
        self._loss = loss
        self._folder = folder
        self._checkpoints = checkpoints
        self._optimizer = make_optimizer(config.training)
        self._learning_rate = LearningRate(config.training)
        self._best = math.inf
        stress = loss.stress > 0

        def errors(params, batch: Batch):
            prediction = predict(potential, params, batch.graph, stress=stress)
            return error_sums(prediction, batch.labels, batch.graph)

        def loss_of(params, batch: Batch):
            sums = errors(params, batch)
            return loss(sums), sums

        @jax.jit
        def train_step(state: TrainState, batch: Batch, learning_rate):
            gradient_of = jax.value_and_grad(loss_of, has_aux=True)
            (value, sums), gradient = gradient_of(state.params, batch)
            decay = config.training.ema_decay
            state = apply_gradient(state, gradient, learning_rate, self._optimizer, decay)
            return state, value, sums

        self._train_step = train_step
        self._errors = jax.jit(errors)

    def run(self, params) -> TrainState:
        """Train from `params` until a limit is reached.

        Returns:
          The last state.
        Raises:
          TrainingFailed: the loss is not finite.
          Interrupted: by a signal, the checkpoint being written.
        """
        state = init_state(params, self._optimizer)
        self._checkpoints.offer("last", 0, state.average, {"epoch": 0})
        limits = Limits(self._config, len(self._train))
        epoch, reason = 0, None
        with StopRequest() as stop, Progress(len(self._train)) as progress:
            while reason is None:
                epoch += 1
                progress.start_epoch(epoch)
                state, errors, times, mean_loss = self._epoch(state, epoch, limits, stop, progress)
                if stop.signum is not None:
                    step = int(state.step)
                    self._checkpoints.offer("last", step, state.average, {"epoch": epoch})
                    self._checkpoints.flush()
                    raise Interrupted(
                        stop.signum,
                        f"interrupted in epoch {epoch}, step {step}; the checkpoint is in "
                        f"{self._folder.checkpoints}",
                    )
                self._end_epoch(state, epoch, errors, times, mean_loss, limits, progress)
                reason = self._reason_to_stop(int(state.step), limits)
            progress.say(
                f"{reason} after {duration(limits.elapsed)}; results in {self._folder.path}"
            )
        return state

    def _epoch(self, state: TrainState, epoch: int, limits: Limits, stop, progress):
        """One pass over the training batches, or what a limit or a signal leaves of it."""
        errors, times, losses = Errors(), [], []
        step = int(state.step)
        for batch in self._train.batches(epoch, shuffle=True):
            if stop.signum is not None or limits.fraction(step) >= 1.0:
                break
            start = time.monotonic()
            rate = self._learning_rate(step, limits.fraction(step))
            new_state, value, sums = self._train_step(state, batch, rate)
            value = float(value)
            if not math.isfinite(value):
                raise TrainingFailed(
                    f"the loss became {value} in epoch {epoch}, step {step + 1}; try a smaller lr= "
                    f"or dtype=float64. The last good checkpoint is in {self._folder.checkpoints}"
                )
            state, step = new_state, step + 1
            errors.add(sums)
            losses.append(value)
            times.append(time.monotonic() - start)
            progress.step()
        return state, errors, times, float(np.mean(losses)) if losses else math.nan

    def _end_epoch(self, state, epoch, errors, times, mean_loss, limits, progress):
        """Validate, write metrics and checkpoints, print."""
        start = time.monotonic()
        validation = Errors()
        for batch in self._val.batches(shuffle=False):
            validation.add(self._errors(state.average, batch))
        val_loss = self._loss(validation.sums)
        step = int(state.step)
        # The median leaves out the steps that compile.
        per_step = float(np.median(times)) if times else 0.0
        row = {
            "epoch": epoch,
            "step": step,
            "lr": self._learning_rate(step, limits.fraction(step)),
            "train_loss": mean_loss,
            "val_loss": val_loss,
            **{f"train_{name}": value for name, value in errors.table().items()},
            **{f"val_{name}": value for name, value in validation.table().items()},
            "ms_per_step": 1e3 * per_step,
            "elapsed_s": limits.elapsed,
        }
        self._folder.log(row)
        self._learning_rate.epoch_ended(val_loss)
        record = {"epoch": epoch, "validation": {k: v for k, v in row.items() if "val_" in k}}
        if val_loss < self._best:
            self._best = val_loss
            self._checkpoints.offer("best", step, state.average, record)
        self._checkpoints.offer("last", step, state.average, record)
        validating = (time.monotonic() - start) / max(len(times), 1) if epoch > 1 else 0.0
        progress.end_epoch(row, limits.left(step, per_step + validating))

    def _reason_to_stop(self, step: int, limits: Limits) -> str | None:
        if step >= limits.steps:
            return "all steps done"
        if limits.elapsed >= limits.seconds:
            return "time is up"
        if self._learning_rate.exhausted:
            return "learning rate exhausted"
        return None
