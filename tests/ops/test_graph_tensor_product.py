"""`graph_tensor_product` and `Edges`, beside what test_products.py asks of all products."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import GRAPH, SMALL, Case, Graph
from tests.ops.parity import (
    BACKENDS,
    along_random_directions,
    assert_close,
    error,
    largest,
    only,
)

CASE = GRAPH["mul-5"]


def everything(case: Case, backend: str, operands):
    """Return the value and the gradients for a random cotangent, in float64."""
    with only(backend), jax.enable_x64(True):
        found = along_random_directions(case.function(backend), *operands, orders=("value", "vjp"))
    return jax.tree.map(np.asarray, (found["value"], *found["vjp"]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_isolated_nodes_padding_and_the_order_of_edges(backend):
    """Edges of zero y or zero weight from a padding node to itself add exactly nothing."""
    x, y, w = CASE.operands()
    value, dx, dy, dw = everything(CASE, backend, (x, y, w))
    isolated, without_incoming = 3, 2
    assert not value[[isolated, without_incoming]].any()
    assert not dx[isolated].any()
    assert dx[without_incoming].all()

    last = SMALL.num_nodes
    padded_graph = Graph(last + 1, SMALL.pairs + ((last, last),) * 3)
    padded = dataclasses.replace(CASE, graph=padded_graph)
    x_padded = np.concatenate([x, np.ones((1, x.shape[1]))])
    y_padded = np.concatenate([y, np.zeros((2, y.shape[1])), np.ones((1, y.shape[1]))])
    w_padded = np.concatenate([w, np.ones((2, w.shape[1])), np.zeros((1, w.shape[1]))])
    found, *gradients = everything(padded, backend, (x_padded, y_padded, w_padded))
    assert not found[last].any()
    assert all(np.isfinite(g).all() for g in gradients)
    assert error(found[:last], value) <= (0 if backend != "xla" else 1e-15 * largest(value))

    order = np.array([4, 2, 0, 5, 1, 3])
    graph = Graph(SMALL.num_nodes, tuple(SMALL.pairs[i] for i in order))
    shuffled = dataclasses.replace(CASE, graph=graph)
    found = everything(shuffled, backend, (x, y[order], w[order]))
    # the same sums of at most three terms in another order
    for a, b in zip(found, (value, dx, dy[order], dw[order]), strict=True):
        assert error(a, b) <= 1e-14 * largest(b)


@pytest.mark.parametrize("backend", tiers.NATIVELY)
def test_weights_of_a_product_with_no_irreps(backend):
    """Nothing is left of the product, so an edge has no weights; e3nn-jax itself fails here."""
    case = dataclasses.replace(GRAPH["nothing-left"], weighted=True)
    out = case.function(backend)(*(a.astype(np.float32) for a in case.operands()))
    assert out.shape == (SMALL.num_nodes, 0)


def test_rows_are_grouped_by_interval_in_their_order():
    index = np.array([3, 1, 3, 0, 1, 3])
    for make in (ops.group_by_interval, jax.jit(ops.group_by_interval, static_argnums=1)):
        found = make(jnp.asarray(index, jnp.int32), 5)
        np.testing.assert_array_equal(found.sender_order, [3, 1, 4, 0, 2, 5])
        np.testing.assert_array_equal(found.sender_ptr, [0, 1, 3, 3, 6, 6])
        np.testing.assert_array_equal(found.senders, index)
        assert found.num_nodes == 5


@pytest.mark.parametrize(
    ("backend", "mul"), [("llvm", 1), ("llvm", 5), ("llvm", 33), ("xla", 5), ("e3nn", 5)]
)
def test_nodes_that_only_send_have_no_rows(x64, backend, mul):
    """Values and gradients are those of all nodes, whose last rows are left out."""
    rng, irreps, y_irreps = np.random.default_rng(mul), f"{mul}x0e + {mul}x1o", "0e+1o"
    ends = rng.integers(0, 9, 20), rng.integers(0, 4, 20)
    whole = ops.Edges.from_arrays(*ends, 9)
    part = dataclasses.replace(whole, num_receivers=4)
    options = {"filter_ir_out": "0e+1o", "backend": backend}
    paths = e3nn.tensor_product(irreps, y_irreps, filter_ir_out="0e+1o").num_irreps
    shapes = (9, e3nn.Irreps(irreps).dim), (20, 4), (20, paths)
    arrays = [jnp.asarray(rng.normal(size=s)) for s in shapes]
    layer = ops.TensorProductLinear(irreps, **options)

    def operands(x, y, w):
        return e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray(y_irreps, y), w

    params = layer.init(jax.random.key(0), *operands(*arrays), edges=whole)

    @jax.jit
    def values(edges, *arrays):
        product = ops.graph_tensor_product(*operands(*arrays), edges, **options)
        return product.array, layer.apply(params, *operands(*arrays), edges=edges).array

    def total(edges, *arrays):
        return sum(jnp.sum(jnp.sin(out[:4])) for out in values(edges, *arrays))

    expected = [out[:4] for out in values(whole, *arrays)]
    assert_close([*values(part, *arrays)], expected, 1e-12)
    found, expected = (jax.jit(jax.grad(total, (1, 2, 3)))(e, *arrays) for e in (part, whole))
    assert_close(found, expected, 1e-11)
    assert np.abs(expected[0][4:]).max() > 0.01  # of nodes that only send
