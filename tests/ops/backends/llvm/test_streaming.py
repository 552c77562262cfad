"""Large outputs of rows are written past the caches, with the same numbers."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.backends.llvm import form as codegen
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.ir import products
from tests.ops.ir.test_form import gradients

X, Y = "32x0e+16x1o+16x2e", "0e+1o"


def product_form(x=X, y=Y):
    return products.tensor_product(e3nn.Irreps(x), e3nn.Irreps(y), None, "component").form


@pytest.fixture
def limit(monkeypatch):
    """Return a function that sets the bytes from which on outputs are streamed, and the parts."""

    def change(size, parts=0):
        monkeypatch.setattr(Machine, "streamed_bytes", size)
        monkeypatch.setattr(Machine, "num_parts", lambda self, num_bytes: parts)
        codegen.generate.cache_clear()
        jax.clear_caches()

    yield change
    monkeypatch.undo()
    codegen.generate.cache_clear()
    jax.clear_caches()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_rows", [1, 15, 16, 257])
def test_streamed_rows_are_the_stored_ones(limit, dtype, num_rows):
    """Bit by bit: the product, and the gradients, which are outputs of rows too."""
    with jax.enable_x64(dtype == np.float64):
        rng = np.random.default_rng(0)
        irreps = e3nn.Irreps(X), e3nn.Irreps(Y)
        arrays = [jnp.asarray(rng.normal(size=(num_rows, i.dim)), dtype) for i in irreps]

        def results(size):
            limit(size)

            def product(*arrays):
                operands = map(e3nn.IrrepsArray, irreps, arrays)
                return ops.tensor_product(*operands, backend="llvm").array

            @jax.jit
            def everything(*arrays):
                out, back = jax.vjp(product, *arrays)
                return out, back(jnp.cos(out))

            return jax.tree.map(np.asarray, everything(*arrays))

        assert jax.tree.all(jax.tree.map(np.array_equal, results(0), results(1 << 60)))


@pytest.mark.parametrize(("dtype", "parts"), [(np.float32, 0), (np.float64, 0), (np.float32, 8)])
def test_gradients_of_long_rows_of_edges_are_streamed(limit, dtype, parts):
    """Bit by bit: the rows of edges are written among sums over the edges of nodes."""
    x, y, nodes, num_edges = "64x0e+64x1o", "0e+1o", 7, 50
    form = products.tensor_product(
        e3nn.Irreps(x), e3nn.Irreps(y), None, "component", weighted=True, on_graph=True
    ).form
    text = codegen.generate(gradients(form), "float32", Machine(64, 32)).text
    assert text.count("!nontemporal") == text.count("fence seq_cst") * len(form.paths) > 0
    with jax.enable_x64(dtype == np.float64):
        rng = np.random.default_rng(0)
        edges = ops.Edges.from_arrays(*rng.integers(0, nodes, (2, num_edges)), nodes)
        weights = e3nn.tensor_product(x, y).num_irreps
        sizes = (nodes, e3nn.Irreps(x).dim), (num_edges, e3nn.Irreps(y).dim), (num_edges, weights)
        arrays = [jnp.asarray(rng.normal(size=s), dtype) for s in sizes]

        def results(size):
            limit(size, parts)

            def product(*a):
                xs, ys = e3nn.IrrepsArray(x, a[0]), e3nn.IrrepsArray(y, a[1])
                return ops.graph_tensor_product(xs, ys, a[2], edges, backend="llvm").array

            def everything(*a):
                out, back = jax.vjp(product, *a)
                return back(jnp.cos(out))

            return jax.tree.map(np.asarray, jax.jit(everything)(*arrays))

        assert jax.tree.all(jax.tree.map(np.array_equal, results(0), results(1 << 60)))


def test_only_whole_vectors_are_streamed():
    """Multiplicities that fill no vectors, and sums over edges, are stored."""
    machine = Machine(64, 32)
    text = codegen.generate(product_form(), "float32", machine).text
    assert "!nontemporal" in text
    assert "fence seq_cst" in text
    for form in (
        product_form("5x0e+5x1o"),
        product_form("16x0e+8x1o"),
        products.tensor_product(
            e3nn.Irreps(X), e3nn.Irreps(Y), None, "component", on_graph=True
        ).form,
    ):
        text = codegen.generate(form, "float32", machine).text
        assert "!nontemporal" not in text
        assert "fence seq_cst" not in text
