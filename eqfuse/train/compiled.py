"""The compiled training step of a run, and the compiled errors of its validation."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data import Batch
from eqfuse.models import Potential, predict
from eqfuse.train.device.parallel import Devices
from eqfuse.train.device.sequences import compiled_step
from eqfuse.train.metrics import Loss, error_sums
from eqfuse.train.optimizer import flat_training
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.step import TrainState, init_state, train_step


class Compiled:
    """The compiled step and errors of a potential, whose parameters are one array.

    Args:
      settings: of the training.
      potential: what is trained.
      force_scale: eV/Å, see `Loss`.
      params: initial parameters, or those of a trained network (`start_from=`).
      devices: which share every batch.
      sequence: "on", "off" or "auto", see `compiled_step`.
      profiled: whether a step is traced before the training.
    Attributes:
      losses: of the first and the second stage.
      losses_there: the same on the devices.
      step: `train_step` of (state, batch, learning rate, decay, loss), which are on the devices.
      errors: (params, batch) to the sums of `error_sums`.
      choices: lines about sequences, to be printed when the display allows it.
    """

    def __init__(
        self,
        settings: MoleculeTraining,
        potential: Potential,
        force_scale: float,
        params,
        devices: Devices,
        *,
        sequence: str,
        profiled: bool,
    ):
        loss = Loss.of(settings, force_scale)
        self.losses = loss, dataclasses.replace(loss, energy=settings.second_energy_weight)
        self.losses_there = devices.replicated(jax.tree.map(jnp.asarray, self.losses))
        self._flat, self._optimizer = flat_training(settings, params)
        self._params = params
        unflatten, stress = self._flat.unflatten, loss.stress > 0

        @devices.summed
        def errors(params, batch: Batch):
            prediction = predict(potential, unflatten(params), batch.graph, stress=stress)
            return error_sums(prediction, batch.labels, batch.graph, loss.penalty)

        def step(state: TrainState, batch: Batch, learning_rate, decay, loss: Loss):
            def loss_of(params, batch: Batch):
                sums = errors(params, batch)
                return loss(sums), sums

            rate, optimizer = learning_rate, self._optimizer
            return train_step(state, batch, rate, decay, loss=loss_of, optimizer=optimizer)

        self.choices: list[str] = []
        mode = sequence if devices.count == 1 else "off"
        self.step = compiled_step(step, mode, profiled, self.choices.append)
        self.errors = compiled_step(errors, mode, profiled)

    def initial(self) -> TrainState:
        """Return the state before the first step."""
        return init_state(self._flat.flatten(self._params), self._optimizer)

    def average_of(self, state: TrainState) -> Callable:
        """Return a function that gives the averaged parameters as a tree."""
        return lambda: self._flat.unflatten(np.asarray(state.average))
