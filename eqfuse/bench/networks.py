"""A training step of each model on energies and forces, as `eqfuse bench` times it.

3 layers, 64 channels, l <= 2; energies, forces, the gradient of a loss on both, and Adam. The same
model and parameters run on e3nn-jax and on our kernels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse import models
from eqfuse.graph import Graph
from eqfuse.ops import Edges
from eqfuse.train.flat import Flat

MODELS = {
    "nequip": {"layers": 3, "lmax": 2, "parity": True},
    "allegro": {"layers": 3, "lmax": 2, "parity": True},
    "mace": {"layers": 3, "lmax": 2, "hidden_lmax": 2},
}
NUM_SPECIES, NUM_GRAPHS = 4, 5


def batch(num_nodes: int, num_edges: int) -> Graph:
    """Return the shapes of a batch of five molecules."""
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


def potential_of(name: str, backend: str, **others) -> models.Potential:
    """Return a model with energies and forces, with other fields of the model where given."""
    fields = {"channels": 64, "num_species": NUM_SPECIES, "avg_num_neighbors": 20.0}
    fields["radial"] = "network" if backend == "e3nn" else "auto"  # e3nn-jax has no tables
    model = models.build(name, **fields | MODELS[name] | others, backend=backend)
    return models.Potential(model, (1.0,) * NUM_SPECIES, (0.0,) * NUM_SPECIES)


def shapes_of(potential: models.Potential, graph: Graph):
    """Return shapes of the parameters."""
    vectors = jax.ShapeDtypeStruct((graph.edges.num_edges, 3), jnp.float32)
    key = jax.random.key(0)
    return jax.eval_shape(potential.init, key, vectors, graph.species, graph.edges)


def loss(potential, params, graph, energy, forces):
    """Return the squared errors of energies and forces."""
    prediction = models.predict(potential, params, graph)
    energies = jnp.mean((prediction.energy - energy) ** 2)
    return energies + jnp.mean((prediction.forces - forces) ** 2)


def training_step(name: str, backend: str, num_nodes: int, num_edges: int, **others):
    """Return a step of Adam on energies and forces, and the shapes of its arguments.

    Args:
      name, backend, others: see `potential_of`.
      num_nodes, num_edges: see `batch`.
    """
    potential, graph = potential_of(name, backend, **others), batch(num_nodes, num_edges)
    optimizer = optax.adam(0.01)
    flat = Flat.of(shapes_of(potential, graph))

    def loss_of(params, *args):
        return loss(potential, flat.unflatten(params), *args)

    def step(params, state, *args):
        value, gradient = jax.value_and_grad(loss_of)(params, *args)
        with jax.named_scope("optimizer"):
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(params, updates), state, value

    params = jax.ShapeDtypeStruct((flat.size,), flat.dtype)
    state = jax.eval_shape(optimizer.init, params)
    labels = [jax.ShapeDtypeStruct((NUM_GRAPHS,), jnp.float32), graph.positions]
    return step, (params, state, graph, *labels)
