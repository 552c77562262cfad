"""`ops.fuse` on graphs with indices out of range and masks: which edges are added to no node."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.fuse.test_fuse import (
    MASK,
    NODES,
    PRODUCT,
    RECEIVERS,
    X,
    Y,
    arrays,
    assert_same,
    on_graph,
    product,
    to_nodes,
    weighted,
    where,
)
from tests.ops import tiers


def segments_of(m, receivers):
    return jnp.zeros((NODES, m.irreps.dim), m.dtype).at[receivers].add(m.array)


@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], "llvm", "xla"))
def test_indices_out_of_range_mean_the_same(clipped, backend, monkeypatch):
    """Those of the gather are the nearest, or rows of zeros; those of the sum are dropped."""
    monkeypatch.setenv("EQFUSE_BACKEND", backend)
    senders, receivers = jnp.array([0, 9, -1, -50, 4, -4, 1]), jnp.array([1, 4, 0, -9, -1, -4, 100])
    options = {"mode": "clip"} if clipped else {"mode": "fill", "fill_value": 0.0}

    def gathered(x, y, w):
        rows = e3nn.IrrepsArray(X, x.at[senders].get(**options))
        return ops.tensor_product(rows, e3nn.IrrepsArray(Y, y)) * w

    def clipping(x, y, w):
        zeros = jnp.zeros((NODES, PRODUCT.dim))
        return zeros.at[receivers].add(gathered(x, y, w).array, mode="clip")

    def dropping(x, y, w):
        return jax.ops.segment_sum(gathered(x, y, w).array, receivers, NODES)

    assert_same(clipping, arrays(), second=False)
    assert_same(dropping, arrays(), second=False)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_promised_indices_out_of_range_are_what_xla_makes_of_them(dtype):
    """Rows of the nearest node, added to none; derivatives too are those of the trace."""
    senders, receivers = np.array([[0, 9, 2, -50, 3, -4, 1], [1, -9, 0, 3, -4, 2, 100]])
    senders, receivers = jnp.asarray(senders.astype(dtype)), jnp.asarray(receivers.astype(dtype))

    def function(x, y, w):
        return to_nodes(product(x, y, senders)[1] * w, receivers)

    assert_same(function, arrays())


@pytest.mark.parametrize("name", ["at.add", "where"])
@pytest.mark.parametrize("backend", ["llvm", "xla"])
def test_edges_that_are_dropped_may_hold_anything(name, backend, monkeypatch):
    """A NaN of an edge that is masked, or added to no node, is in no output."""
    monkeypatch.setenv("EQFUSE_BACKEND", backend)
    x, y, w = (jnp.asarray(a, jnp.float32) for a in arrays())
    y, w = y.at[2].set(jnp.nan), w.at[4].set(jnp.inf)
    receivers = jnp.asarray(RECEIVERS).at[jnp.array([2, 4])].set(NODES)

    def function(x, y, w):
        m = weighted(x, y, w)
        if name == "where":
            return segments_of(where(m, MASK), RECEIVERS)
        return segments_of(m, receivers)

    assert on_graph(ops.fuse(function), x, y, w) == 1
    expected = function(x, y, w)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(ops.fuse(function)(x, y, w), expected, atol=1e-5)
