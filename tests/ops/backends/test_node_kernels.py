"""Fused kernels on a graph, of which each program has a node, in Triton's interpreter."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear_form import LinearForm
from tests.ops import tiers
from tests.ops.linear_cases import CASES, Case, Problem
from tests.ops.parity import only
from tests.ops.test_fused_argument import SMALL, always
from tests.ops.test_tensor_product_linear import (
    gradients,
    of_e3nn,
    orders,
    orders_of_e3nn,
    worst,
)

pytest.importorskip("triton", reason="the interpreter is part of triton")

GRAPH = {n: c for n, c in CASES.items() if c.graph and not dict(c.options).get("channelwise")}
GRAPH["graph-small"] = SMALL
GRAPH["graph-many-columns"] = Case(
    ops.TensorProductLinearGate,
    True,
    "5x0e+34x1o",
    "0e+1o",
    "70x0e+40x0e+40x1o",
    skip=True,
    options=(("force_irreps_out", True),),
)
"""More rows and columns of matrices than a tile has: several turns of both loops."""
CORE = ("graph-small",)


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *GRAPH))
def test_all_orders_equal_e3nn(name, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16."""
    problem = always(GRAPH[name])
    with only("triton-interpret", kinds={Form, LinearForm}):
        got = orders(problem, "triton-interpret")
    expected = orders_of_e3nn(GRAPH[name])
    for order, a, b in zip(("value", "jvp", "vjp", "vjp of vjp"), got, expected, strict=True):
        assert worst(a, b) < 1e-12, order


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *GRAPH))
def test_gradients_equal_e3nn(name, x64):
    """Float64, 1e-12; a backward that nothing differentiates is the kernel of nodes."""
    got = gradients(always(GRAPH[name]), "triton-interpret")
    assert worst(got, gradients(Problem(GRAPH[name]), "e3nn")) < 1e-12


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", tiers.slow_unless((), *GRAPH))
def test_low_precision_errs_as_e3nn_does(name, dtype):
    """Allow errors of twice those of e3nn-jax in the same dtype, or of eight roundings.

    The bound is that of `test_tensor_product_linear`.
    """
    low, theirs, exact = of_e3nn(GRAPH[name], dtype)
    fused = copy.copy(low)
    fused.case = always(GRAPH[name]).case
    for a, b, c in zip(gradients(fused, "triton-interpret"), theirs, exact, strict=True):
        eight_roundings = 8 * float(jnp.finfo(dtype).eps) / 2 * np.abs(c).max(initial=0)
        assert np.abs(a - c).max(initial=0) <= max(2 * np.abs(b - c).max(), eight_roundings)


def test_launches_of_each_way():
    """One forward; backward one to the sums and one to the operands; one of the parameters."""
    from eqfuse.ops.backends.triton.runtime.interpret import interpret_count

    problem = always(SMALL, np.float32)

    def launches(function, *args):
        before = interpret_count()
        jax.block_until_ready(function(*args))
        return interpret_count() - before

    def apply(params, arrays):
        return problem.apply("triton-interpret", params, arrays).array

    assert launches(apply, problem.params, problem.arrays) == 1
    value, pullback = jax.vjp(lambda a: apply(problem.params, a), problem.arrays)
    assert launches(pullback, value) == 2
    value, pullback = jax.vjp(apply, problem.params, problem.arrays)
    assert launches(pullback, value) == 3
