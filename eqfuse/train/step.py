"""A training step as a pure function of arrays: loss, gradient, update, average."""

from collections.abc import Callable

import flax
import jax
import jax.numpy as jnp
import optax


@flax.struct.dataclass
class TrainState:
    """What a training step changes.

    Attributes:
      params: trained parameters; in a run one array, see `Flat`.
      average: exponential moving average of the parameters, used for evaluation.
      optimizer: state of the optimizer.
      step: number of steps taken, int32.
    """

    params: jax.Array | dict
    average: jax.Array | dict
    optimizer: optax.OptState
    step: jax.Array


def init_state(params, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step."""
    return TrainState(params, params, optimizer.init(params), jnp.zeros((), jnp.int32))


def train_step(
    state: TrainState,
    batch,
    learning_rate,
    decay,
    *,
    loss: Callable,
    optimizer: optax.GradientTransformation,
):
    """Take a step on a batch.

    Args:
      state: before the step.
      batch: passed to `loss`.
      learning_rate: scalar, which multiplies the update of the optimizer.
      decay: scalar, the part of the average that stays, see `average_decay`.
      loss: (params, batch) to a scalar and a pytree of arrays to report.
      optimizer: gradient to update, for a learning rate of one.
    Returns:
      The state after the step; the loss before it, NaN where its gradient is not finite; what
      `loss` reports.
    """
    (value, reported), gradient = jax.value_and_grad(loss, has_aux=True)(state.params, batch)
    # A gradient may be NaN where the loss is not; the step after it would be too late.
    value = jnp.where(jnp.isfinite(optax.tree.norm(gradient)), value, jnp.nan)
    return apply_gradient(state, gradient, learning_rate, optimizer, decay), value, reported


@jax.named_scope("optimizer")
def apply_gradient(
    state: TrainState,
    gradient,
    learning_rate,
    optimizer: optax.GradientTransformation,
    decay,
) -> TrainState:
    """Return the state after an update of the parameters and of their average."""
    update, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
    params = jax.tree.map(
        lambda p, u: (p + learning_rate * u).astype(p.dtype), state.params, update
    )
    average = jax.tree.map(  # what stays the same is its own average, to the last bit
        lambda a, p: (p + decay * (a - p)).astype(p.dtype), state.average, params
    )
    return TrainState(params, average, optimizer_state, state.step + 1)
