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
from tests.ops.parity import BACKENDS, along_random_directions, error, largest, only

all_backends = pytest.mark.parametrize("backend", BACKENDS)
kernels = pytest.mark.parametrize("backend", tiers.KERNELS)
CASE = GRAPH["mul-5"]


def everything(case: Case, backend: str, operands):
    """Value, and gradients for a random cotangent, in float64."""
    with jax.enable_x64(True), only(backend):
        return value_and_gradients(case.function(backend), operands)


def value_and_gradients(function, operands):
    found = along_random_directions(function, *operands, orders=("value", "vjp"))
    return jax.tree.map(np.asarray, (found["value"], *found["vjp"]))


@all_backends
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


@kernels
def test_edges_may_be_arguments_and_may_be_made_inside_jit(backend):
    operands = tuple(a.astype(np.float32) for a in CASE.operands())
    expected = CASE.reference(*operands)

    def product(edges, x, y, w):
        x, y = CASE.irreps_arrays(x, y)
        return ops.graph_tensor_product(x, y, w, edges, backend=backend).array

    def with_arrays(senders, receivers, *operands):
        return product(ops.Edges.from_arrays(senders, receivers, SMALL.num_nodes), *operands)

    with only(backend):
        given = jax.jit(product)(SMALL.edges(), *operands)
        made = jax.jit(with_arrays)(SMALL.senders, SMALL.receivers, *operands)
    assert error(given, expected) <= 8 * np.finfo(np.float32).eps * largest(expected)
    np.testing.assert_array_equal(made, given)


@kernels
@pytest.mark.parametrize("shape", ["edge", "path"])
def test_weights_broadcast(shape, backend):
    """One weight for an edge or one for a path; their gradients are sums."""
    x, y, w = CASE.operands()
    w = w[:, :1] if shape == "edge" else w[:1]

    def reference(x, y, w):
        return CASE.reference(x, y, jnp.broadcast_to(w, CASE.shapes()[2]))

    with jax.enable_x64(True):
        expected = value_and_gradients(reference, (x, y, w))
    for a, b in zip(everything(CASE, backend, (x, y, w)), expected, strict=True):
        assert a.shape == b.shape
        assert error(a, b) <= 1e-12 * largest(b)


def test_irreps_without_arrays():
    found = ops.graph_tensor_product("2x0e + 1o", "1o", filter_ir_out="0e + 1o")
    assert found == e3nn.tensor_product("2x0e + 1o", "1o", filter_ir_out="0e + 1o")


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
    rng = np.random.default_rng(mul)
    senders, receivers = rng.integers(0, 9, 20), rng.integers(0, 4, 20)
    whole = ops.Edges.from_arrays(senders, receivers, 9)
    part = dataclasses.replace(whole, num_receivers=4)
    irreps = e3nn.Irreps(f"{mul}x0e + {mul}x1o")
    x, y = (jnp.asarray(rng.normal(size=s)) for s in ((9, irreps.dim), (20, 4)))
    count = e3nn.tensor_product(irreps, "0e+1o").num_irreps
    w = jnp.asarray(rng.normal(size=(20, count)))
    layer = ops.TensorProductLinear(irreps, backend=backend, filter_ir_out="0e+1o")
    operands = e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray("0e+1o", y)
    used = e3nn.tensor_product(irreps, "0e+1o", filter_ir_out="0e+1o").num_irreps
    params = layer.init(jax.random.key(0), *operands, w[:, :used], edges=whole)

    @jax.jit
    def values(edges, x, y, w):
        a, b = e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray("0e+1o", y)
        product = ops.graph_tensor_product(a, b, w, edges, backend=backend).array
        return product, layer.apply(params, a, b, w[:, :used], edges=edges).array

    def total(edges, *arrays):
        return sum(jnp.sum(jnp.sin(out[:4])) for out in values(edges, *arrays))

    for found, expected in zip(values(part, x, y, w), values(whole, x, y, w), strict=True):
        assert found.shape[0] == 4
        np.testing.assert_allclose(found, expected[:4], rtol=1e-12, atol=1e-12)
    found, expected = (jax.jit(jax.grad(total, (1, 2, 3)))(e, x, y, w) for e in (part, whole))
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-11, atol=1e-11)
    assert np.abs(expected[0][4:]).max() > 0.01  # of nodes that only send
