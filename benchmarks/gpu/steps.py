"""A training step of each model on energies and forces, on e3nn-jax and on eqfuse.

3 layers, 64 channels, l <= 2; energies, forces, the gradient of a loss on both, and Adam. Networks
of `PUBLISHED` are like MACE-MP-0 and MACE-OFF23. The same model and parameters run on both.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse import models, ops
from eqfuse.graph import Graph
from eqfuse.train.flat import Flat

MODELS = {
    "nequip": {"layers": 3, "lmax": 2, "parity": True},
    "allegro": {"layers": 3, "lmax": 2, "parity": True},
    "mace": {"layers": 3, "lmax": 2, "hidden_lmax": 2},
}
_MACE = {"layers": 2, "lmax": 3}
PUBLISHED = {
    f"mace-{of}-{size}": _MACE | {"channels": c, "hidden_lmax": lmax, "first_skip": of == "mp"}
    for of, channels in {"mp": (128, 128, 128), "off": (96, 128, 192)}.items()
    for lmax, (size, c) in enumerate(zip("sml", channels, strict=True))
}
NUM_SPECIES, NUM_GRAPHS, CUTOFF = 4, 5, 5.0  # Å


def shapes_of_batch(num_nodes: int, num_edges: int) -> Graph:
    index, boxes = np.zeros(num_edges, np.int32), np.zeros(num_nodes, np.int32)
    graph = _graph(np.zeros((num_nodes, 3)), index, index, np.zeros((num_edges, 3)), boxes, boxes)
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), graph)


def _graph(positions, senders, receivers, shifts, species, graph_index, graphs=NUM_GRAPHS):
    return Graph(
        positions=positions.astype(np.float32),
        species=species.astype(np.int32),
        edges=ops.Edges.from_arrays(senders, receivers, len(positions)),
        shifts=shifts.astype(np.float32),
        graph_index=graph_index.astype(np.int32),
        cells=np.zeros((graphs, 3, 3), np.float32),
        node_mask=np.ones(len(positions), bool),
        graph_mask=np.ones(graphs, bool),
    )


def batch(nodes: int, edges: int, graphs: int = NUM_GRAPHS) -> Graph:
    """Make boxes of atoms whose density suits the cutoff; the shortest pairs are edges."""
    atoms = nodes // graphs
    rng = np.random.default_rng(0)
    parts = [_box(rng, atoms, edges // graphs // 2) for _ in range(graphs)]
    positions, pairs, shifts = (np.concatenate(side) for side in zip(*parts, strict=True))
    boxes = np.repeat(np.arange(graphs), atoms)
    senders, receivers = pairs.T + np.repeat(np.arange(graphs) * atoms, edges // graphs)
    order = np.lexsort((senders, receivers))
    species = rng.integers(0, NUM_SPECIES, nodes)
    ends = senders[order], receivers[order]
    return _graph(positions, *ends, shifts[order], species, boxes, graphs)


def _box(rng, atoms: int, bonds: int):
    """Return positions [atoms, 3] Å, pairs [2 bonds, 2] and shifts [2 bonds, 3] Å."""
    cells = int(np.ceil(atoms ** (1 / 3)))
    grid = np.stack(np.meshgrid(*[np.arange(cells)] * 3), -1).reshape(-1, 3)[:atoms]
    spacing = 0.9 * CUTOFF / (2 * bonds / atoms * 3 / (4 * np.pi)) ** (1 / 3)
    positions = spacing * (grid + rng.uniform(-0.2, 0.2, (atoms, 3)))
    side = spacing * cells
    i, j = np.triu_indices(atoms, 1)
    if len(i) < bonds:
        raise ValueError(f"{atoms} atoms have {len(i)} pairs, fewer than {bonds} bonds")
    difference = positions[j] - positions[i]
    shift = -side * np.round(difference / side)
    nearest = np.argsort(np.linalg.norm(difference + shift, axis=-1), kind="stable")[:bonds]
    i, j, shift = i[nearest], j[nearest], shift[nearest]
    pairs = np.concatenate([np.stack([j, i], -1), np.stack([i, j], -1)])
    return positions, pairs, np.concatenate([shift, -shift])


def potential_of(name: str, backend: str, **others) -> models.Potential:
    """Return a model with energies and forces, with other fields of the model where given."""
    fields = {"channels": 64, "num_species": NUM_SPECIES, "avg_num_neighbors": 20.0}
    fields["radial"] = "network" if backend == "e3nn" else "auto"  # e3nn-jax has no tables
    model = models.build(name, **fields | MODELS[name] | others, backend=backend)
    return models.Potential(model, (1.0,) * NUM_SPECIES, (0.0,) * NUM_SPECIES)


def shapes_of(potential: models.Potential, graph: Graph):
    vectors = jax.ShapeDtypeStruct((graph.edges.num_edges, 3), jnp.float32)
    key = jax.random.key(0)
    return jax.eval_shape(potential.init, key, vectors, graph.species, graph.edges)


def loss(potential, params, graph, energy, forces):
    found = models.predict(potential, params, graph)
    return jnp.mean((found.energy - energy) ** 2) + jnp.mean((found.forces - forces) ** 2)


def training_step(name: str, backend: str, num_nodes: int, num_edges: int, **others):
    """Return a step of Adam on energies and forces, and the shapes of its arguments."""
    potential, graph = potential_of(name, backend, **others), shapes_of_batch(num_nodes, num_edges)
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
