"""A training step of the Tetris network, for `benchmarks.launches`.

    python -m benchmarks.launches tetris

The network of e3nn-jax's Tetris example, cross entropy and Adam, as `python train.py model=tetris`
runs it; the same network and parameters on e3nn-jax and on our kernels. Before them, the step as
e3nn-jax's example writes it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from benchmarks.launches import e3nn_tetris
from benchmarks.networks import normal
from eqfuse.train.flat import Flat
from examples.tetris import TetrisNet, cross_entropy, logits, shapes, training_step
from tests import interpreter  # noqa: F401  (runs the kernels on a CPU)

BACKENDS = {"e3nn-jax": "e3nn", "eqfuse": "triton"}


def case(backend: str):
    """Return the step and the shapes of its arguments."""
    graph, labels = shapes()
    graph = jax.tree.map(jnp.asarray, graph)
    module = TetrisNet(backend=backend)
    key = jax.random.key(0)
    params = jax.eval_shape(module.init, key, graph.vectors, graph.species, graph.edges)
    flat = Flat.of(params)
    step, optimizer = training_step(module, flat, labels, lr=0.01)
    params = jax.ShapeDtypeStruct((flat.size,), flat.dtype)
    state = jax.eval_shape(optimizer.init, params)
    graph = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), graph)
    return step, (params, state, graph)


def example():
    """Return the step of e3nn-jax's example, on its own network."""
    graph, labels = shapes()
    graph = jax.tree.map(jnp.asarray, graph)
    step, optimizer = e3nn_tetris.training_step(labels, lr=0.01)
    init = e3nn_tetris.Reference().init
    params = jax.eval_shape(init, jax.random.key(0), graph.positions, graph.edges)
    graph = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), graph)
    return step, (params, jax.eval_shape(optimizer.init, params), graph)


CASES = {"tetris, e3nn-jax's example": example}
CASES |= {f"tetris, {label}": (lambda b=b: case(b)) for label, b in BACKENDS.items()}


@functools.cache
def _difference(backend: str) -> float:
    graph, labels = shapes()
    graph = jax.tree.map(jnp.asarray, graph)
    modules = [TetrisNet(backend=b) for b in ("e3nn", backend)]
    arguments = jax.random.key(0), graph.vectors, graph.species, graph.edges
    rng = np.random.default_rng(0)
    params = jax.eval_shape(modules[0].init, *arguments)
    params = jax.tree.map(lambda s: normal(rng, *s.shape), params)

    def loss(module):
        return jax.value_and_grad(lambda p: cross_entropy(logits(module, p, graph), labels))

    with jax.default_matmul_precision("highest"):
        sides = [jax.jit(loss(module))(params) for module in modules]
    # three layers, each with the roundings of its sums
    return record.parity(*sides, tolerance=1e-4)


def parity(name: str) -> float:
    """Return the difference of loss and gradient from e3nn-jax's, interpreted; 0 for e3nn-jax."""
    return 0.0 if "e3nn" in name else _difference("triton")
