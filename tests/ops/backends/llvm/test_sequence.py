"""Product and Linear of rows as one native kernel, in every order, against e3nn's definition."""

import dataclasses
import functools

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
from tests.ops.cases import random_arrays
from tests.ops.layers import CHANNELWISE, FORCED, Layer
from tests.ops.parity import assert_close, kind_of, only


@dataclasses.dataclass(frozen=True)
class AtReceivers(Layer):
    """A channelwise product with what is at the receivers, and a Linear."""

    receivers: tuple[int, ...] = ()

    @functools.cached_property
    def edges(self):
        return ops.Edges.from_arrays(self.receivers, self.receivers, self.num_nodes)


def graph(receivers, nodes: int, x: str = "5x0e+5x1o", out: str = "9x0e+4x1o+3x1e") -> Layer:
    options = tuple((CHANNELWISE | FORCED).items())
    sizes = {"num_nodes": nodes, "num_edges": len(receivers), "receivers": tuple(receivers)}
    return AtReceivers(ops.TensorProductLinear, x, x, out, True, False, options=options, **sizes)


RANDOM = np.random.default_rng(1)
GRAPHS = {
    "more edges of a node than a block": graph(RANDOM.integers(0, 3, 3 * MOST_ROWS), 3),
    "isolated nodes everywhere": graph(2 * RANDOM.integers(5, 40, 101), 90),
    "whole blocks": graph(np.repeat(np.arange(4), MOST_ROWS), 4),
    "sorted": graph(np.sort(RANDOM.integers(0, 70, 333)), 70),
    "small blocks": graph(RANDOM.integers(0, 9, 70), 9, "128x0e+128x1o+128x1e", "8x0e+8x1o+8x1e"),
    "one node has most edges": graph(np.append(np.full(300, 7), RANDOM.integers(0, 40, 60)), 41),
    "one node": graph(np.zeros(7, int), 1),
    "many channels": graph(RANDOM.integers(0, 9, 80), 9, "64x0e+64x1o", "33x0e+64x1o+16x1e"),
}


def chains(kernels) -> list[Program]:
    """Return those of the kernels that are of sequences, of which there are some."""
    found = [what for what in kernels if isinstance(what, Program)]
    assert found
    return found


def problem(case: Layer, backend: str, dtype):
    """Return a function that gives value, gradients and those of a loss on forces; its operands."""
    function, count = case.function(backend), case.num_parameters
    operands = [jnp.asarray(a, dtype) for a in case.operands()]
    cotangent = jnp.asarray(random_arrays(case.shapes()[-1:], 1)[0], dtype)

    def loss(*operands):
        of_arrays = functools.partial(function, *operands[:count])
        forces = jax.vjp(of_arrays, *operands[count:])[1](cotangent)
        return sum(jnp.sum(jnp.sin(f)) for f in forces)

    def everything(*operands):
        out, pull = jax.vjp(function, *operands)
        return out, pull(cotangent), jax.grad(loss, tuple(range(len(operands))))(*operands)

    return jax.jit(everything), operands


# a node of many edges is computed in parts, and one of none not at all
SOME = ["isolated nodes everywhere", "more edges of a node than a block"]


@pytest.mark.parametrize("name", tiers.slow_unless(SOME, *GRAPHS))
def test_graphs_of_all_kinds(name, kernels, x64):
    """Float64, 1e-12: sums of at most a few hundred products, each rounded to 1e-16."""
    theirs, ours = (problem(GRAPHS[name], backend, "float64") for backend in ("e3nn", "llvm"))
    expected = theirs[0](*theirs[1])
    with only("llvm"):
        found = ours[0](*ours[1])
    assert_close(found, expected, 1e-12)
    kinds = {tuple(kind_of(step.form) for step in sequence.steps) for sequence in chains(kernels)}
    forward, backward, double = (
        ("product", "matrices"),
        ("product", "matrices", "product"),
        ("matrices", "product", "matrices"),
    )
    assert {forward, backward, double} <= kinds


def test_results_depend_on_no_threads_and_no_other_calls(kernels):
    function, operands = problem(GRAPHS["sorted"], "llvm", "float32")
    assert_same_for_any_threads(function, *operands)
    assert chains(kernels)


def test_few_rows_and_large_matrices_are_no_chain():
    """Their steps are faster alone: one kernel for each, or XLA's matmuls."""

    def num_calls(rows, irreps):
        module = ops.TensorProductLinear(irreps, backend="llvm")
        x = e3nn.IrrepsArray(irreps, jnp.ones((rows, e3nn.Irreps(irreps).dim)))
        y = e3nn.IrrepsArray("0e", jnp.ones((rows, 1)))
        params = jax.eval_shape(lambda: module.init(jax.random.key(0), x, y))
        text = jax.jit(module.apply).lower(params, x, y).as_text()
        return text.count("custom_call @eqfuse"), text.count("dot_general")

    fewest = choice.FEWEST_ROWS
    assert num_calls(fewest - 1, "8x0e+8x1o") == (2, 0)
    assert num_calls(fewest, "8x0e+8x1o") == (1, 0)
    assert num_calls(fewest, "512x0e") == (1, 1)


def test_wrong_indices_never_crash(kernels):
    """Refuse receivers out of range, and those within it that do not fit the order."""
    case, rng = GRAPHS["isolated nodes everywhere"], np.random.default_rng(0)
    params, (x, y) = case.split(problem(case, "llvm", "float32")[1])

    @jax.jit
    def gradient(receivers):
        edges = dataclasses.replace(case.edges, receivers=receivers)

        def total(y):
            operands = e3nn.IrrepsArray(case.x, x), e3nn.IrrepsArray(case.y, y)
            return jnp.sum(case.module("llvm").apply(params, *operands, edges=edges).array)

        return jax.grad(total)(y)

    good = np.array(case.receivers, np.int32)
    gradient(good)
    for _ in range(20):
        others = rng.integers(0, case.num_nodes, len(good)).astype(np.int32)
        with pytest.raises(ValueError, match=r"receiver_order\[\d+\] is \d+, and"):
            jax.block_until_ready(gradient(others))
    assert chains(kernels)
    for value in (-1, case.num_nodes, 2**31 - 1):
        damaged = good.copy()
        damaged[17] = value
        with pytest.raises(REFUSED, match=rf"receivers\[17\] is {value}, outside"):
            jax.block_until_ready(gradient(damaged))
