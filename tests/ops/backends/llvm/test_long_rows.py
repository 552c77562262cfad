"""Rows of many channels: sums over channels of products of components, against e3nn-jax."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops

X, Y, OUT = "64x1o+64x3o", "0e+2e", "1o+3o"
"""The path 3o x 2e -> 3o has more products of components than a processor has registers."""


def derivatives(dtype, backend: str):
    """Return the gradients of a product on a graph, and the gradients of these."""
    rng = np.random.default_rng(0)
    nodes, num_edges = 5, 40
    edges = ops.Edges.from_arrays(*rng.integers(0, nodes, (2, num_edges)), nodes)
    weights = e3nn.tensor_product(X, Y, filter_ir_out=OUT).num_irreps
    sizes = (nodes, e3nn.Irreps(X).dim), (num_edges, e3nn.Irreps(Y).dim), (num_edges, weights)
    arrays = [jnp.asarray(rng.normal(size=s), dtype) for s in sizes]

    def product(*a):
        x, y = e3nn.IrrepsArray(X, a[0]), e3nn.IrrepsArray(Y, a[1])
        return ops.graph_tensor_product(x, y, a[2], edges, filter_ir_out=OUT, backend=backend).array

    def first(*a):
        out, back = jax.vjp(product, *a)
        return back(jnp.cos(out))

    def both(*a):
        found, back = jax.vjp(first, *a)
        return found, back(jax.tree.map(jnp.cos, found))

    return jax.tree.map(np.asarray, jax.jit(both)(*arrays))


def largest_error(found, expected) -> float:
    errors = jax.tree.map(lambda a, b: abs(a - b).max() / abs(b).max(), found, expected)
    return max(jax.tree.leaves(errors))


@pytest.fixture(scope="module")
def expected():
    with jax.enable_x64(True):
        return derivatives(np.float64, "e3nn")


def test_derivatives_in_float64(expected):
    with jax.enable_x64(True):
        found = derivatives(np.float64, "llvm")
    assert largest_error(found, expected) < 1e-13


def test_derivatives_in_float32(expected):
    """Errors are at most twice those of e3nn-jax."""
    allowed = 2 * largest_error(derivatives(np.float32, "e3nn"), expected)
    assert largest_error(derivatives(np.float32, "llvm"), expected) < allowed
