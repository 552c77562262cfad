"""TensorProductLinear and TensorProductLinearGate on native kernels, against e3nn's definition."""

import pytest

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear import LinearForm
from eqfuse.ops.ir.program import Program
from tests.ops import tiers
from tests.ops.linear_cases import CASES, Problem
from tests.ops.linear_parity import orders, orders_of_e3nn, worst
from tests.ops.parity import only


@pytest.mark.parametrize("name", tiers.slow_unless(["rows-linear", "graph-gate-skip"], *CASES))
def test_all_orders_equal_e3nn(name, kernels, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16.

    Rows that are mixed one by one are one kernel each way, with the gate in it.
    """
    case, problem = CASES[name], Problem(CASES[name])
    by_row = not case.graph or dict(case.options).get("channelwise")
    with only(
        "llvm", kinds={Form, LinearForm, *([Program] if by_row and not case.indexed else [])}
    ):
        found = orders(problem, "llvm")
    assert worst(found, orders_of_e3nn(case)) < 1e-12
