import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eqfuse.training.config import MoleculeTraining
from eqfuse.training.optimizer import (
    LearningRate,
    apply_gradient,
    decays_of,
    init_state,
    make_optimizer,
)

PARAMS = {"params": {"model": {"w": jnp.array([1.0, -2.0])}, "scale": jnp.array([3.0])}}
GRADIENT = {"params": {"model": {"w": jnp.array([0.5, 0.25])}, "scale": jnp.array([0.0])}}


def steps(config, count, gradient=GRADIENT, learning_rate=0.1):
    optimizer = make_optimizer(config, decays_of(PARAMS))
    state, history = init_state(PARAMS, optimizer), []
    for _ in range(count):
        state = apply_gradient(state, gradient, learning_rate, optimizer, config.ema_decay)
        history.append(state)
    return history


def test_steps_of_adam_are_those_of_optax():
    config, reference = MoleculeTraining(optimizer="adam", clip_norm=None), optax.adam(0.1)
    params, state = PARAMS, reference.init(PARAMS)
    for ours in steps(config, 3):
        updates, state = reference.update(GRADIENT, state, params)
        params = optax.apply_updates(params, updates)
        jax.tree.map(np.testing.assert_allclose, ours.params, params)


def test_amsgrad_is_that_of_pytorch():
    """torch.optim.Adam(amsgrad=True): the largest second moment is corrected for bias when used."""
    config = MoleculeTraining(optimizer="amsgrad", clip_norm=None)
    optimizer = make_optimizer(config, decays_of(PARAMS))
    state = init_state(PARAMS, optimizer)
    w, m, v, largest = np.array([1.0, -2.0]), 0.0, 0.0, 0.0
    rng = np.random.default_rng(0)
    for step in range(1, 40):
        g = rng.normal(size=2) * (100.0 if step == 1 else 1.0)  # as of a random network
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        largest = np.maximum(largest, v)
        deviation = np.sqrt(largest / (1 - 0.999**step)) + 1e-8
        w = w - 0.1 * m / (1 - 0.9**step) / deviation
        gradient = {"params": {"model": {"w": jnp.asarray(g)}, "scale": jnp.zeros(1)}}
        state = apply_gradient(state, gradient, 0.1, optimizer, 0.0)
        np.testing.assert_allclose(state.params["params"]["model"]["w"], w, rtol=1e-5)


def test_adamw_decays_weights_but_not_scale_and_shift():
    config = MoleculeTraining(optimizer="adamw", weight_decay=0.5, clip_norm=None)
    zero = jax.tree.map(jnp.zeros_like, GRADIENT)
    params = steps(config, 1, zero)[0].params["params"]
    np.testing.assert_allclose(params["model"]["w"], [0.95, -1.9], rtol=1e-6)
    np.testing.assert_array_equal(params["scale"], [3.0])


def test_clipping_bounds_the_gradient():
    # Adam's second step tells how large the first gradient was beside the second.
    huge = jax.tree.map(lambda g: 1e6 * g, GRADIENT)
    config = MoleculeTraining(clip_norm=1.0)
    norm = float(optax.tree.norm(huge))
    clipped = jax.tree.map(lambda g: g / norm, huge)
    free = dataclasses.replace(config, clip_norm=None)
    for a, b in zip(steps(config, 2, huge), steps(free, 2, clipped), strict=True):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), a.optimizer[1], b.optimizer[0]
        )


def test_average_follows_the_parameters():
    history = steps(MoleculeTraining(ema_decay=0.5), 12)
    average = PARAMS["params"]["model"]["w"]
    for step, state in enumerate(history, start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * state.params["params"]["model"]["w"]
        np.testing.assert_allclose(state.average["params"]["model"]["w"], average, rtol=1e-6)
    plain = steps(MoleculeTraining(ema_decay=0.0), 2)[-1]
    jax.tree.map(np.testing.assert_array_equal, plain.average, plain.params)


def test_cosine_rises_then_falls_to_the_lowest_rate():
    rate = LearningRate(MoleculeTraining(lr=0.1, min_lr=1e-3, warmup_steps=10))
    assert rate(0, 0.0) == pytest.approx(0.01)
    assert rate(9, 0.0) == pytest.approx(0.1)
    assert rate(100, 0.5) == pytest.approx((0.1 + 1e-3) / 2)
    assert rate(200, 1.0) == pytest.approx(1e-3)
    assert rate(200, 1.5) == pytest.approx(1e-3)


def test_plateau_falls_after_patience_and_ends():
    config = MoleculeTraining(
        schedule="plateau", lr=0.1, patience=2, factor=0.1, min_lr=5e-3, warmup_steps=0
    )
    rate = LearningRate(config)
    for loss in (1.0, 2.0, 0.5, 0.6):
        rate.epoch_ended(loss)
    assert rate(0, 0.9) == pytest.approx(0.1)
    rate.epoch_ended(0.5)
    assert rate(0, 0.9) == pytest.approx(0.01)
    assert not rate.exhausted
    rate.epoch_ended(0.7)
    rate.epoch_ended(0.7)
    assert rate.exhausted


def test_constant_stays():
    rate = LearningRate(MoleculeTraining(schedule="constant", lr=0.1, warmup_steps=0))
    assert rate(0, 0.0) == rate(1000, 0.99) == 0.1
