"""Paths of a double backward pass whose inputs are added up before the sum over components."""

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse.ops.backends.llvm.channels import folded, grouped
from eqfuse.ops.backends.llvm.layout import Machine, Plan
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Index
from eqfuse.ops.primitives.forms import evaluate
from tests.ops.ir.test_form import evaluate as definition
from tests.ops.ir.test_form import gradients


def double(x: str):
    irreps = e3nn.Irreps(x), e3nn.Irreps("0e+1o+2e")
    return gradients(
        gradients(products.tensor_product(*irreps, None, "component", weighted=True).form)
    )


def together(form) -> dict[str, list[int]]:
    """Return how many paths to an output are taken together, for each time that several are."""
    plan = Plan(form, Index.ROW, range(len(form.outputs)), {}, Machine(64, 32), "float32")
    found: dict[str, list[int]] = {o.name: [] for o in form.outputs}
    for group in grouped(plan):
        for paths in folded(form, group):
            if len(paths) > 1:
                found[form.outputs[paths[0].output.operand].name].append(len(paths))
    return found


@pytest.mark.parametrize("x", ["32x1o", "32x0e"])
def test_two_paths_of_each_product_are_taken_together(x):
    """The gradient by dout has w ddx + ddw x, times the same numbers."""
    form = double(x)
    assert together(form)["ddout"] == [2] * (form.inputs[2].size // 32)


def test_sums_that_another_output_needs_stay_apart():
    """Without the gradient by x, the sums over its components serve that by w as well."""
    form = double("32x1o")
    assert not together(form.restrict(tuple(o.name != "dx" for o in form.outputs)))["ddout"]


@pytest.mark.parametrize("x", ["32x0e+32x1o+32x1e+32x2e", "5x0e+5x1o+5x1e"])  # long, short
def test_double_backward(x):
    """Against the definition of the form."""
    form, rng = double(x), np.random.default_rng(0)
    arrays = {o.name: rng.normal(size=(7, o.size)) for o in form.inputs}
    expected = definition(form, arrays)
    with jax.enable_x64(True):
        found = evaluate(form, list(arrays.values()), backend="llvm")
    for operand, array in zip(form.outputs, found, strict=True):
        exact = expected[operand.name]
        np.testing.assert_allclose(array, exact, rtol=0, atol=1e-13 * abs(exact).max())
