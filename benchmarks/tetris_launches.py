"""A training step of the Tetris network, for `benchmarks.launches`.

    python -m benchmarks.launches benchmarks/tetris_launches.py

The network of e3nn-jax's Tetris example (`model=tetris`), cross entropy and Adam, as `train.py`
runs it; the same network and parameters on e3nn-jax and on our kernels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import data, models
from eqfuse.training.flat import Flat
from eqfuse.training.tetris import training_step

BACKENDS = {"e3nn-jax": "e3nn", "eqfuse": "triton"}


def case(backend: str):
    """The step and the shapes of its arguments."""
    graph, labels = data.tetris()
    graph = jax.tree.map(jnp.asarray, graph)
    module = models.build("tetris", irreps_out="0o + 7x0e", backend=backend)
    key = jax.random.key(0)
    params = jax.eval_shape(module.init, key, graph.vectors, graph.species, graph.edges)
    flat = Flat.of(params)
    step, optimizer = training_step(module, flat, labels, lr=0.01)
    params = jax.ShapeDtypeStruct((flat.size,), flat.dtype)
    state = jax.eval_shape(optimizer.init, params)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), a.dtype), graph)
    return step, (params, state, shapes)


CASES = {f"tetris, {label}": (lambda b=b: case(b)) for label, b in BACKENDS.items()}
