"""Second order of fused ops over rows, by a loss on forces."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear import LinearForm
from eqfuse.ops.primitives import layer
from tests.ops import tiers
from tests.ops.linear_cases import Case, Problem
from tests.ops.parity import PORTABLE, only

OTHERS = {
    "indexed": Case(
        ops.TensorProductLinear, False, "5x0e+5x1o", "2x0e+1o", "7x0e+4x1o", indexed=True
    ),
    "skip": Case(
        ops.TensorProductLinear,
        False,
        "5x0e+5x1o",
        "0e+1o",
        "7x0e+4x1o",
        skip=True,
        options=(("force_irreps_out", True),),
    ),
}
"""Linears without biases that are not in `CASES`."""


@pytest.fixture(autouse=True)
def any_product_is_large(monkeypatch):
    """Where products are small, a GPU has them in memory."""
    monkeypatch.setattr(layer, "LARGE", 0)


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *PORTABLE))
@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_a_loss_on_forces_equal_e3nns(name, backend, x64):
    problem = Problem(OTHERS[name])

    def gradients(backend):
        def energy(operands, params, arrays):
            return jnp.sum(jnp.sin(problem.apply(backend, params, arrays | operands).array))

        def loss(params, arrays):
            operands = {name: arrays[name] for name in "xy"}
            forces = jax.grad(energy)(operands, params, arrays)
            return sum(jnp.sum(jnp.cos(force)) for force in jax.tree.leaves(forces))

        return jax.jit(jax.grad(loss, (0, 1)))(problem.params, problem.arrays)

    with only(backend, kinds={Form, LinearForm}):
        found = gradients(backend)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), found, gradients("e3nn")
    )
