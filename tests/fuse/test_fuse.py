"""`ops.fuse` on graphs: what it finds, that results stay, and what it leaves alone."""

import functools
import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import parity
from tests.ops.parity import UNOPTIMIZED, along_random_directions

NODES, EDGES = 4, 7
X, Y = e3nn.Irreps("3x0e+2x1o"), e3nn.Irreps("0e+1o")
SENDERS = np.array([0, 1, 2, 0, 3, 3, 1], np.int32)
RECEIVERS = np.array([1, 2, 0, 0, 1, 2, 2], np.int32)
PRODUCT = e3nn.tensor_product(X, Y)


def arrays(edges=EDGES, nodes=NODES):
    """Random x, y, weights."""
    rng = np.random.default_rng(0)
    shapes = (nodes, X.dim), (edges, Y.dim), (edges, PRODUCT.num_irreps)
    return [rng.normal(size=shape) for shape in shapes]


def product(x, y, senders=SENDERS):
    """Return the gathered rows and their product with y."""
    rows = e3nn.IrrepsArray(X, x)[jnp.asarray(senders)]
    return rows, ops.tensor_product(rows, e3nn.IrrepsArray(Y, y))


def to_nodes(m, receivers=RECEIVERS):
    return e3nn.scatter_sum(m, dst=jnp.asarray(receivers), output_size=NODES)


def weighted(x, y, w):
    return product(x, y)[1] * w


def where(m, mask):
    return e3nn.IrrepsArray(m.irreps, jnp.where(mask[:, None], m.array, 0.0))


MASK = np.array([1, 1, 0, 1, 0, 1, 1], bool)


def added(x, y, w):
    zeros = e3nn.zeros(PRODUCT, (NODES,), x.dtype)
    return zeros.at[jnp.asarray(RECEIVERS)].add(weighted(x, y, w))


def started(x, y, w):
    return jnp.ones((NODES, PRODUCT.dim)).at[RECEIVERS].add(weighted(x, y, w).array)


FOUND = {
    "weights": lambda x, y, w: to_nodes(weighted(x, y, w)),
    "weights of all edges": lambda x, y, w: to_nodes(product(x, y)[1] * w[0]),
    "mask, where": lambda x, y, w: to_nodes(where(weighted(x, y, w) * MASK[:, None], MASK)),
    "where not": lambda x, y, w: to_nodes(
        e3nn.IrrepsArray(PRODUCT, jnp.where(MASK[:, None], 0.0, weighted(x, y, w).array))
    ),
    "at.add": added,
    "start": started,
}


def on_graph(function, *operands) -> int:
    """How many products on graphs the jaxpr of a function has."""
    return str(jax.make_jaxpr(function)(*operands)).count("outputs out[receiver")


def array_of(out):
    return out.array if isinstance(out, e3nn.IrrepsArray) else out


def derivatives(function, operands, second=True):
    """Value, VJP, and with `second` the VJP of that, by all operands."""
    orders = ("value", "vjp", "vjp of vjp")[: 2 + second]
    return along_random_directions(
        lambda *a: array_of(function(*a)), *operands, orders=orders, options=UNOPTIMIZED
    )


def assert_same(function, operands, count=1, second=True):
    """Assert that the fused function has `count` graph products and the other's results.

    Derivatives are compared where there are such products.
    """
    with jax.enable_x64(True):
        operands = [jnp.asarray(a) for a in operands]
        assert on_graph(function, *operands) == 0
        assert on_graph(ops.fuse(function), *operands) == count
        if not count:
            results = (
                jax.jit(f, compiler_options=UNOPTIMIZED) for f in (ops.fuse(function), function)
            )
            assert_close(*(array_of(f(*operands)) for f in results))
            return
        expected = derivatives(function, operands, second)
        found = derivatives(ops.fuse(function), operands, second)
        assert_close(found, expected)


assert_close = functools.partial(parity.assert_close, tolerance=1e-12, least=1.0)


@pytest.mark.parametrize("name", FOUND)
def test_a_product_on_a_graph(name):
    assert_same(FOUND[name], arrays(), second=name in ("weights", "mask, where", "start"))


def test_no_edges():
    none = np.zeros(0, np.int32)

    def function(x, y, w):
        return to_nodes(product(x, y, none)[1] * w, none)

    assert_same(function, arrays(edges=0), count=0)  # JAX gathers nothing from nowhere


def test_rows_that_are_read_elsewhere_are_kept():
    def function(x, y, w):
        m = weighted(x, y, w)
        return jnp.concatenate([to_nodes(m).array, m.array])

    assert_same(function, arrays(), second=False)


@pytest.mark.slow
def test_layers_share_the_orders_of_the_edges(monkeypatch):
    def function(x, y, w):
        for _ in range(3):
            x = to_nodes(weighted(x, y, w)).array[:, : X.dim]
        return x

    assert_same(function, arrays(), count=3)
    made, from_arrays = [], ops.Edges.from_arrays
    monkeypatch.setattr(ops.Edges, "from_arrays", lambda *a: made.append(a) or from_arrays(*a))
    operands = [jnp.asarray(a, jnp.float32) for a in arrays()]
    assert on_graph(ops.fuse(function), *operands) == 3
    assert len(made) == 1


def other_index(x, y, w):
    """Two gathers: x of one array, y of another."""
    rows = e3nn.IrrepsArray(X, x)[jnp.asarray(SENDERS)]
    others = e3nn.IrrepsArray(X, x)[jnp.asarray(SENDERS[::-1].copy())].filter("1o")
    return to_nodes(ops.tensor_product(rows, others, filter_ir_out="0e"))


def squared(x, y, w):
    m = product(x, y)[1]
    return to_nodes(e3nn.IrrepsArray(m.irreps, m.array * m.array))


def rolled(x, y, w):
    m = weighted(x, y, w)
    return to_nodes(e3nn.IrrepsArray(m.irreps, jnp.roll(m.array, 1, axis=0)))


def key_behind_the_layer(x, y, w):
    nodes = to_nodes(weighted(x, y, w))
    keys = jax.vmap(jax.random.key)(jnp.zeros_like(nodes.array[:, 0]).astype(jnp.uint32))
    return nodes * jax.vmap(lambda k: jax.random.uniform(k, (1,)))(keys)


KEY = jax.random.key(1)
TWO = jnp.full(PRODUCT.num_irreps, 2, jnp.int4)
OTHER_DTYPES = {
    "key closed over": lambda x, y, w: to_nodes(
        weighted(x, y, w) * (jax.random.uniform(KEY, (EDGES, 1)) < 0.7).astype(w.dtype)
    ),
    "key behind the layer": key_behind_the_layer,
    "float8 of nodes": lambda x, y, w: to_nodes(
        weighted(x, y, w) * x.astype(jnp.float8_e4m3fn)[jnp.asarray(SENDERS), :1].astype(w.dtype)
    ),
    "int4": lambda x, y, w: to_nodes(weighted(x, y, w) * TWO.astype(w.dtype)),
}


@pytest.mark.parametrize("name", OTHER_DTYPES)
def test_random_keys_and_narrow_dtypes_pass_through(name):
    assert_same(OTHER_DTYPES[name], arrays(), second=False)


def largest(x, y, w):
    return jnp.maximum(jax.ops.segment_max(weighted(x, y, w).array, RECEIVERS, NODES), -9.0)


def rounded(x, y, w):
    m = weighted(x, y, w).array
    m = m.astype(jnp.float32).astype(m.dtype)
    return to_nodes(e3nn.IrrepsArray(PRODUCT, m))


LEFT_ALONE = {
    other_index: "several index arrays",
    squared: "multiplied with itself",
    rolled: "no product",
    largest: "go to scatter-max, not to a sum",
    rounded: "convert_element_type between",
}


@pytest.mark.parametrize("function", LEFT_ALONE)
def test_fuse_leaves_lookalikes_alone(function, capsys):
    assert_same(function, arrays(), count=0)
    with jax.enable_x64(True):
        jax.eval_shape(ops.fuse(function, report=True), *arrays())
    line, share = capsys.readouterr().out.splitlines()[1:]
    assert "as written" in line
    assert "estimated from shapes: 0% of the time is in what fused ops replace" in share
    assert LEFT_ALONE[function] in line


def test_the_report_says_where(capsys):
    operands = [jnp.asarray(a, jnp.float32) for a in arrays()]
    ops.fuse(FOUND["weights"], report=True)(*operands)
    head, line, share, checked = capsys.readouterr().out.splitlines()
    assert checked.startswith("checked: values differ by")
    columns = ["where", "pattern", "computed by", "why not, and what to do"]
    assert [w.strip() for w in head.split("|")] == columns
    assert re.match("estimated from shapes: [89][0-9]% of the time is in what fused ops rep", share)
    where, what, op, why = (w.strip() for w in line.split("|"))
    assert why == "all of it is"
    assert where.startswith("test_fuse.py:")
    assert op == "graph_tensor_product"
    assert what == "gather, product, sum"
    ops.fuse(FOUND["weights"])(*operands)
    assert capsys.readouterr().out == ""


def test_the_report_says_what_the_rest_of_the_time_is(capsys):
    """A layer whose radial network is large gains little, although all of it matches."""

    def layer(x, y, w, *kernels):
        for kernel in kernels:
            w = jnp.tanh(w @ kernel)
        return to_nodes(weighted(x, y, w))

    size = PRODUCT.num_irreps
    kernels = np.ones((size, 4096)), np.ones((4096, size))
    jax.eval_shape(ops.fuse(layer, report=True), *arrays(), *kernels)
    *_, share = capsys.readouterr().out.splitlines()
    assert re.search(
        "[0-4]% of the time is in what fused ops replace; the rest: 7[0-9]% matmuls", share
    )


def test_the_report_does_not_advise_what_is_done(capsys):
    """A product that e3nn-jax computes within `patch=True`, as of complex numbers, is its own."""
    x = e3nn.IrrepsArray("1o", jnp.ones((2, 3), jnp.complex64))
    for patch in (False, True):
        jax.eval_shape(ops.fuse(lambda x: e3nn.tensor_product(x, x), patch=patch, report=True), x)
        assert ("patch=True" in capsys.readouterr().out) != patch
