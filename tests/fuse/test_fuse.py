"""`ops.fuse` beyond the table of patterns: its report, its arguments, and JAX around it."""

import doctest
import re

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from eqfuse.fuse import row_polynomials
from eqfuse.ops.primitives import choice
from tests.fuse.patterns import (
    MASK,
    NODES,
    PLAIN,
    PRODUCT,
    RECEIVERS,
    SENDERS,
    X,
    Y,
    layer,
    linear,
    of_arrays,
    operands,
    summed,
    where,
)
from tests.fuse.test_patterns import on_graph, results, rows_of_report
from tests.ops.parity import assert_close

PLAIN_OF_ARRAYS = of_arrays(PLAIN)


def fused(function, **options):
    return ops.fuse(of_arrays(function), patch=True, **options)


def test_the_example_at_the_head_of_row_polynomials():
    found = doctest.testmod(row_polynomials, extraglobs={"jax": jax})
    assert found.attempted == 5
    assert not found.failed


def test_enable_x64_within_a_function():
    def function(*args):
        with jax.enable_x64(True):
            return PLAIN_OF_ARRAYS(*(a.astype(jnp.float64) for a in args))

    args = operands(jnp.float32)
    assert_close(ops.fuse(function, patch=True)(*args), function(*args), 1e-14)


def test_the_report_says_where(capsys):
    fused(PLAIN, report=True)(*operands(jnp.float32))
    report = capsys.readouterr().out
    head, _, checked = report.splitlines()
    assert checked.startswith("checked: values differ by")
    columns = ["where", "pattern", "computed by", "why not, and what to do"]
    assert [w.strip() for w in head.split("|")] == columns
    [[place, *cells]] = rows_of_report(report)
    assert place.startswith("patterns.py:")
    assert cells == ["gather, product, sum", "graph_tensor_product", "all of it is"]
    fused(PLAIN)(*operands(jnp.float32))
    assert capsys.readouterr().out == ""


def test_the_place_is_the_users_line_in_haiku(capsys):
    hk = pytest.importorskip("haiku")
    network = hk.without_apply_rng(
        hk.transform(lambda x, y: ops.haiku.Linear("2x0e")(ops.tensor_product(x, y)))
    )
    x, y = e3nn.normal(X, jax.random.key(0), (3,)), e3nn.normal(Y, jax.random.key(0), (3,))
    params = network.init(jax.random.key(0), x, y)
    ops.fuse(network.apply, report=True)(params, x, y)
    assert "\ntest_fuse.py:" in capsys.readouterr().out


def energy(*arrays):
    return jnp.sum(jnp.square(PLAIN_OF_ARRAYS(*arrays)[0]))


@pytest.mark.parametrize(
    ("advice", "function", "followed", "patch"),
    [
        (
            "wrap the energy by ops.fuse",
            jax.value_and_grad(energy),
            jax.value_and_grad(ops.fuse(energy, patch=True, report=True)),
            True,
        ),
        ("trace it with patch=True", energy, ops.fuse(energy, patch=True, report=True), False),
    ],
)
def test_advice_about_fuse_itself_helps(advice, function, followed, patch, capsys):
    arrays = operands(jnp.float32)
    expected = ops.fuse(function, report=True, patch=patch)(*arrays)
    report = capsys.readouterr().out
    assert advice in report
    assert "checked: values differ" in report or not patch
    found = followed(*arrays)
    report = capsys.readouterr().out
    assert "as written" not in report
    assert advice not in report
    assert_close(found, expected, 1e-5)


def test_the_report_does_not_advise_what_is_done(capsys):
    """A product that e3nn-jax computes within `patch=True`, as of complex numbers, is its own."""
    x = e3nn.IrrepsArray("1o", jnp.ones((2, 3), jnp.complex64))
    for patch in (False, True):
        jax.eval_shape(ops.fuse(lambda x: e3nn.tensor_product(x, x), patch=patch, report=True), x)
        assert ("patch=True" in capsys.readouterr().out) != patch


@pytest.mark.parametrize("count", [choice.FEWEST_ROWS, choice.FEWEST_ROWS - 1])
def test_a_layer_is_one_op_where_the_table_of_auto_says_so(count, capsys):
    x, y, w, p = operands(jnp.float32)
    arrays = jnp.resize(x, (count, X.dim)), jnp.resize(y, (count, Y.dim)), w, p

    def of_rows(x, y, w, p):
        return linear(e3nn.tensor_product(x, y), p)

    lowered = jax.jit(fused(of_rows, report=True))
    text = lowered.lower(*arrays).as_text()
    few = f"as written | fewer than {choice.FEWEST_ROWS} rows"
    said = re.sub(" +", " ", capsys.readouterr().out)
    assert (few if count < choice.FEWEST_ROWS else "TensorProductLinear") in said
    assert text.count("custom_call @eqfuse") == 1 + (count < choice.FEWEST_ROWS)


def test_no_edges():
    """JAX gathers nothing from nowhere."""
    x, y, w, p = operands(jnp.float32)
    none = np.zeros(0, np.int32)
    empty = layer(lambda x, w, p: x[none], nodes=lambda m, *_: summed(m, none))
    [found] = fused(empty)(x, y[:0], w[:0], p)
    assert found.shape == (NODES, PRODUCT.dim)
    assert not found.any()
    assert on_graph(fused(empty), x, y[:0], w[:0], p) == 0


@pytest.mark.slow
def test_layers_share_the_orders_of_the_edges(monkeypatch):
    def function(x, y, w, p):
        for _ in range(3):
            x = e3nn.IrrepsArray(X, PLAIN(x, y, w, p).array[:, : X.dim])
        return x

    made, from_arrays = [], ops.Edges.from_arrays
    monkeypatch.setattr(ops.Edges, "from_arrays", lambda *a: made.append(a) or from_arrays(*a))
    assert on_graph(fused(function), *operands(jnp.float32)) == 3
    assert len(made) == 1


@pytest.mark.parametrize("name", ["out of range", "masked"])
@pytest.mark.parametrize("backend", ["llvm", "xla"])
def test_edges_that_are_dropped_may_hold_anything(name, backend, monkeypatch):
    """A NaN of an edge that is masked, or added to no node, is in no output."""
    monkeypatch.setenv("EQFUSE_BACKEND", backend)
    x, y, w, p = operands(jnp.float32)
    dropped = np.flatnonzero(~MASK)
    y, w = y.at[dropped[0]].set(jnp.nan), w.at[dropped[1]].set(jnp.inf)
    receivers = RECEIVERS if name == "masked" else np.where(MASK, RECEIVERS, NODES)

    def nodes(m, *_):
        m = where(m, MASK) if name == "masked" else m
        return jnp.zeros((NODES, PRODUCT.dim)).at[receivers].add(m.array)

    function = layer(nodes=nodes)
    assert on_graph(fused(function), x, y, w, p) == 1
    [expected], [found] = of_arrays(function)(x, y, w, p), fused(function)(x, y, w, p)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_exported_programs_are_of_xla(monkeypatch):
    given = operands(jnp.float32)
    with pytest.raises(ValueError, match=r"keep kernels of eqfuse: .* EQFUSE_BACKEND=xla"):
        jax.export.export(jax.jit(fused(PLAIN)))(*given)
    monkeypatch.setenv("EQFUSE_BACKEND", "xla")
    found = jax.export.export(jax.jit(fused(PLAIN)), platforms=("cpu", "cuda"))(*given)
    assert_close(found.call(*given), fused(PLAIN)(*given), 1e-6)


def test_a_product_of_bfloat16_that_is_summed_in_float32():
    """Its rows are not rounded any more: closer to the exact sum than what was written."""
    wide = layer(message=lambda m, w, p: m.astype(jnp.float32))
    arrays = operands(jnp.bfloat16)
    found = results(fused(wide), arrays, False)
    assert on_graph(fused(wide), *arrays) == 1
    with jax.enable_x64(True):
        exact = [jnp.asarray(a, jnp.float64) for a in arrays]
        expected = results(of_arrays(layer(message=lambda m, w, p: m)), exact, False)
        [written] = of_arrays(wide)(*arrays)
    [value], [exact_value] = found["value"], expected["value"]
    assert value.dtype == jnp.float32
    assert [g.dtype for g in found["vjp"]] == [jnp.bfloat16] * 4
    np.testing.assert_allclose(value, exact_value, rtol=0, atol=1e-5)
    assert np.abs(np.asarray(written) - np.asarray(exact_value)).max() > 1e-3
    for a, b in zip(found["vjp"], expected["vjp"], strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, rtol=2**-8, atol=1e-5)


def test_vmap_and_scan_around_it():
    with jax.enable_x64(True):
        x, y, w, p = (jnp.stack([a, 2 * a]) for a in operands())
        p = p[0]

        def all_of(function):
            mapped = jax.vmap(function, (0, 0, 0, None))(x, y, w, p)
            of_x = jax.vmap(lambda x, y, w: function(x, y, w, p), (0, None, 0))
            tangents = jax.jvp(of_x, (x, y[0], w), (x, y[1], w))
            scanned = lax.scan(lambda c, xw: (c, function(xw[0], y[0], xw[1], p)), 0.0, (x, w))
            return mapped, tangents, scanned

        mapped = jax.vmap(fused(PLAIN), (0, 0, 0, None))
        assert on_graph(mapped, x, y, w, p) == 1
        assert_close(all_of(fused(PLAIN)), all_of(PLAIN_OF_ARRAYS), 1e-12)


class Layer(nn.Module):
    """A layer of existing code."""

    @nn.compact
    def __call__(self, x: e3nn.IrrepsArray, y, options):
        m = ops.tensor_product(x[options["senders"]], y)
        m = m * self.param("weights", nn.initializers.normal(), (m.irreps.num_irreps,))
        nodes = e3nn.scatter_sum(m, dst=options["receivers"], output_size=x.shape[0])
        return {"out": ops.Linear(X)(nodes), "name": options["name"], "none": None}


def test_apply_of_flax_with_trees_and_other_arguments():
    x, y, *_ = operands(jnp.float32)
    x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
    options = {"senders": jnp.asarray(SENDERS), "receivers": RECEIVERS, "name": "mine"}
    params = Layer().init(jax.random.key(2), x, y, options)
    expected, apply = Layer().apply(params, x, y, options), ops.fuse(Layer().apply)
    found = apply(params, x, y, options=options)
    assert found["out"].irreps == expected["out"].irreps
    assert (found["name"], found["none"]) == ("mine", None)
    np.testing.assert_allclose(found["out"].array, expected["out"].array, atol=1e-5)
    assert on_graph(lambda *a: apply(*a, options)["out"], params, x, y) == 1


def test_as_a_decorator_and_with_arrays_of_a_closure():
    x, y, w, p = operands(jnp.float32)

    def of_closure(decorated):
        def outer(scale, x):
            return decorated(lambda x: energy(x, scale * y, w, p))(x)

        return outer

    found, expected = of_closure(ops.fuse(patch=True)), of_closure(lambda f: f)
    assert on_graph(found, 2.0, x) == 1
    assert_close(*(jax.grad(f, (0, 1))(2.0, x) for f in (found, expected)), 1e-4)
