"""`symmetric_contraction`, beside what test_products.py asks of all products."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import CONTRACTION, LARGE, random_arrays
from tests.ops.parity import BACKENDS, assert_equivariant, error, largest, only


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_three_factors_up_to_l_3(backend):
    """Value and gradients."""
    x, w = LARGE.operands()
    [cotangent] = random_arrays(LARGE.shapes()[-1:], 2)

    def both(function):
        value, vjp = jax.vjp(function, x, w)
        return value, *vjp(cotangent)

    with jax.enable_x64(True):
        expected = jax.device_get(jax.jit(lambda: both(LARGE.reference))())
        with only(backend):
            found = jax.device_get(jax.jit(lambda: both(LARGE.function(backend)))())
    for a, b in zip(found, expected, strict=True):
        assert error(a, b) <= 1e-12 * largest(b)


@pytest.mark.parametrize("backend", tiers.KERNELS)
def test_equivariance_up_to_l_3(backend):
    assert_equivariant(LARGE, backend)


def test_the_square_of_a_vector_by_hand():
    x = e3nn.IrrepsArray("2x1o", jnp.array([[1.0, 2.0, 2.0, 0.0, 3.0, 4.0]]))
    weights = jnp.array([[[2.0, -1.0]]])
    out = ops.symmetric_contraction(
        x, weights, jnp.array([0]), irreps_out="2x0e", correlation=2, backend="xla"
    )
    # (x . x) / sqrt(3), the map of norm one
    np.testing.assert_allclose(out.array, [[2 * 9 / 3**0.5, -25 / 3**0.5]], rtol=1e-6)


def test_vmap_is_a_batch():
    case = CONTRACTION["axes"]
    x, w = (a.astype(np.float32) for a in case.operands())
    whole = case.function("xla")(x, w)
    one = dataclasses.replace(case, shape=(3,), num_indices=None)
    by_row = jax.vmap(one.function("xla"))(x, w[case.index])
    np.testing.assert_array_equal(by_row, whole)
