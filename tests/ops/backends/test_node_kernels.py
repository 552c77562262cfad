"""Fused kernels on a graph, of which each program has a node, in Triton's interpreter."""

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
from tests.ops.test_fused_argument import SMALL, always

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
def test_all_orders_equal_e3nn(name):
    assert_all_orders(GRAPH[name], "triton-interpret", always(GRAPH[name]).case)


@pytest.mark.parametrize("name", tiers.slow_unless(CORE, *GRAPH))
def test_gradients_equal_e3nn(name, x64):
    """Float64, 1e-12; a backward that nothing differentiates is the kernel of nodes."""
    got = gradients(always(GRAPH[name]), "triton-interpret")
    assert worst(got, gradients(Problem(GRAPH[name]), "e3nn")) < 1e-12


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", tiers.slow_unless((), *GRAPH))
def test_low_precision_errs_as_e3nn_does(name, dtype):
    assert_low_precision(GRAPH[name], "triton-interpret", dtype, always(GRAPH[name]).case)


def test_launches_of_each_way():
    """One forward; backward one to the sums and one to the operands; one of the parameters."""
    assert launches_of_each_way(always(SMALL, np.float32)) == [1, 2, 3]
