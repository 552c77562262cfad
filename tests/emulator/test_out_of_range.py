"""Traced ends of edges that are out of range: no kernel reads or writes outside of its arrays."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops

pytest.importorskip("triton", reason="triton, which compiles the kernels, is not installed")

from tests.emulator.functions import emulate
from tests.ops import tiers

NODES = 3
SENDERS = np.array([0, 2, NODES, 1, -1, 10**6, 1])
RECEIVERS = np.array([1, -5, 2, 10**6, 0, NODES, 2])
INSIDE = np.array([1, 0, 0, 0, 0, 0, 1], bool)


def product(x, y, edges, backend):
    return ops.graph_tensor_product(x, y, None, edges, backend=backend).array


def layer_of(over_rows: bool):
    """Return a fused op as a function: of rows that its product writes to nodes, or of nodes."""

    def layer(x, y, edges, backend):
        if over_rows:
            x, y = y, x
        module = ops.TensorProductLinear("2x0e+2x1o", channelwise=over_rows, backend=backend)
        shapes = jax.eval_shape(module.init, jax.random.key(0), x, y, None, edges)
        params = jax.tree.map(lambda s: jnp.cos(jnp.arange(s.size)).reshape(s.shape), shapes)
        return module.apply(params, x, y, None, edges).array

    return layer


OPS = {"product": product, "of nodes": layer_of(False), "over rows": layer_of(True)}


def results(name, senders, receivers, backend, wanted=(0, 1), batch=False):
    """Return what an op has of a graph, [edges or nodes, size], and the wanted gradients of it."""
    rng = np.random.default_rng(0)
    shapes = (NODES, 8), (len(SENDERS), 8 if name == "over rows" else 4)
    x, y = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
    of_y = "2x0e+2x1o" if name == "over rows" else "0e+1o"

    def compute(x, y, senders, receivers):
        edges = ops.Edges.from_arrays(senders, receivers, NODES)
        rows = e3nn.IrrepsArray("2x0e+2x1o", x), e3nn.IrrepsArray(of_y, y)
        return OPS[name](*rows, edges, backend)

    def energy(*operands):
        if batch:
            axes = (None, None, 0, 0)
            out = jax.vmap(compute, axes)(*operands, senders, receivers)
        else:
            out = compute(*operands, senders, receivers)
        of_edges = name == "over rows"  # of which those with an end out of range are of no use
        return jnp.sum((out[..., INSIDE, :] if of_edges else out) ** 2), out

    gradients, out = jax.grad(energy, wanted, has_aux=True)(x, y)
    return [out[..., INSIDE, :] if name == "over rows" else out, *gradients]


@pytest.mark.parametrize("wanted", [(0, 1), (1,)])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", tiers.slow_unless(["product", "of nodes"], *OPS))
def test_edges_out_of_range_add_nothing(name, batch, wanted, monkeypatch):
    """Nor to gradients; their own are zeros. As by XLA, and as if there were the others alone."""
    ends = SENDERS, RECEIVERS
    if batch:
        ends = (np.stack([a, np.where(INSIDE, a[::-1], a)[::-1]]) for a in ends)
    ends = [jnp.asarray(a) for a in ends]
    monkeypatch.setenv("EQFUSE_FUSED", "always" if name == "over rows" else "auto")
    found = emulate(lambda s, r: results(name, s, r, "triton", wanted, batch), *ends)
    monkeypatch.setenv("EQFUSE_FUSED", "auto")
    by_xla = jax.jit(lambda s, r: results(name, s, r, "xla", wanted, batch))(*ends)
    for a, b in zip(found, by_xla, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())
    if not batch:
        assert not found[-1][~INSIDE].any()
