"""A training step of a run: loss, gradient, update, average; compiled, and of one array."""

import dataclasses
from collections.abc import Callable

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse import ops
from eqfuse.data import Batch
from eqfuse.graph import Graph
from eqfuse.models import predict
from eqfuse.runs.log import say
from eqfuse.train.metrics import Loss, error_sums


@flax.struct.dataclass
class TrainState:
    params: jax.Array | dict  # in a run one array, see `Flat`
    average: jax.Array | dict  # moving average of the parameters, used for evaluation
    optimizer: optax.OptState
    step: jax.Array  # number of steps taken, int32


def init_state(params, optimizer: optax.GradientTransformation, flat=None) -> TrainState:
    """Return the state before the first step, by one program; of parameters as `flat` has them."""

    def initial(params):
        params = params if flat is None else flat.flatten(params)
        return TrainState(params, params, optimizer.init(params), jnp.zeros((), jnp.int32))

    return jax.jit(initial)(params)


def initial_parameters(module, seed: int, graph: Graph, dtype: str) -> dict:
    """Return the variables of a network for a seed, given any graph of the data."""
    # A program of random numbers that runs once: optimised, XLA takes three times longer to
    # compile it for a CPU than the training step.
    on_cpu = jax.default_backend() == "cpu"
    options = {"xla_backend_optimization_level": 0} if on_cpu else None
    init = jax.jit(module.init, compiler_options=options)
    params = init(jax.random.key(seed), graph.vectors, graph.species, graph.edges)
    return jax.tree.map(lambda p: p.astype(dtype), params)


@jax.named_scope("optimizer")
def apply_gradient(
    state: TrainState, gradient, learning_rate, optimizer: optax.GradientTransformation, decay
) -> TrainState:
    """Return the state after an update of the parameters and of their average.

    The learning rate multiplies the update of the optimizer; `decay` is the part of the average
    that stays, see `average_decay`.
    """
    update, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    params = jax.tree.map(
        lambda p, u: (p + learning_rate * u).astype(p.dtype), state.params, update
    )
    average = jax.tree.map(  # what stays the same is its own average, to the last bit
        lambda a, p: (p + decay * (a - p)).astype(p.dtype), state.average, params
    )
    return TrainState(params, average, optimizer_state, state.step + 1)


class Compiled:
    """The compiled step and errors of a `Prepared` run, whose parameters are one array.

    `losses` are of the first and the second stage, `device_losses` the same on the devices. `step`
    takes (state, batch, learning rate, decay, loss), which are on the devices, to the state after
    it; the loss before it, NaN where its gradient is not finite; and the sums of `errors`, which
    takes (params, batch) to those of `error_sums`.
    """

    def __init__(self, ready):
        settings, devices = ready.config.training, ready.devices
        loss = Loss.of(settings, ready.dataset.force_rms)
        second = settings.second_energy_weight
        second = (10.0 if loss.energy else 0.0) if second is None else second
        self.losses = loss, dataclasses.replace(loss, energy=second)
        self.device_losses = devices.replicated(jax.tree.map(jnp.asarray, self.losses))
        self._flat, optimizer = ready.training
        self._params, self._optimizer = ready.params, optimizer
        unflatten, stress, hessian = self._flat.unflatten, loss.stress > 0, loss.hessian > 0

        def errors_of_part(params, batch: Batch):
            graph, labels = batch.graph, batch.labels
            how = {"stress": stress, "direction": labels.hessian.direction if hessian else None}
            prediction = predict(ready.trained, unflatten(params), graph, **how)
            return error_sums(prediction, labels, graph, loss.penalty)

        errors = devices.summed(errors_of_part)

        def step(state: TrainState, batch: Batch, learning_rate, decay, loss: Loss):
            def loss_of(params, batch: Batch):
                sums = errors(params, batch)
                return loss(sums), sums

            gradient_of = jax.value_and_grad(loss_of, has_aux=True)
            (value, sums), gradient = gradient_of(state.params, batch)
            # A gradient may be NaN where the loss is not; the step after it would be too late.
            value = jnp.where(jnp.isfinite(optax.tree.norm(gradient)), value, jnp.nan)
            return apply_gradient(state, gradient, learning_rate, optimizer, decay), value, sums

        self.step, self.errors = jax.jit(step), jax.jit(errors)
        if devices.count == 1:  # in one native call, where that is expected to gain
            report = ready.config.verbose and (lambda text: say(f"sequence   {text}"))
            self.step, self.errors = ops.sequence(step, report=report), ops.sequence(errors)

        # of the part of a batch that one device has
        self._loss_of_part = lambda params, batch, loss: loss(errors_of_part(params, batch))

    def measure(self, batch: Batch) -> None:
        """Measure on a GPU which kernels are fastest in a step, before it is compiled.

        `batch` is that of a device, see `Devices.part`.
        """
        params = jax.eval_shape(self.initial).params
        ops.measure_on_gpu(jax.grad(self._loss_of_part), params, batch, self.losses[0])

    def initial(self) -> TrainState:
        return init_state(self._params, self._optimizer, self._flat)

    def average_of(self, state: TrainState) -> Callable:
        """Return a function that gives the averaged parameters as a tree."""
        return lambda: self._flat.unflatten(np.asarray(state.average))
