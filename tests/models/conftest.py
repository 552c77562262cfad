"""Graphs for the tests of the models: float64, made with the project's own neighbour lists."""

import jax
import numpy as np
import pytest

from eqfuse.data import Sample, Shape, collate, neighbor_list
from eqfuse.graph import Graph
from eqfuse.models import Potential, build
from tests.ops import tiers

CUTOFF = 3.0
# One small network of each kind.
SMALL = {
    "nequip": {"layers": 2, "lmax": 1, "radial_hidden": 8},
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


def _graph(structures, cutoff=CUTOFF, shape=None) -> Graph:
    """Return structures (species, positions, cell or None) as one batch, in float64.

    It has a node and a graph of padding, and no edge of it, unless a `Shape` asks for more.
    """
    samples = []
    for species, positions, cell in structures:
        periodic = np.full(3, cell is not None)
        cell = np.zeros((3, 3)) if cell is None else cell
        pairs = neighbor_list(positions, cell, periodic, cutoff)
        samples.append(Sample(positions, np.asarray(species, np.int32), *pairs, cell, None, None))
    nodes, edges = (sum(getattr(s, name) for s in samples) for name in ("num_atoms", "num_edges"))
    tight = Shape(nodes + 1, edges, len(samples) + 1)
    return collate(samples, shape or tight, np.float64).graph


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
    return make_graph([molecule(0), molecule(1)])


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
