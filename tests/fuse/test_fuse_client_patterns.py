"""`ops.fuse` on message passing as public clients of e3nn-jax write it, against e3nn-jax."""

from __future__ import annotations

import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.fuse.test_fuse import EDGES, NODES, RECEIVERS, SENDERS
from tests.ops import tiers
from tests.ops.parity import BACKENDS, UNOPTIMIZED, along_random_directions, assert_close

X, Y = e3nn.Irreps("4x0e+4x1o"), e3nn.Irreps("0e+1o")
LINEAR = e3nn.flax.Linear("4x0e+4x1o")
WEIGHTS = {f"w[{n},{n}] 4x{ir},4x{ir}": (4, 4) for n, ir in enumerate(("0e", "1o"))}


def summed(m, dst=RECEIVERS, size=NODES, **options):
    size = {} if size is None else {"output_size": size}
    return e3nn.scatter_sum(m, dst=jnp.asarray(dst), **size, **options)


def weighted(m, w):
    """Return messages with a weight for each irrep."""
    return m * w[:, : m.irreps.num_irreps]


def chunks(x, y, w, product):
    """Match a Linear of e3nn, whose result is in chunks, and a filter of the gathered rows."""
    parameters = {name: w[:4, n * 4 : n * 4 + 4] for n, name in enumerate(WEIGHTS)}
    x = LINEAR.apply({"params": parameters}, x)
    rows = x[SENDERS]
    m = product(rows, y, filter_ir_out="0e+1o")
    return summed(weighted(e3nn.concatenate([rows.filter("0e+1o"), m]).regroup(), w))


def sliced_before(x, y, w, product):
    """Match gathers of parts of x, joined, and beside the product."""
    rows = e3nn.concatenate([x.filter("0e")[SENDERS], x.filter("1o")[SENDERS]])
    m = e3nn.concatenate([x.filter("1o")[SENDERS], product(rows, y)]).regroup()
    return summed(weighted(m, w))


def scalars_only(x, y, w, product):
    """Match the last layer: the product reads the vectors alone, and scalars are beside it."""
    rows = x[SENDERS]
    m = product(rows, y.filter("1o"), filter_ir_out="0e")
    return summed(weighted(e3nn.concatenate([rows.filter("0e"), m]).regroup(), w))


def constant_in_y(x, y, w, product):
    """Match a one before the spherical harmonics."""
    y = e3nn.concatenate([e3nn.IrrepsArray("0e", jnp.ones((EDGES, 1), y.dtype)), y.filter("1o")])
    return summed(weighted(product(x[SENDERS], y, filter_ir_out="0e"), w))


def channels_on_an_axis(x, y, w, product):
    """Match channels on an axis of their own."""
    x = x.mul_to_axis(4, axis=-2)
    m = product(x[SENDERS], y[:, None], filter_ir_out="0e+1o")
    return summed(weighted(m.axis_to_mul(axis=-2), w))


def channels_weighted_on_an_axis(x, y, w, product):
    """Match channels on an axis, with a weight for each of them and each path."""
    m = product(x.mul_to_axis(4)[SENDERS], y[:, None])
    return summed(m * w[:, : 4 * m.irreps.num_irreps].reshape(EDGES, 4, -1)).axis_to_mul()


def permuted(x, y, w, product):
    """Match components in another order: those of libraries with vectors y, z, x."""
    order = [0, 1, 2, 3, *(4 + 3 * u + i for u in range(4) for i in (1, 2, 0))]
    rows = e3nn.IrrepsArray(X, x.array[SENDERS][:, jnp.array(order)])
    return summed(weighted(product(rows, y), w))


def difference(x, y, w, product):
    """Match features of both ends, as in x[s] - x[r]."""
    return summed(weighted(product(x[SENDERS] - 2.0 * x[RECEIVERS], y), w))


def mapped_back(x, y, w, product):
    """Match sums that each edge of a node gets."""
    m = weighted(product(x[SENDERS], y), w)
    return summed(m, size=None, map_back=True)


def other_count(x, y, w, product):
    """Match sums to more rows than are gathered from."""
    return summed(weighted(product(x[SENDERS], y), w), size=NODES + 2)


QUICK = [chunks, sliced_before, scalars_only, channels_on_an_axis, permuted]
QUICK += [difference, mapped_back]
PATTERNS = [*QUICK, constant_in_y, channels_weighted_on_an_axis, other_count]


def inputs():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in ((NODES, X.dim), (EDGES, Y.dim), (EDGES, 40))]


def function_of(pattern, product):
    """Return the pattern as a function of arrays, with values of an array."""

    def function(x, y, w):
        return pattern(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), w, product).array

    return function


def results(function, operands):
    """Return values and gradients of all operands."""
    orders = ("value", "vjp")
    found = along_random_directions(function, *operands, orders=orders, options=UNOPTIMIZED)
    return [found[order] for order in orders]


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
@pytest.mark.parametrize("pattern", tiers.slow_unless(QUICK, *PATTERNS))
def test_patterns_of_clients_are_fused(pattern, backend, monkeypatch, capsys):
    """Against e3nn-jax to rounding in float64, on the backend that is asked for."""
    monkeypatch.setenv("EQFUSE_BACKEND", backend)
    with jax.enable_x64(True):
        operands = [jnp.asarray(a) for a in inputs()]
        fused = ops.fuse(function_of(pattern, ops.tensor_product), report=True)
        jaxpr = str(jax.make_jaxpr(fused)(*operands))
        assert jaxpr.count("outputs out[receiver") == 1
        assert f"backend={backend}" in jaxpr
        report = capsys.readouterr().out
        assert report.count("graph_tensor_product") == 1, report
        assert "as written" not in report
        found = results(fused, operands)
        expected = results(function_of(pattern, e3nn.tensor_product), operands)
        assert_close(found, expected, 1e-14)


def test_a_product_of_bfloat16_that_is_summed_in_float32(capsys):
    """Its rows are not rounded any more: closer to the exact sum than what was written."""

    def function(product):
        def summed_wide(x, y, w):
            m = product(e3nn.IrrepsArray(X, x)[SENDERS], e3nn.IrrepsArray(Y, y))
            return summed(m.astype(jnp.float32)).array

        return summed_wide

    x, y, w = (jnp.asarray(a, jnp.bfloat16) for a in inputs())
    fused = ops.fuse(function(ops.tensor_product), report=True)
    jax.eval_shape(fused, x, y, w)
    assert capsys.readouterr().out.count("graph_tensor_product") == 1
    found = results(fused, (x, y, w))
    with jax.enable_x64(True):
        exact = [jnp.asarray(a, jnp.float64) for a in (x, y, w)]
        expected = results(function(e3nn.tensor_product), exact)
    written = results(function(ops.tensor_product), (x, y, w))
    assert found[0].dtype == jnp.float32
    assert [g.dtype for g in found[1]] == [jnp.bfloat16] * 3
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-6)
    assert np.abs(written[0] - expected[0]).max() > 1e-3
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=2**-8, atol=1e-6)


def read_elsewhere(x, y, w):
    m = ops.tensor_product(e3nn.IrrepsArray(X, x)[SENDERS], e3nn.IrrepsArray(Y, y))
    return summed(m * w[:, :1]).array, m.array


def energy(x, y, w):
    nodes = difference(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), w, ops.tensor_product)
    return jnp.sum(nodes.array**2)


def layer(x, y, w, rows=lambda x, w: x[SENDERS], message=lambda m, w: m, nodes=lambda n, x, w: n):
    x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
    m = ops.tensor_product(rows(x, w), y, filter_ir_out="0e+1o")
    return nodes(summed(message(m, w)), x, w).array


def layer_with(**parts):
    return lambda x, y, w: layer(x, y, w, **parts)


def each(function, a):
    return e3nn.IrrepsArray(a.irreps, function(a.array))


def gathered_weights(w):
    return w[:NODES, :1][SENDERS]


HALF = jnp.bfloat16
GATHER = "gather the features of nodes inside of the function, as x[senders], and behind"
ADVICE = [  # what the report says, of which code, and the code that follows it
    (
        "convert after the sum",
        layer_with(message=lambda m, w: m.astype(HALF)),
        layer_with(nodes=lambda n, x, w: n.astype(HALF)),
    ),
    (
        GATHER,
        layer_with(rows=lambda x, w: each(jnp.tanh, x[SENDERS])),
        layer_with(rows=lambda x, w: each(jnp.tanh, x)[SENDERS]),
    ),
    (
        GATHER,
        layer_with(rows=lambda x, w: e3nn.IrrepsArray(X, jnp.concatenate([x.array] * 2)[:EDGES])),
        layer_with(rows=lambda x, w: x[np.arange(EDGES) % NODES]),
    ),
    (
        "multiply the features of nodes with them before the gather",
        layer_with(message=lambda m, w: m * gathered_weights(w)),
        layer_with(rows=lambda x, w: (x * w[:NODES, :1])[SENDERS]),
    ),
    (
        "give each irrep one weight",
        layer_with(message=lambda m, w: each(lambda a: a * (jnp.arange(32) % 2), m)),
        layer_with(message=lambda m, w: m * jnp.arange(1.0, 17.0)),
    ),
    (
        "wrap the energy by ops.fuse",
        jax.value_and_grad(energy),
        jax.value_and_grad(ops.fuse(energy, report=True)),
    ),
    (
        "trace it with patch=True",
        lambda *a: function_of(difference, e3nn.tensor_product)(*a),
        ops.fuse(lambda x, y, w: layer(x, y, w), report=True),
    ),
]


def assert_near(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


OTHER_NETWORK = ("give each irrep", "trace it", "convert")


@pytest.mark.parametrize(("advice", "function", "followed"), ADVICE)
def test_advice_helps_where_it_is_followed(advice, function, followed, capsys):
    """The advice is in the report, and without it once it is followed; values stay."""
    operands = [jnp.asarray(a, jnp.float32) for a in inputs()]
    expected = ops.fuse(function, report=True)(*operands)
    report = capsys.readouterr().out
    assert advice in report
    assert "checked: values differ" in report
    fused = followed if "wrap" in advice or "trace" in advice else ops.fuse(followed, report=True)
    found = fused(*operands)
    report = capsys.readouterr().out
    assert "as written" not in report
    assert advice not in report
    if not advice.startswith(OTHER_NETWORK):
        assert_near(found, expected)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (read_elsewhere, "its rows are read elsewhere too"),
        (lambda *a: read_elsewhere(*a)[1], "its rows go to the result, not to a sum"),
        (lambda x, y, w: jnp.sin(x), "no ops.tensor_product is in the trace, but 1 sin"),
        (layer_with(message=lambda m, w: each(jnp.tanh, m)), "(tanh between them)"),
    ],
)
def test_the_report_gives_no_advice_where_none_helps(function, says, capsys):
    operands = [jnp.asarray(a, jnp.float32) for a in inputs()]
    assert_near(ops.fuse(function, report=True)(*operands), function(*operands))
    report = capsys.readouterr().out
    assert says in re.sub(" +", " ", report)
    assert all(cell.strip() for line in report.splitlines() for cell in line.split("|"))


def test_the_place_is_the_users_line_in_haiku(capsys):
    hk = pytest.importorskip("haiku")
    network = hk.without_apply_rng(
        hk.transform(lambda x, y: ops.haiku.Linear("2x0e")(ops.tensor_product(x, y)))
    )
    x, y = e3nn.normal(X, jax.random.key(0), (3,)), e3nn.normal(Y, jax.random.key(0), (3,))
    params = network.init(jax.random.key(0), x, y)
    ops.fuse(network.apply, report=True)(params, x, y)
    assert "\ntest_fuse_client_patterns.py:" in capsys.readouterr().out
