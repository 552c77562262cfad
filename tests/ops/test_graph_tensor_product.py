"""`graph_tensor_product` against gather, e3nn-jax's tensor product, weights and scatter."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import _tensor_product
from tests.ops import tiers
from tests.ops.cases import GRAPH, SMALL, Case, Graph, random_arrays
from tests.ops.parity import (
    BACKENDS,
    assert_equivariant,
    assert_one_rounding,
    assert_parity,
    error,
    largest,
    only,
)

all_backends = pytest.mark.parametrize("backend", BACKENDS)
kernels = pytest.mark.parametrize("backend", tiers.KERNELS)
# see tiers.value_and_derivatives
CORE = {
    "l3",
    "mul-33",
    "mul-600",
    "not-regrouped",
    "unweighted",
    "one-y",
    "one-w",
    "no-edges",
    "uvuv-expanded",
    "one-by-many",
    "zero-blocks",
}
# sizes and layouts between those of others; coefficients of all normalisations: ir/test_form.py
SLOW = {
    "scalars",
    "mixed",
    "mul-1",
    "mul-5",
    "none",
    "one-y-by-many",
    "one-y-expanded",
    "one-w-no-edges",
    "uvuv-unrolled",
    "zero-mul",
}
CASE = GRAPH["mul-5"]


@pytest.fixture(autouse=True)
def _no_einsum_of_e3nn(monkeypatch):
    """On xla some products would be e3nn-jax's own, with which they are compared here."""
    monkeypatch.setattr(_tensor_product, "_repeats_more_than_it_writes", lambda product: False)


@tiers.value_and_derivatives(GRAPH, CORE, everywhere="mul-33", slow=SLOW)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(GRAPH[name], dtype, backend)


@pytest.mark.parametrize("backend", tiers.NATIVELY)
@pytest.mark.parametrize("name", ["l3", "uvuv-expanded"])
def test_equivariance(name, backend):
    assert_equivariant(GRAPH[name], backend)


def everything(case: Case, backend: str, operands):
    """Value, and gradients for a random cotangent, in float64."""
    function = case.function(backend)
    [cotangent] = random_arrays(case.shapes()[-1:], 2)

    def value_and_gradients(*operands):
        value, pullback = jax.vjp(function, *operands)
        return value, *pullback(cotangent)

    with jax.enable_x64(True), only(backend, runs=bool(case.graph.pairs)):
        return jax.tree.map(np.asarray, jax.jit(value_and_gradients)(*operands))


@kernels
def test_nodes_without_edges_get_exact_zeros(backend):
    value, dx, _, _ = everything(CASE, backend, CASE.operands())
    isolated, without_incoming = 3, 2
    assert not value[[isolated, without_incoming]].any()
    assert not dx[isolated].any()
    assert dx[without_incoming].all()


@kernels
def test_a_graph_without_edges_gives_exact_zeros(backend):
    case = GRAPH["no-edges"]
    value, dx, dy, dw = everything(case, backend, case.operands())
    assert value.shape == case.shapes()[-1]
    assert not value.any()
    assert not dx.any()
    assert dy.shape[0] == dw.shape[0] == 0


@all_backends
def test_padding_changes_nothing(backend):
    """Edges of zero y or zero weight from a padding node to itself add exactly nothing."""
    x, y, w = CASE.operands()
    last = SMALL.num_nodes
    padded_graph = Graph(last + 1, SMALL.pairs + ((last, last),) * 3)
    padded = dataclasses.replace(CASE, graph=padded_graph)
    x_padded = np.concatenate([x, np.ones((1, x.shape[1]))])
    y_padded = np.concatenate([y, np.zeros((2, y.shape[1])), np.ones((1, y.shape[1]))])
    w_padded = np.concatenate([w, np.ones((2, w.shape[1])), np.zeros((1, w.shape[1]))])
    value, *_ = everything(CASE, backend, (x, y, w))
    found, *gradients = everything(padded, backend, (x_padded, y_padded, w_padded))
    assert not found[last].any()
    assert all(np.isfinite(g).all() for g in gradients)
    assert error(found[:last], value) <= (0 if backend != "xla" else 1e-15 * largest(value))


@kernels
def test_the_order_of_edges_does_not_matter(backend):
    x, y, w = CASE.operands()
    order = np.array([4, 2, 0, 5, 1, 3])
    shuffled = dataclasses.replace(
        CASE, graph=Graph(SMALL.num_nodes, tuple(SMALL.pairs[i] for i in order))
    )
    value, dx, dy, dw = everything(CASE, backend, (x, y, w))
    found = everything(shuffled, backend, (x, y[order], w[order]))
    # the same sums of at most three terms in another order
    for a, b in zip(found, (value, dx, dy[order], dw[order]), strict=True):
        assert error(a, b) <= 1e-14 * largest(b)


@all_backends
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
    [cotangent] = random_arrays(CASE.shapes()[-1:], 2)

    def pulled_back(function):
        def value_and_gradients(x, y, w):
            value, pullback = jax.vjp(lambda *a: function(*a), x, y, w)
            return value, *pullback(cotangent)

        return jax.jit(value_and_gradients)

    with jax.enable_x64(True):
        full = (x.shape, y.shape, CASE.shapes()[2])
        expected = pulled_back(lambda x, y, w: CASE.reference(x, y, jnp.broadcast_to(w, full[2])))(
            x, y, w
        )
        with only(backend):
            found = pulled_back(CASE.function(backend))(x, y, w)
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape
            assert error(a, b) <= 1e-12 * largest(b)


@kernels
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("mul-5", jnp.float16, marks=pytest.mark.slow),
        ("mul-5", jnp.bfloat16),
        pytest.param("one-w", jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param("mul-600", jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_half_precision_is_rounded_once(name, dtype, backend):
    """The gradient of y in the last case is a sum over blocks of channels."""
    assert_one_rounding(GRAPH[name], dtype, backend)


@pytest.mark.parametrize("backend", tiers.NATIVELY)
def test_dtypes_are_promoted(backend):
    x, y, w = (a.astype(np.float32) for a in CASE.operands())
    with only(backend):
        out = jax.jit(CASE.function(backend))(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), w)
    assert out.dtype == jnp.float32


def test_irreps_without_arrays():
    found = ops.graph_tensor_product("2x0e + 1o", "1o", filter_ir_out="0e + 1o")
    assert found == e3nn.tensor_product("2x0e + 1o", "1o", filter_ir_out="0e + 1o")


@pytest.mark.parametrize("backend", tiers.NATIVELY)
def test_weights_of_a_product_with_no_irreps(backend):
    """Nothing is left of the product, so an edge has no weights; e3nn-jax itself fails here."""
    case = dataclasses.replace(GRAPH["nothing-left"], weighted=True)
    out = case.function(backend)(*(a.astype(np.float32) for a in case.operands()))
    assert out.shape == (SMALL.num_nodes, 0)


def test_the_backend_e3nn_is_e3nn(monkeypatch):
    operands = tuple(a.astype(np.float32) for a in CASE.operands())
    calls = []
    product = e3nn.tensor_product
    monkeypatch.setattr(e3nn, "tensor_product", lambda *a, **k: calls.append(k) or product(*a, **k))
    with_e3nn = CASE.function("e3nn")(*operands)
    assert len(calls) == 1
    monkeypatch.undo()
    expected = CASE.reference(*operands)
    assert error(with_e3nn, expected) <= 8 * np.finfo(np.float32).eps * largest(expected)


EDGES = SMALL.edges()
X, Y = e3nn.IrrepsArray("2x1o", np.ones((5, 6))), e3nn.IrrepsArray("0e", np.ones((6, 1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, Y), r"needs edges: eqfuse.ops.Edges.from_arrays makes them"),
        ((X[:4], Y, None, EDGES), r"x must be \[5 nodes, 2x1o\], got shape \(4, 6\)"),
        (
            (X, Y[:2], None, EDGES),
            r"y must be \[6 edges, 1x0e\], or one .* \(2, 1\)",
        ),
        (
            (X, Y, np.ones((6, 3)), EDGES),
            r"\[6 edges, 2 irreps of 2x1o\], or 1 .* \(6, 3\)",
        ),
        ((X, Y, np.ones(6), EDGES), r"\[6 edges, 2 irreps of 2x1o\], or 1 .* \(6,\)"),
        ((X * 1j, Y, None, EDGES), "backend .* is for real numbers: complex"),
    ],
)
def test_errors_name_both_shapes(arguments, message):
    with pytest.raises(ValueError, match=message):
        ops.graph_tensor_product(*arguments, backend="xla")


@pytest.mark.parametrize(
    ("arrays", "error_type", "message"),
    [
        (([0, 1], [0]), ValueError, r"vectors of one length, got shapes \(2,\) and \(1,\)"),
        (([0, 5], [0, 1]), ValueError, r"senders must be in \[0, 5\), got 0 to 5"),
        (([0, 1], [-1, 1]), ValueError, r"receivers must be in \[0, 5\), got -1 to 1"),
        (([0.0, 1.0], [0, 1]), TypeError, "senders must be integers, got float64"),
    ],
)
def test_edges_that_do_not_fit_are_refused(arrays, error_type, message):
    with pytest.raises(error_type, match=message):
        ops.Edges.from_arrays(*map(np.array, arrays), 5)
