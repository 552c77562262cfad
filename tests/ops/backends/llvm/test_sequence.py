"""Product and Linear of rows as one native kernel, in every order, against e3nn's definition."""

import dataclasses

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.backends.llvm.program import MOST_ROWS
from eqfuse.ops.ir.program import Program
from eqfuse.ops.primitives import choice
from tests.ops import tiers
from tests.ops.backends.llvm.test_llvm import REFUSED, assert_same_for_any_threads
from tests.ops.parity import assert_close, kind_of, only

jit = jax.jit


@dataclasses.dataclass(frozen=True)
class Graph:
    """A channelwise product with what is at the receivers, and a Linear, on a random graph."""

    receivers: np.ndarray
    nodes: int
    irreps: str = "5x0e+5x1o"
    out: str = "9x0e+4x1o+3x1e"

    def problem(self, backend: str, dtype):
        """Return a function that gives value, gradients and second derivatives, and its operands.

        Their numbers are the same in every dtype.
        """
        rng = np.random.default_rng(0)

        def normal(*shape):
            return jnp.asarray(rng.normal(size=shape).astype(np.float32), dtype)

        edges = ops.Edges.from_arrays(self.receivers, self.receivers, self.nodes)
        options = {"channelwise": True, "force_irreps_out": True, "backend": backend}
        module = ops.TensorProductLinear(self.out, **options)

        def value(params, x, y):
            x, y = (e3nn.IrrepsArray(self.irreps, a) for a in (x, y))
            return module.apply(params, x, y, edges=edges).array

        size = e3nn.Irreps(self.irreps).dim
        x, y = normal(edges.num_edges, size), normal(self.nodes, size)
        arrays = (e3nn.IrrepsArray(self.irreps, a) for a in (x, y))
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *arrays, edges=edges))
        params = jax.tree.map(lambda s: normal(*s.shape), shapes)
        cotangent = normal(edges.num_edges, e3nn.Irreps(self.out).dim)

        def loss(params, x, y):
            """Return the loss of what a force is made of."""
            forces = jax.vjp(lambda x, y: value(params, x, y), x, y)[1](cotangent)
            return sum(jnp.sum(jnp.sin(f)) for f in forces)

        def everything(*operands):
            first = jax.vjp(value, *operands)[1](cotangent)
            return value(*operands), first, jax.grad(loss, (0, 1, 2))(*operands)

        return everything, (params, x, y)

    def result(self, backend: str, dtype):
        function, operands = self.problem(backend, dtype)
        return jit(function)(*operands)


RANDOM = np.random.default_rng(1)
GRAPHS = {
    "more edges of a node than a block": Graph(RANDOM.integers(0, 3, 3 * MOST_ROWS), 3),
    "isolated nodes everywhere": Graph(2 * RANDOM.integers(5, 40, 101), 90),
    "whole blocks": Graph(np.repeat(np.arange(4), MOST_ROWS), 4),
    "sorted": Graph(np.sort(RANDOM.integers(0, 70, 333)), 70),
    "small blocks": Graph(RANDOM.integers(0, 9, 70), 9, "128x0e+128x1o+128x1e", "8x0e+8x1o+8x1e"),
    "one node has most edges": Graph(
        np.concatenate([np.full(300, 7), RANDOM.integers(0, 40, 60)]), 41
    ),
    "one node": Graph(np.zeros(7, int), 1),
    "many channels": Graph(RANDOM.integers(0, 9, 80), 9, "64x0e+64x1o", "33x0e+64x1o+16x1e"),
}


def chains(kernels) -> list[Program]:
    """Return those of the kernels that are of sequences, of which there are some."""
    found = [what for what in kernels if isinstance(what, Program)]
    assert found
    return found


# a node of many edges is computed in parts, and one of none not at all
SOME = ["isolated nodes everywhere", "more edges of a node than a block"]


@pytest.mark.parametrize("name", tiers.slow_unless(SOME, *GRAPHS))
def test_graphs_of_all_kinds(name, kernels, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16."""
    expected = GRAPHS[name].result("e3nn", np.float64)
    with only("llvm"):
        found = GRAPHS[name].result("llvm", np.float64)
    assert_close(found, expected, 1e-12)
    kinds = [tuple(kind_of(step.form) for step in sequence.steps) for sequence in chains(kernels)]
    forward, backward, double = (
        ("product", "matrices"),
        ("product", "matrices", "product"),
        ("matrices", "product", "matrices"),
    )
    assert {forward, backward, double} <= set(kinds)


def test_results_depend_on_no_threads_and_no_other_calls(kernels):
    function, operands = GRAPHS["sorted"].problem("llvm", np.float32)
    assert_same_for_any_threads(jit(function), *operands)
    assert chains(kernels)


def test_few_rows_and_large_matrices_are_no_chain():
    """Their steps are faster alone: one kernel for each, or XLA's matmuls."""
    rng = np.random.default_rng(0)

    def num_calls(rows, irreps):
        module = ops.TensorProductLinear(irreps, backend="llvm")
        x = e3nn.IrrepsArray(irreps, jnp.asarray(rng.normal(size=(rows, e3nn.Irreps(irreps).dim))))
        y = e3nn.IrrepsArray("0e", jnp.ones((rows, 1)))
        params = jax.eval_shape(lambda: module.init(jax.random.key(0), x, y))
        params = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), params)
        text = jax.jit(module.apply).lower(params, x, y).as_text()
        return text.count("custom_call @eqfuse"), text.count("dot_general")

    fewest = choice.FEWEST_ROWS
    assert num_calls(fewest - 1, "8x0e+8x1o") == (2, 0)
    assert num_calls(fewest, "8x0e+8x1o") == (1, 0)
    assert num_calls(fewest, "512x0e") == (1, 1)


def test_wrong_indices_never_crash(kernels):
    """Refuse receivers out of range, and those within it that do not fit the order."""
    graph, rng = GRAPHS["isolated nodes everywhere"], np.random.default_rng(0)
    good = ops.Edges.from_arrays(graph.receivers, graph.receivers, graph.nodes)
    module = ops.TensorProductLinear(
        graph.out, channelwise=True, force_irreps_out=True, backend="llvm"
    )
    size = e3nn.Irreps(graph.irreps).dim
    x, y = (
        e3nn.IrrepsArray(graph.irreps, jnp.asarray(rng.normal(size=(n, size)), jnp.float32))
        for n in (good.num_edges, graph.nodes)
    )
    params = module.init(jax.random.key(0), x, y, edges=good)

    @jax.jit
    def gradient(receivers):
        edges = dataclasses.replace(good, receivers=receivers)
        return jax.grad(lambda y: jnp.sum(module.apply(params, x, y, edges=edges).array))(y)

    gradient(graph.receivers.astype(np.int32))
    for _ in range(20):
        others = rng.integers(0, graph.nodes, good.num_edges).astype(np.int32)
        with pytest.raises(ValueError, match=r"receiver_order\[\d+\] is \d+, and"):
            jax.block_until_ready(gradient(others))
    assert chains(kernels)
    for value in (-1, graph.nodes, 2**31 - 1):
        damaged = graph.receivers.astype(np.int32)
        damaged[17] = value
        with pytest.raises(REFUSED, match=rf"receivers\[17\] is {value}, outside"):
            jax.block_until_ready(gradient(damaged))
