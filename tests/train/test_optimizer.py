import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

from eqfuse.train.flat import ALIGNMENT, Flat
from eqfuse.train.optimizer import RMS, decays_of, flat_training, is_matrix, make_optimizer, muon
from eqfuse.train.schedule import LearningRate, MoleculeTraining, average_decay
from eqfuse.train.step import apply_gradient, init_state

PARAMS = {"params": {"model": {"w": jnp.array([1.0, -2.0])}, "scale": jnp.array([3.0])}}
GRADIENT = {"params": {"model": {"w": jnp.array([0.5, 0.25])}, "scale": jnp.array([0.0])}}


def steps(config, count, gradient):
    optimizer = make_optimizer(config, Flat.of(PARAMS), decays_of(PARAMS))
    state = init_state(PARAMS, optimizer)
    for step in range(count):
        decay = average_decay(config.ema_decay, step, None)
        state = apply_gradient(state, gradient, 0.1, optimizer, decay)
        yield state.optimizer


def test_amsgrad_is_that_of_pytorch():
    """torch.optim.Adam(amsgrad=True): the largest second moment is corrected for bias when used."""
    config = MoleculeTraining(optimizer="amsgrad", clip_norm=None)
    optimizer = make_optimizer(config, Flat.of(PARAMS), decays_of(PARAMS))
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


def test_matrices_of_equal_shapes_together_are_as_each_by_itself(rng):
    """1e-4 of the largest update, after 15 matmuls."""
    shapes = {"w[0]": (6, 4), "w[1]": (5, 9), "w[2]": (2, 5, 9), "kernel": (6, 4), "b": (3,)}
    dimensions = {
        name: contrib.MuonDimensionNumbers(len(shape) - 2, len(shape) - 1)
        if is_matrix(name, shape)
        else None
        for name, shape in shapes.items()
    }
    reference = contrib.muon(1.0, consistent_rms=RMS, muon_weight_dimension_numbers=dimensions)
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    flat = Flat.of(params)
    optimizer = muon(flat)
    update, update_each = jax.jit(optimizer.update), jax.jit(reference.update)
    state, expected_state = optimizer.init(flat.flatten(params)), reference.init(params)
    for _ in range(3):
        gradient = {name: jnp.float32(rng.normal(size=shape)) for name, shape in shapes.items()}
        expected, expected_state = update_each(gradient, expected_state, params)
        found, state = update(flat.flatten(gradient), state)
        for name, update_of in flat.unflatten(found).items():
            atol = 1e-4 * np.abs(expected[name]).max()
            np.testing.assert_allclose(update_of, expected[name], atol=atol)


@pytest.mark.parametrize(
    ("name", "reference"), [("muon", optax.nadam(0.1)), ("adam", optax.adam(0.1))]
)
def test_steps_without_matrices_are_those_of_optax(rng, name, reference):
    params = {"embedding": jnp.ones((4, 8)), "scale": jnp.ones(3)}
    flat, optimizer = flat_training(MoleculeTraining(optimizer=name, clip_norm=None), params)
    expected, memory = params, reference.init(params)
    found = init_state(flat.flatten(params), optimizer)
    for _ in range(3):
        gradient = jax.tree.map(lambda p: jnp.float32(rng.normal(size=p.shape)), params)
        updates, memory = reference.update(gradient, memory, expected)
        expected = optax.apply_updates(expected, updates)
        found = apply_gradient(found, flat.flatten(gradient), 0.1, optimizer, 0.0)
        ours = flat.unflatten(found.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, expected)


def test_muon_takes_matrices():
    assert is_matrix("kernel", (8, 64))
    assert is_matrix("w[0,0] 4x0e,8x0e", (3, 4, 8))
    assert not is_matrix("w[0,0] 16x0e,1x0e", (16, 1))
    assert not is_matrix("contraction", (4, 29, 64))
    assert not is_matrix("embedding", (4, 64))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_weight_decay_is_decoupled_and_spares_scale_and_shift(rng, name):
    """Loshchilov and Hutter: the update without, and the learning rate times rate times weights."""
    kernel, scale = jnp.array(rng.normal(size=(4, 3))), jnp.array([3.0])
    params = {"params": {"model": {"kernel": kernel}, "scale": scale}}
    gradient = jax.tree.map(lambda p: jnp.array(rng.normal(size=p.shape)), params)
    flat, ends = Flat.of(params), []
    for rate in (0.0, 0.5):
        config = MoleculeTraining(optimizer=name, weight_decay=rate)
        optimizer = make_optimizer(config, flat, flat.flatten(decays_of(params)))
        state = init_state(flat.flatten(params), optimizer)
        state = apply_gradient(state, flat.flatten(gradient), 0.1, optimizer, 0.0)
        ends.append(flat.unflatten(state.params)["params"])
    decayed = ends[0]["model"]["kernel"] - 0.1 * 0.5 * kernel
    np.testing.assert_allclose(ends[1]["model"]["kernel"], decayed, rtol=1e-5)
    np.testing.assert_array_equal(ends[1]["scale"], ends[0]["scale"])


def test_clipping_bounds_the_gradient():
    # Adam's second step tells how large the first gradient was beside the second.
    huge = jax.tree.map(lambda g: 1e6 * g, GRADIENT)
    config = MoleculeTraining(optimizer="adam", clip_norm=1.0)
    free = dataclasses.replace(config, clip_norm=None)
    clipped = jax.tree.map(lambda g: g / float(optax.tree.norm(huge)), huge)
    for a, b in zip(steps(config, 2, huge), steps(free, 2, clipped), strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), a[1], b[0])


def learning_rate(schedule, losses=(), **settings):
    given = {"lr": 0.1, "min_lr": 1e-3, "warmup_steps": 0} | settings
    rate = LearningRate(MoleculeTraining(schedule=schedule, **given))
    for loss in losses:
        rate.epoch_ended(loss)
    return rate


def test_cosine_rises_then_falls_to_the_lowest_rate():
    rate = learning_rate("cosine", warmup_steps=10)
    places = (0, 0.0), (9, 0.0), (100, 0.5), (200, 1.0), (200, 1.5)
    expected = [0.01, 0.1, (0.1 + 1e-3) / 2, 1e-3, 1e-3]
    assert [rate(*place) for place in places] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("losses", "expected", "reason"),
    [
        ((1.0, 2.0, 0.5, 0.6), 0.1, None),
        ((1.0, 2.0, 0.5, 0.6, 0.5), 0.01, None),
        ((1.0, 2.0, 0.5, 0.6, 0.5, 0.7, 0.7), 1e-3, "learning rate exhausted"),
    ],
)
def test_plateau_falls_after_patience_and_ends(losses, expected, reason):
    rate = learning_rate("plateau", losses, patience=2, factor=0.1, min_lr=5e-3)
    assert rate(0, 0.9) == pytest.approx(expected)
    assert rate.reason_to_stop == reason


@pytest.mark.parametrize(("stage", "stable"), [(0.6, 0.6), (None, 0.75)])
def test_wsd_falls_in_the_last_part_only(stage, stable):
    """By the square root: half of it is lost in a quarter of the last part."""
    rate = learning_rate("wsd", second_stage=stage)
    assert rate(0, 0.0) == rate(5, stable) == 0.1
    assert rate(5, stable + (1 - stable) / 4) == pytest.approx((0.1 + 1e-3) / 2)
    assert rate(5, 1.0) == rate(5, 1.5) == 1e-3


@pytest.mark.parametrize(("factor", "expected"), [(0.5, 0.025), (None, 0.01)])
def test_exponential_falls_by_a_factor_of_each_validation_or_to_the_lowest_rate(factor, expected):
    """It falls after better ones, too."""
    assert learning_rate("exponential", factor=factor)(0, 0.0) == 0.1
    rate = learning_rate("exponential", (1.0, 0.5), factor=factor)
    assert rate(0, 0.5) == pytest.approx(expected)


def test_early_stopping_counts_validations_since_the_best_of_a_stage():
    rate, reasons = learning_rate("cosine", early_stopping=2), []
    for loss in (1.0, 2.0, 0.5, 0.6, 0.5):
        rate.epoch_ended(loss)
        reasons.append(rate.reason_to_stop)
    assert reasons == [*[None] * 4, "no better validation in 2"]
    rate.forget_best()
    assert rate.reason_to_stop is None


def test_parameters_of_the_second_stage_have_equal_weights(rng):
    params = rng.normal(size=20)
    average, since = 0.0, 12
    for step, value in enumerate(params):
        decay = average_decay(0.9, step, since if step >= since else None)
        average = value + decay * (average - value)
        assert decay == (2 + step) / (11 + step) or step != since - 1
    assert average == pytest.approx(params[since:].mean(), rel=1e-12)
    assert average_decay(0.0, 5, None) == 0
    assert average_decay(0.5, 1000, None) == 0.5


TREE = {"b": jnp.arange(6.0).reshape(2, 3), "a": {"w": jnp.array([7.0])}, "c": jnp.zeros((0, 2))}


def test_trees_are_flat_arrays_and_back():
    flat = Flat.of(TREE)
    array = flat.flatten(TREE)
    assert array.shape == (flat.size,)
    assert np.sum(array) == sum(range(6)) + 7  # nothing but the leaves and zeros
    assert all(size * 4 % ALIGNMENT == 0 for size in flat.sizes)
    jax.tree.map(np.testing.assert_array_equal, flat.unflatten(array), TREE)
    with pytest.raises(ValueError, match="leaves of one dtype"):
        Flat.of({"a": jnp.zeros(1), "b": jnp.zeros(1, jnp.int32)})

    def f(tree):
        return jnp.sum(jnp.sin(tree["b"])) * tree["a"]["w"][0]

    got = jax.grad(lambda array: f(flat.unflatten(array)))(flat.flatten(TREE))
    np.testing.assert_array_equal(got, flat.flatten(jax.grad(f)(TREE)))
