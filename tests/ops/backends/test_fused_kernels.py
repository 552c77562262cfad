"""Fused kernels over rows: the op in one kernel, its backward in one, whatever its size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm
from tests.ops import tiers
from tests.ops.linear_cases import CASES, Problem
from tests.ops.parity import only
from tests.ops.test_fused_argument import always
from tests.ops.test_tensor_product_linear import (
    gradients,
    of_e3nn,
    orders,
    orders_of_e3nn,
    worst,
)

pytest.importorskip("triton", reason="the interpreter is part of triton")

CORE = ("rows-linear", "rows-gate", "rows-indexed-bias")
ROWS = {n: c for n, c in CASES.items() if not c.graph or dict(c.options).get("channelwise")}


@pytest.mark.parametrize("name", tiers.slow_unless(["rows-linear"], *ROWS))
def test_all_orders_equal_e3nn(name):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16."""
    with jax.enable_x64(True):
        problem = always(ROWS[name])
        with only("triton-interpret", kinds={Form, LinearForm}):
            got = orders(problem, "triton-interpret")
        expected = orders_of_e3nn(ROWS[name])
        for order, a, b in zip(("value", "jvp", "vjp", "vjp of vjp"), got, expected, strict=True):
            assert worst(a, b) < 1e-12, order


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *ROWS))
def test_gradients_equal_e3nn(name):
    """Float64, 1e-12; a backward that nothing differentiates is the fused kernel."""
    with jax.enable_x64(True):
        problem = always(ROWS[name])
        expected = gradients(Problem(ROWS[name]), "e3nn")
        assert worst(gradients(problem, "triton-interpret"), expected) < 1e-12


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", tiers.slow_unless(["rows-linear"], *ROWS))
def test_low_precision_errs_as_e3nn_does(name, dtype):
    """Allow errors of twice those of e3nn-jax in the same dtype, or of eight roundings.

    The bound is that of `test_tensor_product_linear`.
    """
    low, theirs, exact = of_e3nn(ROWS[name], dtype)
    low.case = always(ROWS[name]).case
    for a, b, c in zip(gradients(low, "triton-interpret"), theirs, exact, strict=True):
        eight_roundings = 8 * float(jnp.finfo(dtype).eps) / 2 * np.abs(c).max(initial=0)
        allowed = max(2 * np.abs(b - c).max(initial=0), eight_roundings)
        assert np.abs(a - c).max(initial=0) <= allowed


@pytest.mark.parametrize("name", ["rows-linear", "rows-gate"])
def test_one_kernel_each_way(name):
    """Compute gradients of parameters by the Linear, of the product computed again."""
    from eqfuse.ops.backends.triton.runtime.interpret import interpret_count

    problem = always(ROWS[name], np.float32)

    def launches(function, *args):
        before = interpret_count()
        jax.block_until_ready(function(*args))
        return interpret_count() - before

    def apply(params, arrays):
        return problem.apply("triton-interpret", params, arrays).array

    assert launches(apply, problem.params, problem.arrays) == 1
    value, pullback = jax.vjp(lambda a: apply(problem.params, a), problem.arrays)
    assert launches(pullback, value) == 1
    value, pullback = jax.vjp(apply, problem.params, problem.arrays)
    assert launches(pullback, value) == 3
