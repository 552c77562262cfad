"""Graphs for the tests of the models: float64, made with the project's own neighbour lists."""

import jax
import numpy as np
import pytest

from eqfuse.data.neighbors import neighbor_list
from eqfuse.graph import Graph
from eqfuse.models import Potential, build
from eqfuse.ops import Edges
from tests.ops import tiers

CUTOFF = 3.0
# One small network of each kind, with features of both parities.
SMALL = {
    "nequip": {"layers": 4, "lmax": 1, "radial_hidden": 8},
    "allegro": {"layers": 2, "lmax": 1, "latent_dim": 8, "two_body_layers": 2, "readout_hidden": 3},
    "mace": {"layers": 2, "lmax": 1, "parity": True, "readout_hidden": 3, "radial_hidden": 8},
}
# What all networks do alike is tested with one of them by default.
ONE_OF_ALL = tiers.slow_unless(["nequip"], *SMALL)


@pytest.fixture(autouse=True, scope="module")
def x64():
    """float64 for the whole module, so that what is compiled once can be shared."""
    with jax.enable_x64(True):
        yield


def _graph(structures, cutoff, *, nodes=None, edges=None, pad_seed=None):
    """One Graph of structures (species, positions, cell or None), in float64.

    With `nodes` and `edges`, padded to those sizes, by edges from nodes to themselves and by one
    more graph, whose atoms are at random places if a seed is given, else at the origin.
    """
    num_graphs, num_nodes = len(structures), 0
    species, positions, cells, index, senders, receivers, shifts = [], [], [], [], [], [], []
    for k, (z, x, cell) in enumerate(structures):
        periodic = np.full(3, cell is not None)
        cell = np.zeros((3, 3)) if cell is None else np.asarray(cell, np.float64)
        s, r, shift = neighbor_list(x, cell, periodic, cutoff)
        for whole, part in (
            (species, z),
            (positions, x),
            (cells, [cell]),
            (index, [k] * len(z)),
            (senders, s + num_nodes),
            (receivers, r + num_nodes),
            (shifts, shift),
        ):
            whole.append(np.asarray(part))
        num_nodes += len(z)
    species, positions, cells, index, senders, receivers, shifts = map(
        np.concatenate, (species, positions, cells, index, senders, receivers, shifts)
    )
    node_mask, graph_mask = np.ones(num_nodes, bool), np.ones(num_graphs, bool)
    if nodes is not None:
        extra, extra_edges = nodes - num_nodes, edges - len(senders)
        rng = np.random.default_rng(pad_seed)
        place = np.zeros((extra, 3)) if pad_seed is None else rng.normal(size=(extra, 3))
        species = np.append(species, [0] * extra)
        positions = np.append(positions, place, axis=0)
        cells = np.append(cells, np.zeros((1, 3, 3)), axis=0)
        index = np.append(index, [num_graphs] * extra)
        loops = np.arange(extra_edges) % nodes  # of all nodes, as `collate` has them
        senders, receivers = np.append(senders, loops), np.append(receivers, loops)
        shifts = np.append(shifts, np.zeros((extra_edges, 3)), axis=0)
        node_mask, graph_mask = np.append(node_mask, [False] * extra), np.append(graph_mask, False)
    return Graph(
        positions=np.asarray(positions, np.float64),
        species=species.astype(np.int32),
        edges=Edges.from_arrays(senders.astype(int), receivers.astype(int), len(species)),
        shifts=np.asarray(shifts, np.float64),
        graph_index=index.astype(np.int32),
        cells=cells,
        node_mask=node_mask,
        graph_mask=graph_mask,
    )


@pytest.fixture(scope="session")
def make_graph():
    return _graph


@pytest.fixture(scope="session")
def rotation():
    """Return a random rotation [3, 3] in float64 (e3nn-jax's are orthogonal to 1e-7)."""
    q, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))
    return q * np.linalg.det(q)


@pytest.fixture(scope="session")
def molecule():
    """species, positions [n, 3] Å of a random molecule: atoms 0.9 Å apart at least."""

    def make(seed, num_atoms=6):
        rng = np.random.default_rng(seed)
        positions = np.zeros((0, 3))
        while len(positions) < num_atoms:
            x = rng.uniform(-1.8, 1.8, size=3)
            if np.all(np.linalg.norm(positions - x, axis=1) > 0.9):
                positions = np.append(positions, x[None], axis=0)
        return rng.integers(0, 3, size=num_atoms), positions, None

    return make


@pytest.fixture
def graph(make_graph, molecule):
    """Two molecules."""
    return make_graph([molecule(0), molecule(1)], CUTOFF)


@pytest.fixture(scope="session")
def small_potential():
    """Potentials of three species, to be made by the name of their model."""

    def make(name, **settings):
        fields = SMALL[name] | {"channels": 4, "num_bessel": 4} | settings
        model = build(name, num_species=3, cutoff=CUTOFF, avg_num_neighbors=4.0, **fields)
        # an untrained MACE or Allegro predicts a tenth of what NequIP does
        unit = 1.0 if name == "nequip" else 10.0
        scale = (1.0 * unit, 0.7 * unit, 1.3 * unit)
        return Potential(model, scale=scale, shift=(0.2, -0.4, 0.1))

    return make
