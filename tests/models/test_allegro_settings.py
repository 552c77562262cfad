"""The settings of Allegro in which networks of nequip-allegro differ from it, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.models import Allegro
from eqfuse.models.allegro_pairs import spline_basis
from tests.models.networks import idle_parameters, small, variables_of
from tests.models.test_nequip_settings import values_and_gradients
from tests.ops import tiers

PAIRS = ((3.0, 2.5, 2.0), (2.2, 3.0, 2.1), (2.4, 2.6, 2.8))
DENSE = {"dense": True, "readout_activation": True, "readout_layers": 3, "latent_hidden": 5}
VARIANTS = {
    "product": DENSE | {"two_body": "product", "embedding_dim": 6, "trainable_bessel": True},
    "spline": DENSE | {"two_body": "spline", "num_splines": 5, "spline_span": 3, "parity": False},
    "dense": DENSE | {"layers": 3, "latent_layers": 1, "pair_cutoffs": PAIRS},
    "mixed": {"two_body": "product", "latent_hidden": 5, "two_body_hidden": 3},
    "species": {"species_neighbors": (2.0, 3.0, 5.0), "pair_cutoffs": PAIRS},
}
ALL = tiers.slow_unless(["product", "spline"], *VARIANTS)


def network(name, irreps_out="0e", **others):
    return small(Allegro, irreps_out, **{"layers": 2} | VARIANTS[name] | others)


@pytest.mark.parametrize("backend", [pytest.param("xla", marks=pytest.mark.slow), "llvm"])
@pytest.mark.parametrize("name", ALL)
def test_the_backends_compute_what_e3nn_does(graph, name, backend):
    model, reference = network(name, backend=backend), network(name, backend="e3nn")
    variables = variables_of(reference, graph)
    assert jax.tree.structure(variables_of(model, graph)) == jax.tree.structure(variables)
    expected = values_and_gradients(reference, variables, graph)
    for ours, theirs in zip(values_and_gradients(model, variables, graph), expected, strict=True):
        assert np.abs(theirs).max() > 1e-9
        # a few thousand operations of 1e-16 each
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-11 * np.abs(theirs).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_vectors_turn_with_the_structure(graph, rotation, name):
    model = network(name, "0e + 1o")
    variables = variables_of(model, graph)
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert np.abs(out.filter("1o").array).max() > 1e-6
    for matrix in (rotation, -rotation):
        turned, expected = apply(graph.vectors @ matrix.T), out.transform_by_matrix(matrix)
        error = np.abs(turned.array - expected.array).max() / np.abs(out.array).max()
        assert error < 1e-10


@pytest.mark.parametrize("name", ALL)
def test_no_parameter_is_idle(graph, name):
    assert idle_parameters(network(name), graph) == []


@pytest.mark.parametrize("name", ALL)
def test_a_network_of_fewer_species_predicts_the_same(graph, name):
    model = network(name)
    variables = variables_of(model, graph)
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
    variables = variables_of(model, graph)
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


def test_splines_are_smooth_and_end_at_one():
    """Check by hand that bump k, of 4 that span 1 other, goes from (k - 1)/4 to (k + 1)/4."""
    x = jnp.array([0.0, 0.25, 0.5, 0.625, 1.0, 1.5])
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0.25, 0.25], [0] * 4, [0] * 4]
    np.testing.assert_allclose(spline_basis(x, 4, 1), expected, atol=1e-12)
    slope = jax.jacobian(lambda x: spline_basis(x[None], 4, 1)[0])(jnp.array(1 - 1e-6))
    np.testing.assert_allclose(slope, 0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"two_body": "sum"}, "two_body must be one of concatenate, product, spline"),
        ({"two_body": "product", "embedding_dim": 5}, "needs an even embedding_dim, got 5"),
        ({"two_body": "spline", "spline_span": 17}, "between 0 and num_splines, 16, got 17"),
        ({"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        ({"species_neighbors": (2.0, 3.0)}, "species_neighbors must be 3 positive numbers"),
        ({"readout_layers": 0}, "readout_layers must be positive"),
    ],
)
def test_settings_that_are_impossible_are_refused(graph, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(small(Allegro, **settings), graph)
