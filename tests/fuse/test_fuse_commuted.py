"""`ops.fuse` where rows are moved in other ways than by a gather, a product and a sum."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.fuse.test_fuse import assert_close, derivatives

NODES, EDGES, GRAPHS = 5, 10, 3
X, Y = e3nn.Irreps("3x0e+2x1o"), e3nn.Irreps("0e+1o")
PRODUCT = e3nn.tensor_product(X, Y)
KEPT = PRODUCT.filter(["0e", "1o"])
RNG = np.random.default_rng(0)
SENDERS, RECEIVERS = RNG.integers(0, NODES, (2, EDGES)).astype(np.int32)
NEIGHBOURS = RNG.integers(0, NODES, (NODES, EDGES // NODES)).astype(np.int32)
MASK = RNG.random(EDGES) < 0.7
PARAMETERS = {f"w[{n},{n}] {b},{b}": RNG.normal(size=(b.mul, b.mul)) for n, b in enumerate(X)}
BOTH = (X + X).regroup()
OF_BOTH = {
    f"w[{n},{n}] {b},{o}": RNG.normal(size=(b.mul, o.mul))
    for n, (b, o) in enumerate(zip(BOTH, X, strict=True))
}
OF_PRODUCT = {  # blocks of the product that X has too
    f"w[{k},{n}] {b},{o}": RNG.normal(size=(b.mul, o.mul))
    for n, o in enumerate(X)
    for k, b in enumerate(PRODUCT)
    if b.ir == o.ir
}
BIAS = {"b[0] 3x0e": RNG.normal(size=3)}


def linear(x, parameters=PARAMETERS, **options):
    return ops.linear(x, {n: jnp.asarray(a, x.dtype) for n, a in parameters.items()}, X, **options)


def irreps(x, y):
    return e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)


def summed(m, receivers=RECEIVERS):
    return e3nn.scatter_sum(m, dst=jnp.asarray(receivers), output_size=NODES)


def of_rows(rows_of):
    """Return a layer whose rows of edges are made of x by a function."""

    def layer(x, y, w):
        x, y = irreps(x, y)
        return summed(ops.tensor_product(rows_of(x, w), y) * w)

    return layer


def of_messages(nodes_of):
    """Return a layer whose nodes are made of messages by a function."""

    def layer(x, y, w):
        x, y = irreps(x, y)
        return nodes_of(ops.tensor_product(x[SENDERS], y) * w, w)

    return layer


def taken(x, index, **options):
    return e3nn.IrrepsArray(X, jnp.take(x.array, jnp.asarray(index), axis=0, **options))


def both_ends(x, w):
    return linear(e3nn.concatenate([x[SENDERS], x[RECEIVERS]]).regroup(), OF_BOTH)


def with_edge_scalars(x, w):
    rows = e3nn.concatenate([x[SENDERS].filter("1o"), e3nn.IrrepsArray("3x0e", jnp.cos(w[:, 2:5]))])
    return rows.sort().simplify()


def masked(m, mask=MASK):
    return e3nn.IrrepsArray(m.irreps, jnp.where(mask[..., None], m.array, 0.0))


def dense(x, y, w, mask=None):
    x, y = irreps(x, y.reshape(*NEIGHBOURS.shape, -1))
    m = ops.tensor_product(x[NEIGHBOURS], y) * w.reshape(*NEIGHBOURS.shape, -1)
    m = m if mask is None else masked(m, mask.reshape(NEIGHBOURS.shape))
    return m.array.sum(1)


def one_hot(x, y, w):
    x, y = irreps(jax.nn.one_hot(SENDERS, NODES, dtype=x.dtype) @ x, y)
    m = ops.tensor_product(x, y) * w
    return jax.nn.one_hot(RECEIVERS, NODES, dtype=x.dtype).T @ m.array


def one_alone(x, y, w):
    """Write a product of which only the path with a constant is read."""
    x, y = irreps(x, y)
    one = e3nn.IrrepsArray("0e", jnp.ones((EDGES, 1), w.dtype))
    y = e3nn.concatenate([one, y.filter("1o")])
    m = ops.tensor_product(x.filter("0e")[SENDERS], y, filter_ir_out="0e")
    return summed(m * w[:, : m.irreps.num_irreps])


LAYER = of_rows(lambda x, w: x[SENDERS])


def graphs(*arrays):
    return [jnp.stack([a, 2 * a, a[::-1]]) for a in arrays]


def batch(x, y, w):
    indices = [jnp.stack([i, i[::-1], (i + 1) % NODES]) for i in (SENDERS, RECEIVERS)]

    def graph(x, y, w, senders, receivers):
        x, y = irreps(x, y)
        return linear(summed(ops.tensor_product(x[senders], y) * w, receivers), OF_PRODUCT).array

    return jax.vmap(graph)(*graphs(x, y, w), *indices)


def batch_of_one_topology(x, y, w):
    return jax.vmap(lambda *a: LAYER(*a).array, in_axes=(1, 0, 0))(
        graphs(x)[0].swapaxes(0, 1), *graphs(y, w)
    )


def batch_out_of_range(x, y, w):
    senders, receivers = (jnp.stack([i, i + 1, i - 2]) for i in (SENDERS, RECEIVERS))

    def graph(x, y, w, senders, receivers):
        rows = jnp.asarray(x).at[senders].get(mode="fill", fill_value=0.5)
        m = ops.tensor_product(*irreps(rows, y)) * w
        return jnp.zeros((NODES, PRODUCT.dim), x.dtype).at[receivers].add(m.array, mode="drop")

    return jax.vmap(graph)(*graphs(x, y, w), senders, receivers)


def batch_of_batches(x, y, w):
    return jax.vmap(batch)(*graphs(x, y, w))


CASES = {
    "Linear of gathered rows": of_rows(lambda x, w: linear(x[SENDERS])),
    "with a bias": of_rows(lambda x, w: linear(x[SENDERS], PARAMETERS | BIAS, biases=True)),
    "two of them": of_rows(lambda x, w: linear(linear(x)[SENDERS] * 0.5)),
    "of rows out of range": of_rows(
        lambda x, w: linear(taken(x, SENDERS + 1, mode="fill", fill_value=0))
    ),
    "Linear of both ends": of_rows(both_ends),
    "Linear of messages": of_messages(lambda m, w: summed(linear(m, OF_PRODUCT))),
    "weighted by edges": of_messages(lambda m, w: summed(linear(m, OF_PRODUCT) * w[:, :1] / 3.0)),
    "masked": of_messages(lambda m, w: summed(masked(linear(m, OF_PRODUCT)))),
    "edge scalar beside the rows": of_rows(with_edge_scalars),
    "receivers alone": of_rows(lambda x, w: x[RECEIVERS]),
    "one alone": one_alone,
    "dense neighbours": dense,
    "dense neighbours, masked": lambda *a: dense(*a, mask=MASK),
    "one-hot": one_hot,
    "batch": batch,
    "batch of one topology": batch_of_one_topology,
    "batch out of range": batch_out_of_range,
    "batch of batches": batch_of_batches,
}


def operands():
    shapes = (NODES, X.dim), (EDGES, Y.dim), (EDGES, PRODUCT.num_irreps)
    return [np.random.default_rng(1).normal(size=s) for s in shapes]


@pytest.mark.parametrize("name", CASES)
def test_it_is_fused_with_the_same_derivatives(name, capsys):
    """Against the same function without `fuse`, whose ops are compared with e3nn's elsewhere."""
    function = CASES[name]
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in operands()]
        expected = derivatives(function, arrays, second=name in ("Linear of messages", "batch"))
        fused = ops.fuse(function, report=True)
        found = derivatives(fused, arrays, second=name in ("Linear of messages", "batch"))
        report = capsys.readouterr().out
        assert "product, " in report or "products, " in report
        assert "as written" not in report
        assert " test_fuse_commuted.py:" in f" {report.splitlines()[1]}"
        assert_close(found, expected)


def read_twice(x, y, w):
    """Write messages whose scalars are read for their weights, as in attention."""

    def nodes(m, w):
        return summed(m * jax.nn.sigmoid(m.filter("0e").array.mean(1, keepdims=True)))

    return of_messages(nodes)(x, y, w)


@pytest.mark.parametrize(
    ("function", "sizes", "paths"),
    [
        (CASES["Linear of messages"], [PRODUCT.dim], [4]),
        (read_twice, [PRODUCT.filter("0e").dim, PRODUCT.dim], [2, 6]),
    ],
)
def test_unread_outputs_are_not_computed(function, sizes, paths):
    """The blocks that the Linear reads; the rows of the weights, beside those that are summed."""
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in operands()]
        fused = ops.fuse(function)
        jaxpr = jax.make_jaxpr(lambda *a: fused(*a).array)(*arrays)
        forms = [e for e in jaxpr.eqns if e.primitive.name == "eqfuse_form"]
        assert [e.outvars[0].aval.shape[1] for e in forms] == sizes
        assert [len(e.params["form"].paths) for e in forms] == paths
        assert_close(*(derivatives(f, arrays) for f in (fused, function)))


def rows_out_of_range(x, y, w):
    """Leave a Linear on the edges that turns the fill into something else."""
    return of_rows(lambda x, w: linear(taken(x, SENDERS + 1, mode="fill", fill_value=2.0)))(x, y, w)


def weights_of_irreps(x, y, w):
    return of_messages(lambda m, w: summed(linear(m, OF_PRODUCT) * w[:, : X.num_irreps]))(x, y, w)


def bias_of_messages(x, y, w):
    parameters = OF_PRODUCT | BIAS
    return of_messages(lambda m, w: summed(linear(m, parameters, biases=True)))(x, y, w)


def largest_of_neighbours(x, y, w):
    """Leave a sum along an axis as it is, where no product on a graph takes its place."""
    x, y = irreps(x, y.reshape(*NEIGHBOURS.shape, -1))
    return jnp.tanh(ops.tensor_product(x[NEIGHBOURS], y).array).sum(1)


@pytest.mark.parametrize(
    "function", [rows_out_of_range, weights_of_irreps, bias_of_messages, largest_of_neighbours]
)
def test_operations_that_do_not_commute_are_left_alone(function, capsys):
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in operands()]
        fused = ops.fuse(function, report=True)
        found, expected = (derivatives(f, arrays, second=False) for f in (fused, function))
        assert "as written" in capsys.readouterr().out
        assert_close(found, expected)
        kinds = ["eqfuse_linear_form[", "reduce_sum[", "scatter-add["]
        counts = [
            [str(jax.make_jaxpr(f)(*arrays)).count(k) for k in kinds] for f in (fused, function)
        ]
        assert counts[0] == counts[1]
