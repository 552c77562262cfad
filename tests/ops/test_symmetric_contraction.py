"""`symmetric_contraction`, beside what test_products.py asks of all products."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from tests.ops.cases import CONTRACTION


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
