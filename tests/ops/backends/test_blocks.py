"""Fused ops in blocks of rows, which run where the product is too large for the memory of a GPU."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.primitives import layer
from tests.ops import tiers
from tests.ops.linear_cases import CASES, EDGES, NODES, Case, Problem
from tests.ops.linear_parity import assert_all_orders
from tests.ops.test_fused_argument import always

pytest.importorskip("triton", reason="the interpreter is part of triton")

ROWS = {n: c for n, c in CASES.items() if not c.graph or dict(c.options).get("channelwise")}
ROWS["small"] = Case(
    ops.TensorProductLinear,
    True,
    "2x0e+2x1o",
    "2x0e+2x1o",
    "2x0e+1x1o",
    weighted=False,
    options=(("channelwise", True),),
)
ROWS["skip-indexed"] = Case(
    ops.TensorProductLinearGate,
    False,
    "2x0e+2x1o",
    "0e+1o",
    "3x0e+1x0e+1x1o",
    indexed=True,
    skip=True,
    options=(("force_irreps_out", True),),
)


@pytest.fixture(autouse=True)
def any_product_is_large(monkeypatch):
    """Compute three rows at a time: two blocks, and what is left."""
    monkeypatch.setattr(layer, "LARGE", 0)
    monkeypatch.setattr(layer, "BLOCK", 3)


@pytest.mark.parametrize("name", tiers.slow_unless(["small"], *ROWS))
def test_all_orders_equal_e3nn(name):
    assert_all_orders(ROWS[name], "triton-interpret")


def lowered(problem: Problem, order: str) -> str:
    """Return the text of the value of a case, its gradients, or those of a loss on its forces."""

    def energy(arrays, params):
        return jnp.sum(problem.apply("triton-interpret", params, arrays).array ** 3)

    def loss(arrays, params):
        forces = jax.grad(energy)(arrays, params)
        return sum(jnp.sum(force**2) for force in jax.tree.leaves(forces))

    function = {
        "value": energy,
        "gradient": jax.grad(energy, (0, 1)),
        "loss": jax.grad(loss, (0, 1)),
    }
    return jax.jit(function[order]).lower(problem.arrays, problem.params).as_text()


def size_of_product(case: Case) -> int:
    keep = sorted({ir for _, ir in e3nn.Irreps(case.out)})
    channelwise = dict(case.options).get("channelwise")
    product = ops.channelwise_tensor_product if channelwise else ops.tensor_product
    return product(case.x, case.y, filter_ir_out=keep).dim


@pytest.mark.parametrize("order", ["value", "gradient", "loss"])
@pytest.mark.parametrize("name", tiers.slow_unless(["small"], "small", "rows-gate"))
@pytest.mark.parametrize("fused", ["auto", "always", "never"])
def test_the_product_of_all_rows_is_in_no_array(fused, name, order):
    case = ROWS[name]
    text = lowered(always(case, np.float32, fused), order)
    rows = EDGES if case.graph else NODES
    assert f"tensor<{rows}x{e3nn.Irreps(case.x).dim}xf32>" in text
    product = f"tensor<{rows}x{size_of_product(case)}xf32>"
    assert (product in text) == (fused == "never")


def test_where_blocks_begin(monkeypatch):
    """At the bytes of the product of all rows."""
    case = ROWS["rows-linear"]
    problem = Problem(case, np.float32)
    bytes_of_product = 4 * NODES * size_of_product(case)
    for large, expected in ((bytes_of_product, "in blocks: "), (bytes_of_product + 1, "apart: ")):
        monkeypatch.setattr(layer, "LARGE", large)
        with ops.recorded() as calls:
            problem.apply("triton-interpret", problem.params, problem.arrays)
        assert calls[-1].fused.startswith(expected)
