"""Rows that index arrays choose are prefetched one block ahead, and nothing else changes."""

import re

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.backends.llvm import form as codegen
from eqfuse.ops.backends.llvm.layout import Machine, Plan
from eqfuse.ops.ir import products
from tests.ops.ir.test_form import gradients

X, Y = "32x0e+32x1o", "0e+1o"  # paths: 0e0e, 0e1o, 1o0e, 1o1o -> 0e, 1e, 2e
COMPONENTS_OF_X, COMPONENTS_OUT, PATHS = 1 + 3, 1 + 3 + 3 + 1 + 3 + 5, 6


def fresh():
    codegen.generate.cache_clear()
    jax.clear_caches()


@pytest.fixture
def without(monkeypatch):
    """Return a function after which kernels have no prefetches."""

    def change():
        def plain(*args, prefetches, **kwargs):
            return Plan(*args, **kwargs)

        monkeypatch.setattr(codegen, "Plan", plain)
        fresh()

    yield change
    monkeypatch.undo()
    fresh()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("x", "y"), [(X, Y), ("128x0e+128x1o", Y), ("5x0e+3x2e", "0e+2e")])
def test_results_are_the_same_bit_by_bit(without, dtype, x, y):
    """Value, gradients, and the gradients of these; vectors, long rows, and packed rows."""
    rng = np.random.default_rng(0)
    nodes, num_edges = 20, 700
    edges = ops.Edges.from_arrays(*rng.integers(0, nodes, (2, num_edges)), nodes)
    weights = e3nn.tensor_product(x, y).num_irreps
    sizes = (nodes, e3nn.Irreps(x).dim), (num_edges, e3nn.Irreps(y).dim), (num_edges, weights)
    with jax.enable_x64(dtype == np.float64):
        arrays = [jnp.asarray(rng.normal(size=s), dtype) for s in sizes]

        def product(*a):
            xs, ys = e3nn.IrrepsArray(x, a[0]), e3nn.IrrepsArray(y, a[1])
            return ops.graph_tensor_product(xs, ys, a[2], edges, backend="llvm").array

        def backward(*a):
            out, pull = jax.vjp(product, *a)
            return out, pull(jnp.cos(out))

        def everything(*a):
            out, pull = jax.vjp(backward, *a)
            return out, pull(jax.tree.map(jnp.sin, out))

        found = jax.tree.map(np.asarray, jax.jit(everything)(*arrays))
        without()
        expected = jax.tree.map(np.asarray, jax.jit(everything)(*arrays))
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))
    assert all(np.isfinite(a).all() and a.any() for a in jax.tree.leaves(found))


def prefetches(module) -> dict[str, int]:
    """Return how many cache lines of rows each pass asks for in a turn of its loops."""
    counts = {}
    for text in module.text.split("define internal void ")[1:]:
        name = text[1 : text.index("(")]
        kinds = re.findall(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 0, i32 2, i32 1\)", text)
        assert len(kinds) == text.count("call void @llvm.prefetch")
        if name.startswith("pass_"):
            counts[name] = len(kinds)
    return counts


def product_form(on_graph: bool):
    irreps = e3nn.Irreps(X), e3nn.Irreps(Y)
    return products.tensor_product(
        *irreps, None, "component", weighted=True, on_graph=on_graph
    ).form


@pytest.mark.parametrize("machine", [Machine(64, 32), Machine(16, 8)])  # one group, and several
def test_what_is_gathered_is_prefetched_and_nothing_else(machine):
    """A line of y, and each vector of a component once, in its loop over channels."""
    form = product_form(True)
    forward = prefetches(codegen.generate(form, "float32", machine))
    assert forward == {"pass_copy": 0, "pass_receiver": 1 + COMPONENTS_OF_X + PATHS}
    derivatives = gradients(form)
    of_x = derivatives.restrict(tuple(o.index.is_node for o in derivatives.outputs))
    read = 1 + COMPONENTS_OUT + PATHS
    assert prefetches(codegen.generate(of_x, "float32", machine))["pass_sender"] == read
    # rows in order need none
    for form in (product_form(False), gradients(product_form(False))):
        assert not any(prefetches(codegen.generate(form, "float32", machine)).values())


@pytest.mark.parametrize(("machine", "long"), [(Machine(128, 32), False), (Machine(64, 32), True)])
def test_a_pass_that_writes_rows_prefetches_if_they_are_long(machine, long):
    """32 channels are one vector of 128 bytes, or two of 64."""
    counts = prefetches(codegen.generate(gradients(product_form(True)), "float32", machine))
    assert counts == {"pass_copy": 0, "pass_sender": (1 + COMPONENTS_OUT + PATHS) * long}
