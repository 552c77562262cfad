"""ZBL repulsion and what newer networks of mace have besides, in float64."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase.data import covalent_radii

from eqfuse import ops
from eqfuse.models import MACE, ZBL, predict
from eqfuse.models.pairs import agnesi_transform, soft_transform
from tests.models.conftest import CUTOFF, ONE_OF_ALL
from tests.models.networks import shapes_of, small, variables_of

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
    zbl = ZBL.of(NUMBERS)
    assert ZBL.from_plain(json.loads(json.dumps(dataclasses.asdict(zbl)))) == zbl
    assert ZBL.from_plain(None) is None


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
    np.testing.assert_allclose(with_zbl.node_energy - without.node_energy, alone, rtol=1e-9)
    push = with_zbl.forces[0] - without.forces[0]
    assert push[2] < -10.0  # away from atom 1, eV/Å


def test_agnesi_is_its_formula():
    d, r0 = np.array([0.3, 1.0, 4.0]), np.array([0.5, 1.0, 1.5])
    q, p, a = 0.9183, 4.5791, 1.0805
    x = d / r0
    expected = 1 / (1 + a * x**q / (1 + x ** (q - p)))
    np.testing.assert_allclose(agnesi_transform(d, r0, (q, p, a)), expected, rtol=1e-14)
    assert (np.diff(expected) < 0).all()


def test_soft_is_its_formula():
    """Check the ends and the middle: covalent radii of 0.6 Å, a bond of 1.2, from 0.9 to 1.6."""
    d = jnp.array([0.1, 1.25, 3.0])
    t = soft_transform(d, jnp.full(3, 0.6), 4.0)
    weights = [np.tanh(4 / 0.7 * (x - 1.25)) for x in (0.1, 1.25, 3.0)]
    expected = [
        0.9 + (x - 0.9) * (1 + w) / 2 for x, w in zip((0.1, 1.25, 3.0), weights, strict=True)
    ]
    np.testing.assert_allclose(t, expected, rtol=1e-14)
    np.testing.assert_allclose(t, [0.9, 1.075, 3.0], atol=1e-4)


def test_a_species_linear_is_in_the_place_of_the_skip(graph):
    with_it = shapes_of(small(MACE, species_linear=True), graph)
    added = {name: shape for name, shape in with_it.items() if "species_linear" in name}
    assert added == {
        "layer_0/species_linear/w[0,0] 3x0e,3x0e": (3, 3, 3),
        "layer_0/species_linear/w[1,1] 3x1o,3x1o": (3, 3, 3),
    }
    skipping = shapes_of(small(MACE, species_linear=True, first_skip=True), graph)
    assert not [name for name in skipping if "species_linear" in name]


def test_a_density_divides_a(graph):
    """A network that is linear in A gives 1 / (1 + density) of what it gives without."""
    settings = {"avg_num_neighbors": 1.0, "layers": 1, "correlation": 1}
    model = small(MACE, **settings, density_normalization=True)
    without = small(MACE, **settings)
    variables = variables_of(model, graph)
    w = np.asarray(variables["params"]["layer_0"]["density"])
    assert w.shape == (4,)

    def features(model, variables):
        """Return what the readout is given, a Linear of A."""
        kept = {"capture_intermediates": True, "mutable": True}
        arguments = graph.vectors, graph.species, graph.edges
        _, state = jax.jit(lambda v: model.apply(v, *arguments, **kept))(variables)
        [h] = state["intermediates"]["layer_0"]["__call__"]
        return h.array

    x = np.linalg.norm(graph.vectors, axis=1) / 3.0
    envelope = 1 - 21 * x**5 + 35 * x**6 - 15 * x**7
    bessel = np.sqrt(2 / 3.0) * np.sin(np.arange(1, 5) * np.pi * x[:, None]) / (3.0 * x[:, None])
    density = np.zeros(len(graph.species))
    np.add.at(density, graph.edges.receivers, np.tanh((bessel * envelope[:, None] @ w / 2) ** 2))
    assert density.max() > 0.1
    expected = features(without, variables) / (1 + density)[:, None]
    np.testing.assert_allclose(features(model, variables), expected, rtol=0, atol=1e-12)


def test_the_constant_of_an_activation_does_not_depend_on_the_precision():
    """e3nn-jax finds 1 / 1.676565 in float32, and 1 / 1.676562 in float64."""
    from eqfuse.models.mlp import normalized

    found = []
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found.append(float(normalized(jax.nn.silu)(1.0) / jax.nn.silu(1.0)))
    assert found[0] == pytest.approx(found[1], rel=3e-7)  # of the quotient in float32
