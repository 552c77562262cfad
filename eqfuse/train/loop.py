"""The training loop: epochs, validation, checkpoints, and when to stop."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data import Batch, Batcher, prefetched
from eqfuse.models import Potential, predict
from eqfuse.train.device.parallel import Devices
from eqfuse.train.device.profiling import profile
from eqfuse.train.device.sequences import compiled_step
from eqfuse.train.metrics import Errors, Loss, best_of, error_sums
from eqfuse.train.optimizer import flat_training
from eqfuse.train.position import Position
from eqfuse.train.run.callbacks import Callback
from eqfuse.train.run.progress import Progress, duration, waiting
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.run.saving import Checkpoints
from eqfuse.train.run.stopping import Interrupted, StopRequest, TrainingFailed
from eqfuse.train.schedule import LearningRate, Limits, MoleculeTraining, average_decay
from eqfuse.train.step import TrainState, init_state, train_step

_ALL_STEPS = "all steps done"


class Fit:
    """Trains a potential; `run` does it.

    Args:
      settings: of the training.
      potential, loss: what is trained, and on what.
      params: initial parameters, or those of a trained network (`start_from=`).
      batchers: of the training and the validation samples.
      limits: how long the run may take.
      folder, checkpoints: where the results go.
      devices: which share every batch.
      sequence: "on", "off" or "auto", see `compiled_step`.
      profiled: whether a step is traced before the training.
      pretrained: whether the network was trained before; it is validated first, as epoch 0.
      callbacks: called with every line of metrics.csv.
    """

    def __init__(
        self,
        settings: MoleculeTraining,
        potential: Potential,
        loss: Loss,
        params,
        batchers: tuple[Batcher, Batcher],
        limits: Limits,
        folder: RunFolder,
        checkpoints: Checkpoints,
        devices: Devices,
        *,
        sequence: str,
        profiled: bool,
        pretrained: bool,
        callbacks: Sequence[Callback] = (),
    ):
        self._train, self._val = batchers
        self._settings, self._limits = settings, limits
        second = dataclasses.replace(loss, energy=settings.second_energy_weight)
        self._losses = loss, second
        # on the device, once
        self._losses_there = devices.replicated(jax.tree.map(jnp.asarray, self._losses))
        self._folder, self._checkpoints = folder, checkpoints
        self._devices, self._profiled, self._callbacks = devices, profiled, callbacks
        self._first_epoch = 0 if pretrained else 1
        self._learning_rate = LearningRate(settings)
        self._compiled_shapes = set()
        self._flat, optimizer = flat_training(settings, params)
        self._initial = lambda: init_state(self._flat.flatten(params), optimizer)
        unflatten, stress = self._flat.unflatten, loss.stress > 0

        @devices.summed
        def errors(params, batch: Batch):
            prediction = predict(potential, unflatten(params), batch.graph, stress=stress)
            return error_sums(prediction, batch.labels, batch.graph, loss.penalty)

        def step(state: TrainState, batch: Batch, learning_rate, decay, loss: Loss):
            def loss_of(params, batch: Batch):
                sums = errors(params, batch)
                return loss(sums), sums

            return train_step(state, batch, learning_rate, decay, loss=loss_of, optimizer=optimizer)

        self._choices: list[str] = []  # of sequences, to be printed when the display allows it
        mode = sequence if devices.count == 1 else "off"
        self._train_step = compiled_step(step, mode, profiled, self._choices.append)
        self._errors = compiled_step(errors, mode, profiled)

    def run(self, resume: tuple[TrainState, dict] | None = None) -> TrainState:
        """Train until a limit is reached.

        Args:
          resume: state and position of an interrupted run to continue, as they were offered to
            the checkpoints; None to begin.
        Returns:
          The last state.
        Raises:
          TrainingFailed: the loss is not finite.
          Interrupted: by a signal, the checkpoint being written.
        """
        state, at = self._initial(), Position(epoch=self._first_epoch)
        if resume is not None:
            state, at = resume[0], Position.of(resume[1])
            self._learning_rate.restore(at.learning_rate)
        state = self._devices.replicated(state)
        if self._profiled:
            self._profile(state, at)
        self._limits.start(at.elapsed)
        if resume is None:
            self._keep(state, at)
        with StopRequest() as stop:
            return self._train_until(stop, state, at, resumed=resume is not None)

    def _train_until(self, stop: StopRequest, state: TrainState, at: Position, *, resumed: bool):
        """Train until a limit or a signal."""
        reason = self._reason_to_stop(int(state.step))
        due = self._validation_is_due(int(state.step), at)
        if reason is None or due:
            self._prepare(state, at)
        by = "epoch" if self._settings.validate_every is None else "step"
        with Progress(len(self._train), self._losses[0].stress > 0, by) as progress:
            self._signal(stop)
            reason = self._reason_to_stop(int(state.step))
            if resumed and (reason is None or due):
                with self._devices.together():
                    validated = int(state.step) - at.unvalidated if at.epoch else -1
                    self._folder.forget_after(validated)
            if due:
                at = self._validate(state, at, [], progress)
                reason = reason or self._reason_to_stop(int(state.step))
            elif resumed and reason == _ALL_STEPS:
                progress.log(
                    f"the run has done {int(state.step)} steps, {at.epoch - 1} epochs, and was "
                    f"asked for {self._limits.steps} steps; more epochs= or steps= make it longer"
                )
            while reason is None:
                progress.start_epoch(at.epoch, at.batch)
                state, times = self._epoch(state, at, stop, progress)
                if signum := self._signal(stop):
                    raise self._interrupted(signum, state, at)
                step = int(state.step)
                last = self._reason_to_stop(step) is not None
                if at.unvalidated and (last or self._validation_is_due(step, at)):
                    at = self._validate(state, at, times, progress)
                elif at.batch == len(self._train):
                    at = at.next_epoch()
                self._signal(stop)
                reason = self._reason_to_stop(step)
            progress.log(
                f"{reason} after {duration(self._limits.elapsed)}; results in {self._folder.path}"
            )
        return state

    def _validation_is_due(self, step: int, at: Position) -> bool:
        """Return whether a step ends an epoch, or as many steps as `validate_every`."""
        every = self._settings.validate_every
        if at.epoch == 0:
            return True
        ends = at.batch == len(self._train) if every is None else step % every == 0
        return ends and at.unvalidated > 0

    def _next(self, state: TrainState, at: Position) -> tuple:
        """Return the arguments of the step on the next batch."""
        start = at.batch % len(self._train)  # none is left of an epoch that is to be validated
        batch = next(self._train.batches(at.epoch, shuffle=True, start=start))
        return state, self._devices.spread(batch), *self._knobs(int(state.step), at)

    def _knobs(self, step: int, at: Position) -> tuple:
        """Return the learning rate, the decay of the average and the loss of a step."""
        rate = self._learning_rate(step, self._limits.fraction(step))
        decay = average_decay(self._settings.ema_decay, step, at.second_since)
        return rate, decay, self._losses_there[at.second_since is not None]

    def _begin_stage(self, step: int, at: Position, progress: Progress):
        """Move on to the second stage, where it is time."""
        begin = self._settings.second_stage
        if begin is None or at.second_since is not None or self._limits.fraction(step) < begin:
            return
        at.second_since, at.best = step, math.inf
        self._learning_rate.forget_best()
        weight = self._settings.second_energy_weight
        progress.log(f"second stage: energy_weight={weight:g}, and averaged parameters")

    def _profile(self, state: TrainState, at: Position):
        """Trace the step on the next batch, and print what it launched; nothing is trained."""
        args, writes = self._next(state, at), self._devices.is_main
        with self._devices.together():
            print(profile(self._train_step, args, self._folder.profile, writes), flush=True)

    def _prepare(self, state: TrainState, at: Position):
        """Compile a step and the validation, and measure this, before the clock starts."""
        with waiting("compiling the training step"):
            jax.block_until_ready(self._train_step(*self._next(state, at)))
        if self._choices:
            print("\n".join(self._choices), flush=True)
            self._choices.clear()
        batch = self._devices.spread(next(self._val.batches(shuffle=False)))
        with waiting("compiling the validation"):
            jax.block_until_ready(self._errors(state.average, batch))
        start = time.monotonic()
        jax.block_until_ready(self._errors(state.average, batch))
        self._reserve(len(self._val) * (time.monotonic() - start))
        self._limits.start(at.elapsed)

    def _reserve(self, seconds: float):
        """Keep time for a validation; the same in all processes."""
        self._limits.reserve(self._devices.agreed(seconds, None)[0])

    def _signal(self, stop: StopRequest) -> int | None:
        """Set the time, and return the signal that ends the run; the same in all processes."""
        clock = self._limits.clock()
        self._limits.elapsed, signum = self._devices.agreed(clock, stop.signum)
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

    def _keep(self, state: TrainState, at: Position, validation=None):
        """Offer the last checkpoint."""
        at.elapsed, at.learning_rate = self._limits.elapsed, self._learning_rate.to_plain()
        progress = {"epoch": at.epoch if at.batch else max(0, at.epoch - 1)}
        if validation is not None:
            progress["validation"] = validation
        plain = {**progress, "position": dataclasses.asdict(at)}
        with self._devices.together():
            self._checkpoints.offer(
                "last", int(state.step), self.average_of(state), plain, state=state
            )

    def average_of(self, state: TrainState) -> Callable:
        """Return a function that gives the averaged parameters as a tree."""
        return lambda: self._flat.unflatten(np.asarray(state.average))

    def _epoch(self, state: TrainState, at: Position, stop, progress):
        """Train on the rest of the batches of an epoch, or until a validation, limit or signal.

        Moves `at`. Returns the state and the time of each step that compiled nothing, s.
        """
        limits, errors, times = self._limits, Errors(at.error_sums), []
        step = int(state.step)
        for batch in self._batches(self._train, at.epoch, shuffle=True, start=at.batch):
            if self._signal(stop) or limits.fraction(step) >= 1.0:
                break
            self._begin_stage(step, at, progress)
            start = time.monotonic()
            new_state, value, sums = self._train_step(state, batch, *self._knobs(step, at))
            while self._choices:  # of a batch of another shape than the first
                progress.log(self._choices.pop(0))
            value = float(value)
            if not math.isfinite(value):
                raise TrainingFailed(self._not_finite(value, at, step))
            state, step = new_state, step + 1
            errors.add(sums)
            at.batch, at.unvalidated = at.batch + 1, at.unvalidated + 1
            at.loss_sum, at.error_sums = at.loss_sum + value, errors.sums
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

    def _validate(self, state, at: Position, times, progress) -> Position:
        """Validate, write metrics and checkpoints, print; return the position after it."""
        start, limits = time.monotonic(), self._limits
        validation = Errors()
        for number, batch in enumerate(self._batches(self._val, shuffle=False)):
            validation.add(self._errors(state.average, batch))
            progress.heartbeat(f"validation, batch {number + 1} of {len(self._val)}")
        self._reserve(time.monotonic() - start)
        val_loss = self._losses[at.second_since is not None](validation.sums)
        trained = Errors(at.error_sums).table() or dict.fromkeys(validation.table(), math.nan)
        step = int(state.step)
        per_step = float(np.median(times)) if times else math.nan
        row = {
            "epoch": at.epoch,
            "step": step,
            "lr": self._learning_rate(step, limits.fraction(step)),
            "train_loss": at.loss_sum / at.unvalidated if at.unvalidated else math.nan,
            "val_loss": val_loss,
            **{f"train_{name}": value for name, value in trained.items()},
            **{f"val_{name}": value for name, value in validation.table().items()},
            "ms_per_step": 1e3 * per_step,
            "elapsed_s": limits.elapsed,
        }
        with self._devices.together():
            self._folder.log(row)
        for callback in self._callbacks:
            callback.on_epoch(row)
        errors = {k: v for k, v in row.items() if "val_" in k}
        criterion = best_of(row, self._settings.best)
        after = dataclasses.replace(at, best=min(at.best, criterion))
        # A limit before a validation is due ends the run; made longer, it goes on where it was.
        if self._validation_is_due(step, at):
            self._learning_rate.epoch_ended(criterion)
            after = after.validated(at.epoch == 0 or at.batch == len(self._train))
        if criterion < at.best:
            record = {"epoch": at.epoch, "validation": errors}
            self._checkpoints.offer("best", step, self.average_of(state), record)
        self._keep(state, after, errors)
        validating = (time.monotonic() - start) / at.unvalidated if at.epoch > 1 else 0.0
        progress.end_epoch(row, limits.left(step, per_step + validating))
        return after

    def _reason_to_stop(self, step: int) -> str | None:
        if step >= self._limits.steps:
            return _ALL_STEPS
        if self._limits.time_is_up:
            return "time is up"
        if self._learning_rate.exhausted:
            return "learning rate exhausted"
        return None
