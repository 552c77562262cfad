"""ZBL repulsion, in float64; transforms of distances are those of mace in `tests/convert`."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.data import covalent_radii

from eqfuse import ops
from eqfuse.models import ZBL, Potential, predict
from tests.models.conftest import CUTOFF, ONE_OF_ALL
from tests.models.networks import variables_of

NUMBERS = (1, 8, 14)


def energy_of(a, b, d):
    """ZBL of two atoms, eV, as in the literature, times the cutoff."""
    x = d / (0.8854 * 0.529177 / (a**0.23 + b**0.23))
    terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4028), (0.02817, 0.2016))
    phi = sum(c * math.exp(-k * x) for c, k in terms)
    s = d / (covalent_radii[a] + covalent_radii[b])
    cutoff = 1 - 28 * s**6 + 48 * s**7 - 21 * s**8 if s < 1 else 0.0
    return 14.399645 * a * b / d * phi * cutoff


@pytest.mark.parametrize("d", [0.3, 0.8, 1.6])
def test_zbl_is_its_formula(d):
    edges = ops.Edges.from_arrays(np.array([0, 1, 2]), np.array([1, 0, 2]), 3)
    vectors = jnp.array([[0.0, 0.0, d], [0.0, 0.0, -d], [0.0, 0.0, 0.0]])  # the last is padding
    found = ZBL.of(NUMBERS)(vectors, np.array([1, 2, 0]), edges)
    expected = energy_of(8, 14, d) / 2
    np.testing.assert_allclose(found, [expected, expected, 0.0], rtol=1e-12)
    assert expected > 1e-3


def test_zbl_survives_json():
    for zbl in (ZBL.of(NUMBERS), None):
        plain = Potential(None, (1.0,), (0.0,), repulsion=zbl).to_plain()
        assert Potential.from_plain(None, json.loads(json.dumps(plain))).repulsion == zbl


@pytest.mark.parametrize("name", ONE_OF_ALL)
def test_zbl_is_added_to_every_network(name, small_potential, make_graph):
    """Also where atoms without neighbours are bound to have no energy."""
    positions = np.array([[0.0, 0.0, 0.0], [0.0, 0.1, 0.5], [1.8, 0.0, 0.2]])
    graph = make_graph([(np.array([0, 1, 2]), positions, None)])
    plain = small_potential(name, layers=1).clone(binds_within=CUTOFF)
    variables = variables_of(plain, graph)
    zbl = ZBL.of(NUMBERS)
    without, with_zbl = (
        jax.jit(lambda v, p=p: predict(p, v, graph))(variables)
        for p in (plain, plain.clone(repulsion=zbl))
    )
    alone = zbl(graph.vectors, graph.species, graph.edges)
    assert alone.max() > 1.0
    found = with_zbl.node_energy - without.node_energy
    np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-14)
    push = with_zbl.forces[0] - without.forces[0]
    assert push[2] < -10.0  # away from atom 1, eV/Å
