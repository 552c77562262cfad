"""`ops.sequence`: a traced function in one native call, and what it leaves to XLA."""

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import data, models, ops
from eqfuse.training.flat import Flat
from eqfuse.training.tetris import cross_entropy, logits

NATIVE_CALL = "eqfuse_native"


def tetris(backend: str):
    """Loss of the Tetris network, of all parameters in one array and the graph; and these."""
    graph, labels = data.tetris()
    graph = jax.tree.map(jnp.asarray, graph)
    module = models.build("tetris", irreps_out="0o + 7x0e", backend=backend)
    arguments = graph.vectors, graph.species, graph.edges
    shapes = jax.eval_shape(module.init, jax.random.key(0), *arguments)
    flat, rng = Flat.of(shapes), np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=flat.size), jnp.float32)

    def loss(params, graph):
        return cross_entropy(logits(module, flat.unflatten(params), graph), labels)

    return loss, (params, graph)


def native_calls(function, args) -> int:
    """Calls of native kernels in the compiled function."""
    text = jax.jit(function).lower(*args).compile().as_text()
    return text.count('custom_call_target="eqfuse_')


def close(found, expected, tolerance: float):
    """Check the largest difference, as a fraction of the largest element of each array."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 1e-30)


def test_tetris_is_one_native_call_with_the_gradients_of_e3nn(capsys):
    loss, args = tetris("llvm")
    reference, _ = tetris("e3nn")
    step = ops.sequence(jax.value_and_grad(loss), report=True)
    assert native_calls(step, args) == 1
    assert "of them products and Linears | a native call of" in capsys.readouterr().out
    # three layers, each with the roundings of its sums, as in benchmarks/tetris_launches.py
    close(step(*args), jax.jit(jax.value_and_grad(reference))(*args), 1e-4)


def test_gradients_of_a_sequence_are_those_of_the_function():
    loss, args = tetris("llvm")
    close(jax.grad(ops.sequence(loss))(*args), jax.grad(loss)(*args), 1e-5)
