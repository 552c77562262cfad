"""TensorProductLinear and TensorProductLinearGate on native kernels, against e3nn's definition."""

import pytest

from eqfuse.ops._numba import chain_arrays
from tests.ops.linear_cases import CASES, Problem
from tests.ops.parity import only
from tests.ops.test_tensor_product_linear import orders, worst


@pytest.mark.parametrize("name", CASES)
def test_all_orders_equal_e3nn(name, monkeypatch, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16."""
    monkeypatch.setattr(chain_arrays, "FEWEST_ROWS", 1)
    problem, same = Problem(CASES[name]), Problem(CASES[name])
    expected = orders(problem, "e3nn")
    with only("numba"):
        found = orders(same, "numba")
    assert worst(found, expected) < 1e-12
