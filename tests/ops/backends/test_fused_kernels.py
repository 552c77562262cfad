"""Fused kernels over rows: the op in one kernel, its backward in one, whatever its size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops import tiers
from tests.ops.linear_cases import CASES, Problem
from tests.ops.linear_parity import (
    assert_all_orders,
    assert_low_precision,
    gradients,
    launches_of_each_way,
    worst,
)
from tests.ops.test_fused_argument import always

pytest.importorskip("triton", reason="the interpreter is part of triton")

CORE = ("rows-linear", "rows-gate", "rows-indexed-bias")
ROWS = {n: c for n, c in CASES.items() if not c.graph or dict(c.options).get("channelwise")}


@pytest.mark.parametrize("name", tiers.slow_unless(["rows-linear"], *ROWS))
def test_all_orders_equal_e3nn(name):
    assert_all_orders(ROWS[name], "triton-interpret", always(ROWS[name]).case)


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
    assert_low_precision(ROWS[name], "triton-interpret", dtype, always(ROWS[name]).case)


@pytest.mark.parametrize("name", ["rows-linear", "rows-gate"])
def test_one_kernel_each_way(name):
    """Compute gradients of parameters by the Linear, of the product computed again."""
    assert launches_of_each_way(always(ROWS[name], np.float32)) == [1, 1, 3]
