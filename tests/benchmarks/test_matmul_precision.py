"""Matmuls in three products of TF32 have the errors of float32; in one, a thousand times those."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.steps import precision as matmul_precision
from eqfuse import ops


def test_tf32_has_ten_bits():
    x = jnp.float32([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12), 0.0, 3e-39])
    found = matmul_precision.to_tf32(x)
    np.testing.assert_array_equal(found[:5], np.float32([1 + 2**-10, 1, 1 + 2**-9, -1, 0]))


@pytest.mark.parametrize("mode", matmul_precision.MODES)
def test_emulated_matmuls(rng, mode):
    """Also within a jitted function; a sum of 64 products has about eight roundings' error."""
    x, y = (rng.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    function = jax.jit(lambda x, y: {"out": 2 * (x @ y)})
    found = matmul_precision.emulated(function, mode)(x, y)["out"]
    exact = 2 * (x.astype(np.float64) @ y)
    error = np.abs(found - exact).max() / np.abs(exact).max()
    if mode == "tf32":
        assert 1e-5 < error < 2e-3
    else:
        assert error < 2e-6


def assert_errs_as_float32(found):
    """Compare the median errors of several random networks: that of one may be small by chance.

    An energy is one number, of which float32 has half a unit of error at least.
    """
    half = np.finfo(np.float32).eps / 2
    for part in matmul_precision.PARTS:
        errors = {mode: [e[mode][part] for e in found] for mode in matmul_precision.MODES}
        median = {mode: np.median(numbers) for mode, numbers in errors.items()}
        assert median["tf32x3"] < 2 * max(median["float32"], half)
        assert median["tf32"] > 10 * median["float32"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nequip", "allegro", "mace"])
def test_small_networks_err_as_in_float32(name):
    small = {"channels": 8, "layers": 1, "lmax": 1}
    small |= {"hidden_lmax": 1} if name == "mace" else {}
    assert_errs_as_float32(matmul_precision.errors(name, range(4), atoms=8, **small))


@pytest.mark.parametrize("name", ["nequip", "allegro", "mace"])
def test_matmuls_of_a_step_are_as_jax_is_told(name):
    """Those of Linears and of radial networks, forward and backward; Allegro has XLA's too."""
    step, args = matmul_precision.problem(name, atoms=8, channels=8, layers=1, lmax=1)

    def precisions(setting):
        with jax.default_matmul_precision(setting):
            closed = jax.make_jaxpr(step)(*args)
        dots, linears = set(), set()
        for equation in equations(closed.jaxpr):
            if equation.primitive is jax.lax.dot_general_p:
                dots.add(str(equation.params["precision"]))
            if form := equation.params.get("linear_form"):
                linears.add(form.input_precision)
        return dots, linears

    highest = "(Precision.HIGHEST, Precision.HIGHEST)"
    for setting, of_dots, of_linears in (
        (ops.TF32X3, ops.TF32X3, "tf32x3"),
        ("highest", highest, "ieee"),
    ):
        assert precisions(setting) == ({of_dots} if name == "allegro" else set(), {of_linears})


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if inner is not None:
            yield from equations(getattr(inner, "jaxpr", inner))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nequip", "allegro", "mace"])
def test_training_steps_in_three_products_err_as_in_float32(name):
    assert_errs_as_float32(matmul_precision.errors(name, range(5)))
