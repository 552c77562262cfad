"""`ops.sequence`: a traced function in one native call, and what it leaves to XLA."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.networks import random_graph, step_on
from benchmarks.steps.sequences import tetris
from eqfuse import ops
from tests.ops.parity import assert_close


def native_calls(function, args) -> int:
    """Return calls of native kernels in the compiled function."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return text.count('custom_call_target="eqfuse_')


def test_tetris_is_one_native_call_with_the_gradients_of_e3nn(capsys):
    """In the state of Adam, which a step of it returns."""
    step, args = tetris("llvm")
    sequence = ops.sequence(step, report=True)
    assert native_calls(sequence, args) == 1
    assert re.fullmatch(r"one native call of \d+ steps\n", capsys.readouterr().out)
    # three layers, each with the roundings of its sums, as in benchmarks/launches/tetris.py
    assert_close(sequence(*args), jax.jit(tetris("e3nn")[0])(*args), 1e-4)


def potential(name: str, dtype):
    """Return the gradient of a loss on energy and forces by backend, and its arguments."""
    timed = step_on(random_graph(30, neighbours=5), name, channels=4, layers=2, lmax=1)
    cast = functools.partial(jax.tree.map, lambda a: a.astype(dtype) if a.dtype.kind == "f" else a)
    return timed.function, cast(timed.args)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), [("nequip", 1), ("mace", 1), ("allegro", 10)])
def test_potentials_are_few_native_calls_with_the_gradients_of_e3nn(name, calls):
    """XLA sums the gradients of Allegro's path weights over edges, between native calls."""
    with jax.enable_x64(True):
        step, args = potential(name, jnp.float64)
        sequenced = ops.sequence(step("llvm"), most=np.inf)
        assert native_calls(sequenced, args) == calls
        # gradients of forces through two layers, in float64
        assert_close(sequenced(*args), jax.jit(step("e3nn"))(*args), 1e-10)


def small(x):
    """Return something with a Linear in it."""
    return jnp.sin(ops.grouped_dense(x, [x @ x.T], scale=1.0, backend="llvm")) + 1


SQUARE = jnp.asarray(np.random.default_rng(3).normal(size=(4, 4)), jnp.float32)


def test_sequence_around_an_operation_without_a_step_is_two_native_calls(capsys):
    def function(x):  # of a sine of arguments whose last digit is less than the tolerance
        return small(0.1 * jnp.cumsum(small(x), axis=0))

    assert_close(ops.sequence(function, report=True)(SQUARE), function(SQUARE), 1e-5)
    report = capsys.readouterr().out
    assert "2 native calls of" in report
    assert "XLA computes 1: cumsum has no step" in report


def test_segments_and_a_readout_as_with_jraph_are_one_native_call():
    """Segments by `repeat`, whose cumsum and scatter have no step, matmuls, labels of a loss."""

    def loss(x, sizes, weights, labels):
        segments = jnp.repeat(jnp.arange(2), sizes, total_repeat_length=4)
        z = jax.ops.segment_sum(small(x), segments, 2) @ weights
        chosen = jax.nn.log_softmax(z)[jnp.arange(2), labels]
        return -chosen.mean()

    args = SQUARE, jnp.array([1, 3]), SQUARE[:, :3], jnp.array([2, 0])
    step = jax.value_and_grad(loss, (0, 2))
    assert native_calls(ops.sequence(step), args) == 1
    assert_close(ops.sequence(step)(*args), step(*args), 1e-5)


def test_large_matmuls_are_those_of_xla(capsys):
    def function(x):
        wide = jnp.broadcast_to(small(x)[:, :1], (4, 3000))
        return wide.T @ wide[:, :8]

    found = ops.sequence(function, report=True)(SQUARE)
    assert "matmuls so large that they are XLA's" in capsys.readouterr().out
    assert_close(found, function(SQUARE), 1e-6)


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (small, {"most": 1}, "it writes more elements than 1"),
        (lambda x: jnp.sin(x), {}, 'no product and no Linear on backend "llvm"'),
        (
            lambda x: ops.grouped_dense(x, [x], scale=1.0, backend="xla"),
            {},
            'no product and no Linear on backend "llvm"',
        ),
        (
            lambda x: (jax.debug.callback(lambda: None), small(x))[1],
            {},
            "it has effects, such as a debug print",
        ),
    ],
)
def test_sequence_is_computed_as_it_is_written(function, options, reason):
    said = []
    found = ops.sequence(function, report=said.append, **options)(SQUARE)
    assert_close(found, function(SQUARE), 1e-6)
    assert said == [f"as written: {reason}"]


def test_constants_of_an_outer_trace_and_other_arguments():
    @jax.jit
    def outer(x):
        return ops.sequence(lambda y, flag, z=None: small(x * y) if flag else y, static_argnums=1)(
            x, True, z=None
        )

    x = 0.5 * SQUARE  # arguments of a sine whose last digit is less than the tolerance
    assert_close(outer(x), small(x * x), 1e-6)


def test_edges_out_of_range_are_refused_as_without_it():
    step, (params, graph, targets) = potential("nequip", jnp.float32)
    wrong = dataclasses.replace(graph.edges, senders=jnp.asarray(graph.edges.senders).at[3].set(7))
    graph = dataclasses.replace(graph, edges=wrong)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"senders\[3\] is 7, outside \[0, 6\)"):
        jax.block_until_ready(ops.sequence(step("llvm"))(params, graph, targets))


def test_weak_types_stay():
    assert ops.sequence(lambda x, y: (small(x), 3 * y))(SQUARE, 2.0)[1].weak_type
