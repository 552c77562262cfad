"""The settings of MACE in which networks since 2025 differ from those before, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.models import MACE, radial_table
from tests.models.networks import idle_parameters, small, variables_of
from tests.models.test_nequip_settings import values_and_gradients
from tests.ops import tiers

VARIANTS = {
    "nonlinear": {
        "nonlinear": True,
        "edge_irreps": "2x0e+1x1o",
        "agnostic_product": True,
        "readout_biases": True,
        "apply_cutoff": False,
    },
    "nonlinear, basis with cutoff": {"nonlinear": True, "layers": 1},
    "edges": {
        "edge_irreps": "2x0e+1x1o+3x2e",
        "first_edge_irreps": True,
        "last_readout_only": True,
        "apply_cutoff": False,
        "density_normalization": True,
        "distance_transform": "soft",
        "atomic_numbers": (1, 8, 14),
    },
}
ALL = tiers.slow_unless(["nonlinear", "edges"], *VARIANTS)


def network(name, irreps_out="0e", **others):
    return small(MACE, irreps_out, **{"correlation": 2} | VARIANTS[name] | others)


def moved(variables):
    """Return variables in which those that begin as zero are not."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape), variables)


@pytest.mark.parametrize("backend", [pytest.param("xla", marks=pytest.mark.slow), "llvm"])
@pytest.mark.parametrize("name", ALL)
def test_the_backends_compute_what_e3nn_does(graph, name, backend):
    model, reference = network(name, backend=backend), network(name, backend="e3nn")
    variables = variables_of(reference, graph)
    assert jax.tree.structure(variables_of(model, graph)) == jax.tree.structure(variables)
    variables = moved(variables)
    expected = values_and_gradients(reference, variables, graph)
    for ours, theirs in zip(values_and_gradients(model, variables, graph), expected, strict=True):
        assert np.abs(theirs).max() > 1e-9
        # a few thousand operations of 1e-16 each
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11 * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_vectors_turn_with_the_structure(graph, rotation, name):
    model = network(name, "0e + 1o")
    variables = moved(variables_of(model, graph))
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert np.abs(out.filter("1o").array).max() > 1e-6
    for matrix in (rotation, -rotation):
        turned, expected = apply(graph.vectors @ matrix.T), out.transform_by_matrix(matrix)
        error = np.abs(turned.array - expected.array).max() / np.abs(out.array).max()
        assert error < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_no_parameter_is_idle(graph, name):
    assert idle_parameters(network(name), graph) == []


@pytest.mark.parametrize("name", ALL)
def test_a_network_of_fewer_species_predicts_the_same(graph, name):
    model = network(name)
    variables = moved(variables_of(model, graph))
    smaller, params = model.narrow(variables["params"], np.array([2, 0]))
    species = jnp.asarray(np.where(np.arange(len(graph.species)) % 2, 2, 0), jnp.int32)
    expected = model.apply(variables, graph.vectors, species, graph.edges).array
    renumbered = jnp.where(species == 2, 0, 1).astype(jnp.int32)
    out = smaller.apply({"params": params}, graph.vectors, renumbered, graph.edges).array
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    sizes = [sum(p.size for p in jax.tree.leaves(tree)) for tree in (params, variables)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("name", ALL)
def test_padding_and_edges_beyond_the_cutoff_change_nothing(graph, name):
    model = network(name)
    variables = moved(variables_of(model, graph))
    lengths = np.linalg.norm(graph.vectors, axis=1)
    edge = np.argmin(np.where(lengths > 0, lengths, np.inf))
    out = []
    for length in (0.0, 3.0 + 1e-7, 6.0, 1.0):
        vectors = np.array(graph.vectors)
        vectors[edge] *= length / lengths[edge]
        out.append(model.apply(variables, vectors, graph.species, graph.edges).array)
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_array_equal(out[0], out[2])
    assert np.abs(out[0] - out[3]).max() > 1e-6


def test_nonlinear_interactions_have_no_tables(graph, monkeypatch):
    """Compute them by networks for any number of edges, for which others have tables."""
    variables = variables_of(network("nonlinear"), graph)
    arguments = variables, graph.vectors, graph.species, graph.edges
    expected = network("nonlinear", radial="network").apply(*arguments).array
    monkeypatch.setitem(radial_table.EDGES_PER_KNOT, "cpu", 0)
    assert not radial_table.choose(network("nonlinear"), 10**6).table
    np.testing.assert_array_equal(network("nonlinear").apply(*arguments).array, expected)
    with pytest.raises(ValueError, match="is not for nonlinear=True"):
        network("nonlinear", radial="table").apply(*arguments)
