"""Edges and indices that are out of range: what the kernels say of them, and that none wraps."""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import BACKENDS

X, Y = (e3nn.normal("2x0e", jax.random.key(0), (rows,)) for rows in (2, 3))


def product(senders, receivers, backend="llvm"):
    edges = ops.Edges.from_arrays(senders, receivers, 2)
    return ops.graph_tensor_product(X, Y, None, edges, backend=backend).array


def test_edges_out_of_range_under_vmap():
    """Those of no graph of a batch become edges of another, or of its last node."""
    inside, outside = jnp.array([[0, 1, 1], [1, 0, 0]]), jnp.array([[0, 1, 2], [1, 0, 1]])
    for ends in ((inside, outside), (outside, inside)):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"outside \[0, 4\)|must be in"):
            jax.block_until_ready(jax.jit(jax.vmap(product))(*ends))

    found = jax.vmap(functools.partial(product, backend="xla"))(inside, outside)
    for n, kept in enumerate((2, 3)):
        messages = e3nn.tensor_product(X[inside[n, :kept]], Y[:kept])
        expected = e3nn.scatter_sum(messages, dst=outside[n, :kept], output_size=2)
        np.testing.assert_allclose(found[n], expected.array, atol=1e-6)


@pytest.mark.parametrize("end", ["sender", "receiver"])
@pytest.mark.parametrize("order", [[1, 0, 2], [0, 0, 2], [0, 1, 3], [0, 1]])
def test_edges_whose_order_is_not_that_of_their_ends(end, order):
    """On the host at once, also where it is a permutation; traced, when a native kernel runs."""
    edges = ops.Edges.from_arrays(np.array([0, 1, 1]), np.array([0, 1, 1]), 2)
    wrong = dataclasses.replace(edges, **{f"{end}_order": np.array(order, np.int32)})

    def compute(x, edges):
        return ops.graph_tensor_product(x, Y, None, edges, backend="llvm").array.sum()

    with pytest.raises(ValueError, match=f"{end}_order must list all 3 edges in the order of"):
        compute(X, wrong)
    if len(order) == 3:
        with pytest.raises(jax.errors.JaxRuntimeError, match=rf"{end}_order"):
            jax.block_until_ready(jax.jit(jax.value_and_grad(compute))(X, wrong))


WIDE = (2**32 + 1, -(2**32) + 1, 2**31 + 1, 2**63 - 1, -(2**63))
"""Numbers that int32 does not hold; a cast makes 1 or other indices of them."""


@pytest.mark.parametrize(
    ("out", "dtype"),
    [*((n, "int32") for n in (2, 5, -1)), *((n, "int64") for n in WIDE), (2**32 - 1, "uint32")],
)
@pytest.mark.parametrize("name", ["senders", "receivers", "both"])
def test_traced_ends_do_not_wrap(x64, name, out, dtype):
    """They are the nearest number of int32, which the message names with its range."""
    inside, outside = jnp.array([0, 1, 1], dtype), jnp.array([0, 1, out], dtype)
    ends = [outside if name in (of, "both") else inside for of in ("senders", "receivers")]
    edges = jax.jit(lambda s, r: ops.Edges.from_arrays(s, r, 2))(*ends)
    nearest = int(np.clip(out, -(2**31), 2**31 - 1))
    name = "senders" if name == "both" else name
    found = getattr(edges, name)
    assert (found.dtype, found.tolist()) == (jnp.int32, [0, 1, nearest])
    text = rf"{name}\[2\] is {nearest}, outside \[0, 2\)"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(jax.jit(product)(*ends))


@pytest.mark.parametrize("out", WIDE)
def test_ends_on_the_host_are_refused_beside_traced_ones(out):
    """Without x64, where JAX would have wrapped them."""
    inside, outside = jnp.array([0, 1, 1]), np.array([0, 1, out])
    with pytest.raises(ValueError, match=rf"senders must be in \[0, 2\), got .*{abs(out)}"):
        jax.jit(lambda r: product(outside, r))(inside)


ON_THE_HOST = ops.Edges.from_arrays
TRACED = jax.jit(ON_THE_HOST, static_argnums=2)


@pytest.mark.parametrize("make", [ON_THE_HOST, TRACED], ids=["on the host", "traced"])
@pytest.mark.parametrize("num_nodes", [-1, -(2**31), 2**31])
@pytest.mark.parametrize("end", [[], [0]])
def test_an_impossible_number_of_nodes_is_refused(num_nodes, end, make):
    message = f"num_nodes must be from 0 to 2147483647, got {num_nodes}"
    with pytest.raises(ValueError, match=message):
        make(np.array(end, int), np.array(end, int), num_nodes)


def test_numbers_of_nodes_that_do_not_fit_traced_ends():
    with pytest.raises(ValueError, match="there are 2 edges, and no nodes"):
        TRACED(*np.array([[0, 1], [1, 2]]), 0)
    with pytest.raises(TypeError, match=r"num_nodes is the size .* make it static"):
        jax.jit(ON_THE_HOST)(*np.array([[0, 1], [1, 2]]), 3)


INDEX = np.array([0, -1, 3, 5, -4, -9, *WIDE])
"""Of three sets of weights: -1, -2 and -3 count from the last, the others are out of range."""
NEAREST = np.clip(np.where(INDEX < 0, INDEX + 3 * (INDEX > -4), INDEX), 0, 2)


def op_of_an_index(name, backend):
    """Return parameters, and a function of them, x and an index."""
    if name == "contraction":
        options = {"irreps_out": "2x0e+2x1o", "correlation": 1, "backend": backend}
        op = functools.partial(ops.symmetric_contraction, **options)
        weights = jax.random.normal(jax.random.key(1), (3, 2, 2))
        return weights, lambda weights, x, index: op(x, weights, index).array
    module = ops.Linear("2x0e+1o", num_indexed_weights=3, backend=backend)
    x = e3nn.IrrepsArray("2x0e+2x1o", jnp.ones((len(INDEX), 8)))
    params = module.init(jax.random.key(2), NEAREST, x)
    return params, lambda params, x, index: module.apply(params, index, x).array


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm", "triton"], *BACKENDS, "e3nn"))
@pytest.mark.parametrize("name", ["linear", "contraction"])
def test_an_index_of_weights_out_of_range_is_the_nearest(name, backend):
    """In the value and in the gradients, of the weights too; none wraps, traced or on the host."""
    params, op = op_of_an_index(name, backend)
    x = e3nn.normal("2x0e+2x1o", jax.random.key(0), (len(INDEX),))

    def results(params, x, index):
        out, back = jax.vjp(lambda *a: op(*a, index), params, x)
        return out, back(jnp.cos(out))

    def on_the_host(index):
        return jax.jit(lambda *a: results(*a, index))(params, x)

    expected = on_the_host(NEAREST)
    jax.tree.map(np.testing.assert_array_equal, on_the_host(INDEX), expected)
    with jax.enable_x64(True):
        traced = [jax.jit(results)(params, x, jnp.array(index)) for index in (INDEX, NEAREST)]
    jax.tree.map(np.testing.assert_array_equal, *traced)
    if name == "linear":
        theirs = e3nn.flax.Linear("2x0e+1o", num_indexed_weights=3).apply(params, NEAREST, x)
        np.testing.assert_allclose(expected[0], theirs.array, atol=1e-6)


@pytest.mark.parametrize(
    ("edges", "nodes"),
    [(0, 3), (1, 1), (40, 7), (256, 300), pytest.param(40, 2**26, marks=pytest.mark.slow)],
)
def test_traced_ends_are_ordered_as_those_on_the_host(edges, nodes):
    """Also where numbers of edges and nodes are too many for one integer for both."""
    rng = np.random.default_rng(0)
    ends = rng.integers(min(nodes, 300), size=(2, edges))
    nodes_of = min(nodes, 300)
    expected = ops.Edges.from_arrays(*ends, nodes_of)
    found = jax.jit(lambda s, r: ops.Edges.from_arrays(s, r, nodes))(*ends)
    for name in ("senders", "receivers", "receiver_order", "sender_order"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("receiver_ptr", "sender_ptr"):
        np.testing.assert_array_equal(getattr(found, name)[: nodes_of + 1], getattr(expected, name))
        assert getattr(found, name).dtype == jnp.int32
