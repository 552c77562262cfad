"""A training step of each model on energies and forces, for `benchmarks.launches`.

    python -m benchmarks.launches benchmarks/model_launches.py [NAME ...]

3 layers, 64 channels, l <= 2; energies, forces, the gradient of a loss on both, and Adam; at two
sizes. The same model and parameters run on e3nn-jax and on our kernels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse import models
from eqfuse.graph import Graph
from eqfuse.ops import Edges
from eqfuse.training.flat import Flat

SIZES = ((135, 2_700), (3_000, 160_000))
BACKENDS = {"e3nn-jax": "e3nn", "eqfuse": "triton"}
MODELS = {
    "nequip": {"layers": 3, "lmax": 2, "parity": True},
    "allegro": {"layers": 3, "lmax": 2, "parity": True},
    "mace": {"layers": 3, "lmax": 2, "hidden_lmax": 2},
}
NUM_SPECIES, NUM_GRAPHS = 4, 5


def batch(num_nodes: int, num_edges: int) -> Graph:
    """The shapes of a batch of five molecules."""
    index = np.zeros(num_edges, np.int32)
    graph = Graph(
        positions=np.zeros((num_nodes, 3), np.float32),
        species=np.zeros(num_nodes, np.int32),
        edges=Edges.from_arrays(index, index, num_nodes),
        shifts=np.zeros((num_edges, 3), np.float32),
        graph_index=np.zeros(num_nodes, np.int32),
        cells=np.zeros((NUM_GRAPHS, 3, 3), np.float32),
        node_mask=np.ones(num_nodes, bool),
        graph_mask=np.ones(NUM_GRAPHS, bool),
    )
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), graph)


def training_step(name: str, backend: str, num_nodes: int, num_edges: int):
    """A step of Adam on energies and forces, and the shapes of its arguments."""
    fields = {"channels": 64, "num_species": NUM_SPECIES, "avg_num_neighbors": 20.0}
    model = models.build(name, **fields, **MODELS[name], backend=backend)
    potential = models.Potential(model, (1.0,) * NUM_SPECIES, (0.0,) * NUM_SPECIES)
    optimizer = optax.adam(0.01)
    graph = batch(num_nodes, num_edges)
    vectors = jax.ShapeDtypeStruct((num_edges, 3), jnp.float32)
    params = jax.eval_shape(potential.init, jax.random.key(0), vectors, graph.species, graph.edges)
    flat = Flat.of(params)

    def loss(params, graph, energy, forces):
        prediction = models.predict(potential, flat.unflatten(params), graph)
        return jnp.mean((prediction.energy - energy) ** 2) + jnp.mean(
            (prediction.forces - forces) ** 2
        )

    def step(params, state, graph, energy, forces):
        value, gradient = jax.value_and_grad(loss)(params, graph, energy, forces)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params = jax.ShapeDtypeStruct((flat.size,), flat.dtype)
    state = jax.eval_shape(optimizer.init, params)
    labels = [jax.ShapeDtypeStruct((NUM_GRAPHS,), jnp.float32), graph.positions]
    return step, (params, state, graph, *labels)


CASES = {
    f"{name}, {size[0]} nodes, {size[1]} edges, {label}": (
        lambda name=name, backend=backend, size=size: training_step(name, backend, *size)
    )
    for name in MODELS
    for size in SIZES
    for label, backend in BACKENDS.items()
}
