"""Functions in e3nn-jax, and the ops that `ops.fuse` computes each of them by: one table.

A function takes node features x, features of edges y, weights w [EDGES, 30] and parameters p.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NODES, EDGES, FACTOR = 5, 10, 3
X, Y = e3nn.Irreps("3x0e+6x1o"), e3nn.Irreps("0e+1o")
PRODUCT, KEPT = e3nn.tensor_product(X, Y), e3nn.tensor_product(X, Y, filter_ir_out="0e+1o")
Z = e3nn.Irreps("5x0e+3x0o+2x1o+1x1e")
RNG = np.random.default_rng(0)
SENDERS, RECEIVERS = RNG.integers(0, NODES, (2, EDGES)).astype(np.int32)
NEIGHBOURS = RNG.integers(0, NODES, (NODES, EDGES // NODES)).astype(np.int32)
MASK = np.array([1, 1, 0, 1, 0, 1, 1, 0, 1, 1], bool)
BEYOND, BELOW = np.array([[0, 9, -1, -50, 5, -5, 1, 2, 3, 4], [1, 5, 0, -9, -1, -5, 99, 0, 2, 3]])

GRAPH, LAYER, GATED, WRITTEN = (
    "graph_tensor_product",
    "TensorProductLinear",
    "TensorProductLinearGate",
    "as written",
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A function, and what `ops.fuse` makes of it.

    Attributes:
      ops: what computes each line of the report, in order.
      says: a part of the report.
      second: whether derivatives of the gradients are compared too.
      whole: whether every layer that can be is one op, whatever is fastest.
      slow: whether only `--run-slow` checks it: it is like another, but for a number or a function.
      followed: the function that follows the advice in `says`.
      same: whether that is the same network.
      tolerance: of the largest element, in float64.
    """

    function: Callable
    ops: tuple[str, ...] = (GRAPH,)
    says: str = ""
    second: bool = False
    whole: bool = False
    slow: bool = False
    followed: Callable | None = None
    same: bool = True
    tolerance: float = 1e-12


def operands(dtype=jnp.float64):
    """Return arrays of x, y, w and p."""
    rng = np.random.default_rng(1)
    shapes = (NODES, X.dim), (EDGES, Y.dim), (EDGES, PRODUCT.num_irreps), (97,)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def of_arrays(function):
    """Return a function as one of arrays, whose results are arrays."""

    def computed(x, y, w, p):
        result = function(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), w, p)
        return jax.tree.leaves(result)

    return computed


def linear(x, p, irreps_out=X, *index, **options):
    """Return the Linear of rows whose weights are those of p, in another order for each path."""
    module = e3nn.flax.Linear(irreps_out, force_irreps_out=True, **options)
    shapes = jax.eval_shape(module.init, jax.random.key(0), *index, x)["params"]
    weights = {n: jnp.resize(jnp.roll(p, k), s.shape) for k, (n, s) in enumerate(shapes.items())}
    return module.apply({"params": weights}, *index, x)


def summed(m, dst=RECEIVERS, size=NODES, **options):
    return e3nn.scatter_sum(m, dst=jnp.asarray(dst), output_size=size, **options)


def weighted(m, w, p=None):
    return m * w[:, : m.irreps.num_irreps]


def each(function, a):
    return e3nn.IrrepsArray(a.irreps, function(a.array))


def where(m, mask, value=0.0):
    return each(lambda a: jnp.where(mask[..., None], a, value), m)


def taken(x, index, **options):
    return each(lambda a: a.at[jnp.asarray(index)].get(**options), x)


def layer(rows=lambda x, w, p: x[SENDERS], message=weighted, nodes=summed, edges=lambda y: y):
    """Return a layer with other rows, edges, messages or sums than the plainest."""

    def function(x, y, w, p):
        m = message(e3nn.tensor_product(rows(x, w, p), edges(y)), w, p)
        return nodes(m) if nodes is summed else nodes(m, x, w, p)

    return function


def rows_of(rows):
    return layer(rows=rows)


def messages_of(message):
    return layer(message=lambda m, w, p: message(weighted(m, w), w, p))


def each_message(function):
    return messages_of(lambda m, *_: each(function, m))


def nodes_of(nodes):
    return layer(nodes=lambda m, x, w, p: nodes(summed(m), x, w, p))


PLAIN = layer()


def beside(before=None, rows=lambda x, p: x[SENDERS], edges=lambda y: y, keep="0e+1o"):
    """Return a sum of a product that keeps some irreps, beside other rows."""

    def function(x, y, w, p):
        pair = rows(x, p), edges(y)
        others = [] if before is None else [before(x, p)]
        m = e3nn.tensor_product(*pair, filter_ir_out=keep)
        m = e3nn.concatenate([*others, m]).regroup() if others else m
        return summed(weighted(m, w))

    return function


def on_an_axis(x, y, w, p):
    """Write channels on an axis of their own."""
    m = e3nn.tensor_product(x.mul_to_axis(FACTOR)[SENDERS], y[:, None], filter_ir_out="0e+1o")
    return summed(weighted(m.axis_to_mul(), w))


def weighted_on_an_axis(x, y, w, p):
    m = e3nn.tensor_product(x.mul_to_axis(FACTOR)[SENDERS], y[:, None])
    return summed(m * w[:, : FACTOR * m.irreps.num_irreps].reshape(EDGES, FACTOR, -1)).axis_to_mul()


def in_other_order(x, w, p):
    """Write vectors in the order y, z, x of other libraries."""
    order = [0, 1, 2, *(3 + 3 * u + i for u in range(6) for i in (1, 2, 0))]
    return each(lambda a: a[SENDERS][:, jnp.array(order)], x)


def edge_scalars(x, w, p):
    scalars = e3nn.IrrepsArray("3x0e", jnp.cos(w[:, 2:5]))
    return e3nn.concatenate([x[SENDERS].filter("1o"), scalars]).sort().simplify()


def with_a_one(y):
    return e3nn.concatenate([e3nn.IrrepsArray("0e", jnp.ones_like(y.array[:, :1])), y.filter("1o")])


def read_twice(m, w, p):
    """Weigh messages by their own scalars, as in attention."""
    return m * jax.nn.sigmoid(m.filter("0e").array.mean(1, keepdims=True))


def of_range(of_sum, **options):
    """Return a sum of rows out of range; JAX reads the nearest or fills, and drops."""

    def function(x, y, w, p):
        m = weighted(e3nn.tensor_product(taken(x, BEYOND, **options), y), w)
        return jnp.zeros((NODES, PRODUCT.dim)).at[jnp.asarray(BELOW)].add(m.array, mode=of_sum)

    return function


def promised(dtype):
    """Return a layer of indices out of range that are promised to be within."""
    senders, receivers = (jnp.asarray(i.astype(dtype)) for i in (BEYOND, BELOW))

    def function(x, y, w, p):
        return summed(weighted(e3nn.tensor_product(x[senders], y), w), receivers)

    return function


KEY, TWO = jax.random.key(1), jnp.full(PRODUCT.num_irreps, 2, jnp.int4)


def key_behind(n, *_):
    keys = jax.vmap(jax.random.key)(jnp.zeros_like(n.array[:, 0]).astype(jnp.uint32))
    return n * jax.vmap(lambda k: jax.random.uniform(k, (1,)))(keys)


def gathered_linear(x, p):
    return linear(x, p)[SENDERS]


GRAPHS = {
    "plain": Case(PLAIN, second=True),
    "weights of all edges": Case(layer(message=lambda m, w, p: m * w[0])),
    "mask": Case(messages_of(lambda m, *_: where(m * MASK[:, None], MASK)), second=True),
    "mask, other way": Case(each_message(lambda a: jnp.where(MASK[:, None], 0.0, a))),
    "at.add": Case(
        layer(nodes=lambda m, x, w, p: e3nn.zeros(m.irreps, (NODES,)).at[RECEIVERS].add(m))
    ),
    "start": Case(
        layer(nodes=lambda m, x, w, p: jnp.ones((NODES, PRODUCT.dim)).at[RECEIVERS].add(m.array)),
        second=True,
    ),
    "chunks": Case(beside(lambda *of: gathered_linear(*of).filter("0e+1o"), rows=gathered_linear)),
    "sliced before": Case(
        rows_of(lambda x, *_: e3nn.concatenate([x.filter("0e")[SENDERS], x.filter("1o")[SENDERS]]))
    ),
    "part beside": Case(beside(lambda x, p: x.filter("1o")[SENDERS])),
    "scalars only": Case(
        beside(lambda x, p: x[SENDERS].filter("0e"), edges=lambda y: y.filter("1o"), keep="0e")
    ),
    "one before y": Case(layer(edges=with_a_one), slow=True),
    "one alone": Case(
        beside(rows=lambda x, p: x.filter("0e")[SENDERS], edges=with_a_one, keep="0e")
    ),
    "channels on an axis": Case(on_an_axis),
    "weighted on an axis": Case(weighted_on_an_axis, slow=True),
    "other order": Case(rows_of(in_other_order)),
    "difference": Case(rows_of(lambda x, w, p: x[SENDERS] - 2.0 * x[RECEIVERS])),
    "receivers alone": Case(rows_of(lambda x, w, p: x[RECEIVERS])),
    "mapped back": Case(
        layer(nodes=lambda m, x, w, p: summed(m, size=None, map_back=True)),
    ),
    "other count": Case(layer(nodes=lambda m, x, w, p: summed(m, size=NODES + 2)), slow=True),
    "edge scalars": Case(rows_of(edge_scalars)),
    "clip, clip": Case(of_range("clip", mode="clip")),
    "clip, drop": Case(of_range("drop", mode="clip")),
    "fill, clip": Case(of_range("clip", mode="fill", fill_value=0.0)),
    "fill, drop": Case(of_range("drop", mode="fill", fill_value=0.0)),
    "promised": Case(promised(np.int32), second=True),
    "promised, uint8": Case(promised(np.uint8), second=True),
    "key closed over": Case(
        messages_of(lambda m, w, p: m * (jax.random.uniform(KEY, (EDGES, 1)) < 0.7))
    ),
    "key behind": Case(nodes_of(key_behind)),
    "int4": Case(messages_of(lambda m, w, p: m * TWO.astype(w.dtype))),
    "float8": Case(
        layer(
            nodes=lambda m, x, w, p: summed(
                m * x.array.astype(jnp.float8_e4m3fn)[SENDERS, :1].astype(w.dtype)
            )
        )
    ),
}
"""What becomes a product on a graph, in the styles of public clients."""


def both_ends(x, w, p):
    return linear(e3nn.concatenate([x[SENDERS], x[RECEIVERS]]).regroup(), p)


def filled(value):
    return rows_of(lambda x, w, p: linear(taken(x, SENDERS + 1, mode="fill", fill_value=value), p))


MOVED = {
    "Linear of gathered rows": Case(rows_of(lambda x, w, p: linear(x[SENDERS], p)), second=True),
    "Linear with a bias": Case(rows_of(lambda x, w, p: linear(x[SENDERS], p, biases=True))),
    "two Linears": Case(rows_of(lambda x, w, p: linear(linear(x, p)[SENDERS] * 0.5, p))),
    "Linear of rows out of range": Case(filled(0)),
    "Linear of both ends": Case(rows_of(both_ends)),
}
"""What becomes one where a Linear of gathered rows is one of nodes."""


def alone(function, says="", **options):
    """Return the case of a function that stays as it is."""
    return Case(function, (WRITTEN,), says, **options)


def several_ends(x, y, w, p):
    others = x[SENDERS[::-1].copy()].filter("1o")
    return summed(e3nn.tensor_product(x[SENDERS], others, filter_ir_out="0e"))


def read_elsewhere(x, y, w, p):
    m = weighted(e3nn.tensor_product(x[SENDERS], y), w)
    return summed(m), m


def of_neighbours(x, y, w, p):
    y = y.reshape((*NEIGHBOURS.shape, Y.dim))
    m = e3nn.tensor_product(x[NEIGHBOURS], y) * w.reshape(*NEIGHBOURS.shape, -1)
    return e3nn.sum(m, axis=1)


def one_hot(x, y, w, p):
    rows = e3nn.IrrepsArray(X, jax.nn.one_hot(SENDERS, NODES, dtype=w.dtype) @ x.array)
    m = weighted(e3nn.tensor_product(rows, y), w)
    return jax.nn.one_hot(RECEIVERS, NODES, dtype=w.dtype).T @ m.array


def of_graphs(x, y, w, p):
    """Write `vmap` over graphs of edges of their own."""
    pairs = (jnp.stack([a, 2 * a, a[::-1]]) for a in (x.array, y.array, w))
    ends = (jnp.stack([i, i[::-1], (i + 1) % NODES]) for i in (SENDERS, RECEIVERS))

    def graph(x, y, w, senders, receivers):
        m = e3nn.tensor_product(e3nn.IrrepsArray(X, x)[senders], e3nn.IrrepsArray(Y, y))
        return summed(weighted(m, w), receivers).array

    return jax.vmap(graph)(*pairs, *ends)


GATHER = "gather the features of nodes inside of the function, as x[senders], and behind"
HALF = jnp.bfloat16
ALONE = {
    "several index arrays": alone(several_ends, "several index arrays"),
    "times itself": alone(each_message(lambda a: a * a), "multiplied with itself"),
    "rolled": alone(each_message(lambda a: jnp.roll(a, 1, 0)), "no product"),
    "largest": alone(
        layer(nodes=lambda m, *_: jnp.maximum(jax.ops.segment_max(m.array, RECEIVERS, NODES), -9)),
        "go to scatter-max, not to a sum",
    ),
    "rounded": alone(  # before they are summed
        each_message(lambda a: a.astype(jnp.float32).astype(a.dtype)),
        "convert_element_type between",
    ),
    "tanh": alone(each_message(jnp.tanh), "(tanh between them)"),
    "read elsewhere": Case(read_elsewhere, (GRAPH, WRITTEN), "its rows are read elsewhere too"),
    "no sum": alone(lambda *a: read_elsewhere(*a)[1], "its rows go to the result, not to a sum"),
    "no product": Case(
        lambda x, y, w, p: each(jnp.sin, x), (), "no ops.tensor_product is in the trace, but 1 sin"
    ),
    "converted": alone(
        messages_of(lambda m, w, p: m.astype(HALF)),
        "convert after the sum",
        followed=nodes_of(lambda n, x, w, p: n.astype(HALF)),
        same=False,
        tolerance=2**-7,
    ),
    "computed of gathered rows": alone(
        rows_of(lambda x, w, p: each(jnp.tanh, x[SENDERS])),
        GATHER,
        followed=rows_of(lambda x, w, p: each(jnp.tanh, x)[SENDERS]),
    ),
    "not gathered": alone(
        rows_of(lambda x, w, p: each(lambda a: jnp.concatenate([a] * 3)[:EDGES], x)),
        GATHER,
        followed=rows_of(lambda x, w, p: x[np.arange(EDGES) % NODES]),
    ),
    "weights of nodes": alone(
        messages_of(lambda m, w, p: m * w[:NODES, :1][SENDERS]),
        "multiply the features of nodes with them before the gather",
        followed=rows_of(lambda x, w, p: (x * w[:NODES, :1])[SENDERS]),
    ),
    "weights of components": alone(
        each_message(lambda a: a * (jnp.arange(PRODUCT.dim) % 2)),
        "give each irrep one weight",
        followed=messages_of(lambda m, *_: m * jnp.arange(1.0, 1 + PRODUCT.num_irreps)),
        same=False,
    ),
    "Linear of filled rows": alone(filled(2.0)),
    "Linear of messages": alone(messages_of(lambda m, w, p: linear(m, p))),
    "sum along an axis": alone(of_neighbours),
    "one-hot": alone(one_hot),
    "vmap over graphs": alone(of_graphs),
}
"""What stays as it is, and what the report says about it."""


def rows_alone(nodes):
    """Return a layer of rows, which are not summed."""
    return layer(message=lambda m, w, p: m, nodes=lambda m, x, w, p: nodes(m, p))


def own_gate(z):
    """Each vector is gated by a scalar that is activated as well."""
    scalars = jax.nn.sigmoid(z.filter("0e").array)
    vectors = z.filter("1o").array.reshape(-1, 2, 3) * scalars[:, :2, None]
    return jnp.concatenate([scalars, vectors.reshape(-1, 6), z.filter(["0o", "1e"]).array], axis=1)


def gated(gate, ops=(GATED,), **options):
    """Return the case of a layer of rows with a gate behind it."""

    def nodes(m, p):  # e3nn's gate leaves out what is known to be zero
        return gate(e3nn.IrrepsArray(Z, linear(m, p, Z).array))

    return Case(rows_alone(nodes), ops, whole=True, **options)


def with_a_skip(n, x, w, p):
    skip = e3nn.IrrepsArray(Z, x.array @ jnp.resize(p, (X.dim, Z.dim)))
    return e3nn.gate(e3nn.IrrepsArray(Z, linear(n / 1.5, p, Z).array) + skip)


ACTS = {"even_act": jax.nn.silu, "even_gate_act": jax.nn.silu, "odd_act": jnp.tanh}
PLAIN_LINEAR = rows_alone(linear)
LAYERS = {
    "rows": Case(PLAIN_LINEAR, (LAYER,), second=True, whole=True),
    "indexed": alone(
        rows_alone(lambda m, p: linear(m, p, X, jnp.arange(EDGES) % 2, num_indexed_weights=2)),
        "choose their weights by an index",
        slow=True,
    ),
    "graph, skip": Case(nodes_of(with_a_skip), (GATED,), whole=True),
    "sum read elsewhere": Case(nodes_of(lambda n, x, w, p: (linear(n, p), n)), whole=True),
    "weights of rows": alone(layer(nodes=lambda m, x, w, p: linear(m, p)), whole=True),
    "gate": gated(e3nn.gate, second=True),
    "other acts": gated(lambda z: e3nn.gate(z, **ACTS), slow=True),
    "not normalised": gated(lambda z: e3nn.gate(z, normalize_act=False), slow=True),
    "scalars": gated(e3nn.scalar_activation, slow=True),
    "sine": gated(lambda z: e3nn.gate(z, even_act=jnp.sin, normalize_act=False), slow=True),
    "own gate": gated(own_gate, (LAYER,)),
    "scaled": gated(lambda z: e3nn.gate(2.0 * z), (LAYER,), slow=True),
    "gate, read elsewhere": gated(lambda z: (e3nn.gate(z), z), (LAYER,)),
}
"""What becomes one op of a product, a Linear and a gate."""


def step(x, y, w, p):
    return each(lambda a: a + 0.1 * PLAIN(x, y, w, p).array[:, : X.dim], x)


def scanned(x, y, w, p):
    return lax.scan(lambda x, w: (step(x, y, w, p), x.array.sum()), x, jnp.stack([w, 2 * w]))[0]


@jax.custom_jvp
def own_derivative(x):
    return jnp.sin(x)


own_derivative.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2.0 * tangents[0]))

CONTROL = {
    "scan": Case(scanned, second=True),
    "loop": Case(
        lambda x, y, w, p: lax.fori_loop(0, 3, lambda _, x: step(x, y, w, p), x), slow=True
    ),
    "cond": Case(
        lambda x, *of: lax.cond(x.array[0, 0] > 0, step, lambda x, *of: x, x, *of), slow=True
    ),
    "checkpoint": Case(lambda *a: jax.checkpoint(step)(*a)),
    "jit": Case(lambda *a: jax.jit(jax.jit(step))(*a)),
    "own derivative": Case(lambda *a: each(own_derivative, step(*a)), second=True),
}
"""Layers inside of control flow."""

CASES = GRAPHS | MOVED | ALONE | LAYERS | CONTROL
