"""Batches of molecules, and training steps of the three models on them, for any backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.problems import random_edges
from benchmarks.work import step_work
from eqfuse import models, ops
from eqfuse.graph import Graph


@dataclasses.dataclass(frozen=True)
class Timed:
    """One computation, by backend.

    Attributes:
      function: backend -> a function of `args`.
      bytes, operations: the least that it moves and computes, counted from the form; 0 if unknown.
    """

    function: Callable
    args: tuple
    bytes: int = 0
    operations: int = 0


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def molecules(count: int = 5, atoms: int = 27, cutoff: float = 5.0) -> Graph:
    """Return random molecules of the size and density of 3BPA."""
    rng = np.random.default_rng(0)
    positions, senders, receivers = [], [], []
    for n in range(count):
        grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)
        r = 1.9 * grid[:atoms] + rng.normal(size=(atoms, 3)) * 0.2
        distance = np.linalg.norm(r[:, None] - r, axis=-1)
        found = np.nonzero((distance < cutoff) & (distance > 0))
        positions.append(r)
        senders.append(found[0] + n * atoms)
        receivers.append(found[1] + n * atoms)
    nodes = count * atoms
    edges = ops.Edges.from_arrays(np.concatenate(senders), np.concatenate(receivers), nodes)
    return Graph(
        positions=jnp.asarray(np.concatenate(positions), jnp.float32),
        species=jnp.asarray(rng.integers(0, 4, nodes), jnp.int32),
        edges=edges,
        shifts=jnp.zeros((edges.num_edges, 3), jnp.float32),
        graph_index=jnp.asarray(np.repeat(np.arange(count), atoms), jnp.int32),
        cells=jnp.zeros((count, 3, 3), jnp.float32),
        node_mask=jnp.ones(nodes, bool),
        graph_mask=jnp.ones(count, bool),
    )


def random_graph(num_edges: int, neighbours: int = 20) -> Graph:
    """Return one graph of `num_edges / neighbours` atoms, with edges between any two of them."""
    rng = np.random.default_rng(0)
    nodes = max(num_edges // neighbours, 2)
    return Graph(
        positions=2 * normal(rng, nodes, 3),
        species=jnp.asarray(rng.integers(0, 4, nodes), jnp.int32),
        edges=random_edges(nodes, num_edges, grouped=False),
        shifts=jnp.zeros((num_edges, 3), jnp.float32),
        graph_index=jnp.zeros(nodes, jnp.int32),
        cells=jnp.zeros((1, 3, 3), jnp.float32),
        node_mask=jnp.ones(nodes, bool),
        graph_mask=jnp.ones(1, bool),
    )


def training_step(
    name: str = "nequip",
    channels: int = 64,
    num_molecules: int = 5,
    layers: int = 3,
    counted: bool = False,
) -> Timed:
    """Return the gradient of a loss on energies and forces of molecules of 27 atoms.

    Args:
      name: of the model; l <= 2, else the defaults.
      channels, layers: of it.
      num_molecules: in the batch.
      counted: see `step_on`.
    """
    graph = molecules(num_molecules)
    return step_on(graph, name, counted, channels=channels, layers=layers)


def potential_on(graph: Graph, name: str, **fields):
    """Return a model for a batch, as a function of the backend, and parameters of it.

    Parameters are normal numbers, as most of e3nn-jax's are, for which nothing is compiled.
    """

    def potential(backend):
        neighbours = graph.edges.num_edges / graph.positions.shape[0]
        common = {"irreps_out": "0e", "num_species": 4, "avg_num_neighbors": neighbours}
        common["radial"] = "network" if backend == "e3nn" else "auto"  # e3nn-jax has no tables
        model = models.build(name, **common | fields, backend=backend)
        return models.Potential(model=model, scale=(1.0,) * 4, shift=(0.0,) * 4)

    arguments = (graph.vectors, graph.species, graph.edges)
    shapes = jax.eval_shape(potential("e3nn").init, jax.random.key(0), *arguments)
    rng = np.random.default_rng(2)
    return potential, jax.tree.map(lambda s: normal(rng, *s.shape), shapes)


def step_on(graph: Graph, name: str, counted: bool = False, **fields) -> Timed:
    """Return the gradient of a loss on energies and forces.

    Args:
      graph: a batch.
      counted: whether its work is counted, by `step_work`.
      name, fields: of the model.
    """
    targets = normal(np.random.default_rng(1), graph.positions.shape[0], 3)
    potential, params = potential_on(graph, name, **fields)

    def function(backend):
        def loss(params, graph, targets):
            prediction = models.predict(potential(backend), params, graph)
            return jnp.sum(prediction.energy**2) + jnp.sum((prediction.forces - targets) ** 2)

        return jax.value_and_grad(loss)

    args = (params, graph, targets)
    moved, operations = step_work(function("llvm"), args) if counted else (0, 0)
    return Timed(function, args, moved, operations)
