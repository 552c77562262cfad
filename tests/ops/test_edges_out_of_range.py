"""Edges and indices that are out of range: what the kernels say of them, and that none wraps."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import BACKENDS


def product(senders, receivers):
    edges = ops.Edges.from_arrays(senders, receivers, 2)
    x, y = (e3nn.normal("2x0e", jax.random.key(0), (rows,)) for rows in (2, 3))
    return ops.graph_tensor_product(x, y, None, edges, backend="llvm").array


@pytest.mark.parametrize("out", [2, 5, -1])
def test_the_message_names_the_ends_and_their_range(out):
    inside, outside = jnp.array([0, 1, 1]), jnp.array([0, 1, out])
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"senders\[2\] is {out}, outside \[0, 2"):
        jax.block_until_ready(jax.jit(product)(outside, inside))
    text = r"receiver_ptr\[\d\] is \d, not in \[\d, \d\]: indices of edges must be in \[0, 2\)"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(jax.jit(product)(inside, outside))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"senders\[2\]"):
        jax.block_until_ready(jax.jit(product)(outside, outside))


WIDE = (2**32 + 1, -(2**32) + 1, 2**31 + 1, 2**63 - 1, -(2**63))
"""Numbers that int32 does not hold; a cast makes 1 or other indices of them."""


@pytest.mark.parametrize("out", WIDE)
@pytest.mark.parametrize("name", ["senders", "receivers"])
def test_traced_ends_do_not_wrap(x64, name, out):
    inside, outside = jnp.array([0, 1, 1]), jnp.array([0, 1, out])
    ends = {"senders": inside, "receivers": inside, name: outside}
    edges = jax.jit(lambda s, r: ops.Edges.from_arrays(s, r, 2))(*ends.values())
    found = getattr(edges, name)
    assert found.dtype == jnp.int32
    assert found.tolist() == [0, 1, 2**31 - 1 if out > 0 else -(2**31)]
    text = r"outside \[0, 2\)|must be in \[0, 2\)"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(jax.jit(product)(*ends.values()))


def test_traced_unsigned_ends_do_not_wrap():
    senders = jnp.array([0, 2**32 - 1, 1], jnp.uint32)
    edges = jax.jit(lambda s: ops.Edges.from_arrays(s, s, 2))(senders)
    assert edges.senders.tolist() == [0, 2**31 - 1, 1]


@pytest.mark.parametrize("out", WIDE)
def test_ends_on_the_host_are_refused_beside_traced_ones(out):
    """Without x64, where JAX would have wrapped them."""
    inside, outside = jnp.array([0, 1, 1]), np.array([0, 1, out])
    with pytest.raises(ValueError, match=rf"senders must be in \[0, 2\), got .*{abs(out)}"):
        jax.jit(lambda r: product(outside, r))(inside)


@pytest.mark.parametrize("num_nodes", [-1, -(2**31), 2**31])
@pytest.mark.parametrize("end", [[], [0]])
def test_an_impossible_number_of_nodes_is_refused(num_nodes, end):
    end = np.array(end, int)
    with pytest.raises(ValueError, match=f"from 0 to 2147483647, got {num_nodes}"):
        ops.Edges.from_arrays(end, end, num_nodes)
    with pytest.raises(ValueError, match="num_nodes must be from 0 to 2147483647"):
        jax.jit(lambda s: ops.Edges.from_arrays(s, s, num_nodes).senders)(end)


ALL_BACKENDS = [*BACKENDS, "e3nn"]
OUTSIDE = (3, 5, -4, -9)
"""Indices out of the range of three sets of weights; -1, -2 and -3 count from the last."""


def nearest(index):
    return np.clip([i + 3 if i < 0 else i for i in index], 0, 2)


@pytest.mark.parametrize("out", WIDE)
@pytest.mark.parametrize("traced", [True, False], ids=["traced", "host"])
@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], "xla", "llvm", "e3nn"))
def test_an_index_of_weights_does_not_wrap(out, traced, backend):
    """It is treated as any other that is out of range: it is the nearest."""
    x = e3nn.normal("4x0e", jax.random.key(0), (3,))

    def linear(index):
        module = ops.Linear("4x0e", num_indexed_weights=3, backend=backend)
        params = {"params": {"w[0,0] 4x0e,4x0e": jnp.arange(48.0, dtype="f").reshape(3, 4, 4)}}
        return module.apply(params, index, x).array

    with jax.enable_x64(traced):
        index = jnp.array([0, out, 1]) if traced else np.array([0, out, 1])
        expected = linear(jnp.array([0, 2 if out > 0 else 0, 1]))
        found = (jax.jit(linear) if traced else linear)(index)
        np.testing.assert_array_equal(found, expected)


LINEARS = {
    "linear": (ops.Linear, lambda index, x, y, edges: (index, x)),
    "product": (ops.TensorProductLinear, lambda index, x, y, edges: (x, y, None, None, index)),
    "graph": (ops.TensorProductLinearGate, lambda index, x, y, edges: (x, y, None, edges, index)),
}


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm", "triton-interpret"], *ALL_BACKENDS))
@pytest.mark.parametrize("name", LINEARS)
def test_an_index_of_weights_out_of_range_is_the_nearest(name, backend):
    """On every backend, in the value and in the gradients, of the weights too."""
    cls, arguments = LINEARS[name]
    index = [0, -1, *OUTSIDE]
    x, y = (
        e3nn.normal(irreps, jax.random.key(n), (len(index),))
        for n, irreps in enumerate(("2x0e+2x1o", "0e"))
    )
    nodes = np.arange(len(index))
    edges = ops.Edges.from_arrays(nodes, nodes, len(index))
    module = cls("2x0e+1o", num_indexed_weights=3, backend=backend)
    params = module.init(jax.random.key(2), *arguments(nearest(index), x, y, edges))

    @jax.jit
    def results(params, x, index):
        def value(params, x):
            return module.apply(params, *arguments(index, x, y, edges)).array

        out, back = jax.vjp(value, params, x)
        return out, back(jnp.cos(jnp.arange(float(out.size))).reshape(out.shape))

    expected = results(params, x, jnp.array(nearest(index)))
    jax.tree.map(np.testing.assert_array_equal, results(params, x, jnp.array(index)), expected)
    if name == "linear":
        theirs = e3nn.flax.Linear("2x0e+1o", num_indexed_weights=3).apply(
            params, jnp.array(index), x
        )
        np.testing.assert_allclose(expected[0], theirs.array, atol=1e-6)


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm", "triton-interpret"], *ALL_BACKENDS))
def test_species_out_of_range_are_the_nearest(backend):
    index = [0, -1, *OUTSIDE]
    x = e3nn.normal("2x0e", jax.random.key(0), (len(index),))
    weights = jax.random.normal(jax.random.key(1), (3, 1, 2))

    def value_and_gradient(species):
        def value(weights):
            options = {"irreps_out": "2x0e", "correlation": 1, "backend": backend}
            return jnp.sum(ops.symmetric_contraction(x, weights, species, **options).array ** 2)

        return jax.value_and_grad(value)(weights)

    expected = value_and_gradient(nearest(index))
    found = value_and_gradient(np.array(index))
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))


@pytest.mark.parametrize("out", WIDE)
def test_an_index_of_species_does_not_wrap(out):
    """Without x64, from the host: it is the nearest, as every species out of range."""
    x = e3nn.normal("2x0e", jax.random.key(0), (3,))
    weights = jax.random.normal(jax.random.key(1), (3, 1, 2))

    def contracted(species):
        options = {"irreps_out": "2x0e", "correlation": 1, "backend": "xla"}
        return ops.symmetric_contraction(x, weights, species, **options).array

    expected = contracted(np.array([0, 2 if out > 0 else 0, 1]))
    np.testing.assert_array_equal(contracted(np.array([0, out, 1])), expected)


SIZES = (0, 3), (1, 1), (15, 2), (16, 2), (17, 2), (40, 7), (256, 300), (5000, 300)
"""Edges and nodes. A step of the search on the device divides the edges into 16 parts."""


@pytest.mark.parametrize(
    ("edges", "nodes"), [*SIZES, pytest.param(40, 2**26, marks=pytest.mark.slow)]
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
