"""Gradients by sender, of a pass over parts of the receivers: against e3nn-jax."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.backends.llvm import form as codegen
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.form import is_cut
from eqfuse.ops.backends.llvm.layout import PARTS, Machine
from eqfuse.ops.ir import products
from eqfuse.ops.primitives import native
from eqfuse.ops.primitives.forms import evaluate
from tests.ops.ir.test_form import evaluate as definition
from tests.ops.ir.test_form import gradients

X, Y = "32x0e+32x1o+32x2e", "0e+1o"
OUT = "0e+1o"
"""No path reads the segment of X after the second: its gradient is zero."""
RNG = np.random.default_rng(0)
GRAPHS = {
    "more nodes than parts": (RNG.integers(0, 25, (2, 90)), 25),
    "fewer nodes than parts": (RNG.integers(0, 3, (2, 40)), 3),
    "one edge": (np.array([[4], [1]]), 6),
    "one receiver": (np.stack([RNG.integers(0, 9, 50), np.full(50, 5)]), 9),
}


@pytest.fixture
def texts(monkeypatch):
    """Cut receivers into parts always; return the texts of the kernels that were asked for."""
    found = []

    def generate(*args):
        module = codegen.generate(*args)
        found.append(module.text)
        return module

    monkeypatch.setattr(Machine, "num_parts", lambda self, num_bytes: PARTS)
    monkeypatch.setattr(native, "generate", generate)
    jax.clear_caches()
    yield found
    jax.clear_caches()


def derivatives(graph, dtype, backend: str, x=X):
    """Return the gradients of a product, and the gradients of these."""
    (senders, receivers), nodes = graph
    edges = ops.Edges.from_arrays(senders, receivers, nodes)
    rng = np.random.default_rng(1)
    weights = e3nn.tensor_product(x, Y, filter_ir_out=OUT).num_irreps
    sizes = e3nn.Irreps(x).dim, e3nn.Irreps(Y).dim, weights
    shapes = zip((nodes, len(senders), len(senders)), sizes, strict=True)
    arrays = [jnp.asarray(rng.normal(size=s), dtype) for s in shapes]

    def product(*a):
        xs, ys = e3nn.IrrepsArray(x, a[0]), e3nn.IrrepsArray(Y, a[1])
        return ops.graph_tensor_product(
            xs, ys, a[2], edges, filter_ir_out=OUT, backend=backend
        ).array

    def first(*a):
        out, back = jax.vjp(product, *a)
        return back(jnp.cos(out))

    def both(*a):
        found, back = jax.vjp(first, *a)
        return found, back(jax.tree.map(jnp.cos, found))

    return jax.jit(both), arrays


def run(*args):
    function, arrays = derivatives(*args)
    return jax.tree.map(np.asarray, function(*arrays))


def largest_error(found, expected) -> float:
    errors = jax.tree.map(lambda a, b: abs(a - b).max() / abs(b).max(), found, expected)
    return max(jax.tree.leaves(errors))


def product_form(x=X, on_graph=True):
    irreps = e3nn.Irreps(x), e3nn.Irreps(Y)
    return products.tensor_product(
        *irreps, None, "component", weighted=True, on_graph=on_graph
    ).form


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_double_backward_in_float64(graph, texts):
    """Against the definition of the form; also where a segment of x has no gradient."""
    (senders, receivers), nodes = graph
    edges = ops.Edges.from_arrays(senders, receivers, nodes)
    double = gradients(gradients(product_form("16x0e+16x1o")))
    paths = tuple(p for p in double.paths if (p.output.operand, p.output.segment) != (0, 0))
    rng = np.random.default_rng(1)
    for form in (double, dataclasses.replace(double, paths=paths)):
        arrays = {
            o.name: rng.normal(size=(o.index.count(len(senders), nodes), o.size))
            for o in form.inputs
        }
        expected = definition(form, arrays, senders, receivers, nodes)
        with jax.enable_x64(True):
            found = evaluate(form, list(arrays.values()), edges, backend="llvm")
        for operand, array in zip(form.outputs, found, strict=True):
            exact = expected[operand.name]
            np.testing.assert_allclose(array, exact, rtol=0, atol=1e-13 * abs(exact).max())
    assert all("define internal void @pass_sum_0" in text for text in texts)
    assert len(texts) == 2


@pytest.mark.slow
@pytest.mark.parametrize("x", [X, "32x0e+32x0o"])  # packed rows, and rows that are read in place
def test_derivatives_in_float32(texts, x):
    """Errors are at most twice those of e3nn-jax."""
    graph = GRAPHS["more nodes than parts"]
    with jax.enable_x64(True):
        expected = run(graph, np.float64, "e3nn", x)
    allowed = 2 * largest_error(run(graph, np.float32, "e3nn", x), expected)
    assert largest_error(run(graph, np.float32, "llvm", x), expected) < allowed
    assert any("pass_sum_0" in text for text in texts)


def test_results_are_the_same_for_any_number_of_threads(texts):
    """Bit by bit; there is enough work for all of them."""
    rng = np.random.default_rng(2)
    edges = ops.Edges.from_arrays(*rng.integers(0, 61, (2, 3000)), 61)
    form = gradients(gradients(product_form("32x0e+32x1o")))
    sizes = [(o.index.count(3000, 61), o.size) for o in form.inputs]
    arrays = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in sizes]
    function = jax.jit(lambda *a: evaluate(form, list(a), edges, backend="llvm"))
    found = []
    try:
        for count in (1, 2, 3, 16):
            machine.set_threads(count)
            found.append(jax.tree.map(np.asarray, function(*arrays)))
    finally:
        machine.set_threads(machine.threads())
    assert "pass_sum_0" in texts[0]
    for other in found[1:]:
        assert jax.tree.all(jax.tree.map(np.array_equal, found[0], other))


def test_what_is_cut_into_parts():
    """Gradients of long rows on a graph, where receivers gather more than senders."""
    here = Machine(64, 32)

    def is_long(mul):
        return here.is_long(-(-mul // 16))

    backward = gradients(product_form())
    assert is_cut(backward, is_long)
    assert is_cut(gradients(backward), is_long)
    assert not is_cut(product_form(), is_long)
    assert not is_cut(gradients(product_form("16x0e+16x1o")), is_long)
    assert not is_cut(gradients(product_form(on_graph=False)), is_long)
    passes = [p.name for p in codegen.write(gradients(backward), "float32", here, PARTS).passes]
    assert passes == ["pass_copy", "pass_receiver", "pass_sum_0"]


@pytest.mark.parametrize(("level2", "cut"), [(2 << 20, False), (1 << 18, True)])
def test_parts_are_for_edges_that_the_caches_do_not_hold(monkeypatch, level2, cut):
    made_up = Machine(64, 32, level2, 480 << 20)
    monkeypatch.setattr("os.cpu_count", lambda: PARTS)
    assert made_up.num_parts(8 << 20) == (PARTS if cut else 0)
    monkeypatch.setattr("os.cpu_count", lambda: PARTS + 1)
    assert made_up.num_parts(8 << 20) == 0
