"""Fused kernels over rows: the op in one kernel, its backward in one, whatever its size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.linear_cases import CASES, Case, Problem
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


def test_operands_of_many_components_are_shared_among_programs():
    """The cotangents of 50 components are those of four programs in float64, each of 14 at most."""
    wide = "5x0e+5x1o+5x2e+5x3o+5x4e"
    case = Case(
        ops.TensorProductLinear, False, wide, wide, "3x0e", options=(("channelwise", True),)
    )
    with jax.enable_x64(True):
        found = gradients(always(case), "triton-interpret")
        assert worst(found, gradients(Problem(case), "e3nn")) < 1e-12


@pytest.mark.parametrize("name", ["rows-linear", "rows-gate"])
def test_one_kernel_each_way(name):
    """One more computes gradients of parameters, of the product computed again."""
    assert launches_of_each_way(always(ROWS[name], np.float32)) == [1, 1, 2]


def test_gradients_of_parameters_alone_equal_e3nn(x64):
    """The backward then stops at the cotangent of the pre-activation."""
    problem = always(ROWS["rows-gate"])

    def found(problem, backend):
        def loss(params):
            return jnp.sum(jnp.sin(problem.apply(backend, params, problem.arrays).array))

        return jax.grad(loss)(problem.params)

    expected = found(Problem(ROWS["rows-gate"]), "e3nn")
    assert worst(found(problem, "triton-interpret"), expected) < 1e-12
