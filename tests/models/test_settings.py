"""Settings in which published networks differ: equivariance, padding, backends, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.models import Potential
from tests.models.conftest import CUTOFF
from tests.models.networks import NETWORKS, network, variables_of
from tests.ops import tiers
from tests.ops.parity import along_random_directions, assert_close

ALL = tiers.slow_unless(
    ["allegro, product", "mace, nonlinear", "nequip, rounded", "nequip, skips"], *NETWORKS
)
FEW = tiers.slow_unless(["allegro, spline", "mace, edges", "nequip, one-hot"], *NETWORKS)
"""One of each kind by default, and others than against e3nn-jax; all by `--run-slow`."""
CUT_OFF = tiers.slow_unless(
    ["allegro, spline", "mace, edges", "nequip, xplor", "nequip, pairs"], *NETWORKS
)


def moved(variables):
    """Return variables in which those that begin as zero are not, which leave others idle."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: p + 0.3 * rng.normal(size=p.shape), variables)


def values_and_gradients(model, variables, graph):
    def function(variables, vectors):
        return model.apply(variables, vectors, graph.species, graph.edges).array

    return along_random_directions(function, variables, graph.vectors, orders=("value", "vjp"))


@pytest.mark.parametrize("backend", [pytest.param("xla", marks=pytest.mark.slow), "llvm"])
@pytest.mark.parametrize("name", ALL)
def test_the_backends_compute_what_e3nn_does(graph, name, backend):
    model, reference = network(name, backend=backend), network(name, backend="e3nn")
    variables = variables_of(reference, graph)
    assert jax.tree.structure(variables_of(model, graph)) == jax.tree.structure(variables)
    variables = moved(variables)
    expected = values_and_gradients(reference, variables, graph)
    assert all(np.abs(a).max() > 1e-9 for a in jax.tree.leaves(expected))  # no parameter is idle
    # a few thousand operations of 1e-16 each
    assert_close(values_and_gradients(model, variables, graph), expected, 1e-11)


@pytest.mark.parametrize("name", FEW)
def test_vectors_turn_with_the_structure(graph, rotation, name):
    so3 = name == "nequip, so3"
    options = {"hidden": "4x0e+3x1o"} if name == "nequip, layers differ" else {}
    model = network(name, "0e + 1e" if so3 else "0e + 1o", **options)
    variables = moved(variables_of(model, graph))
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert np.abs(out.filter("1e + 1o").array).max() > 1e-6
    for matrix in (rotation, -rotation):
        turned, expected = apply(graph.vectors @ matrix.T), out.transform_by_matrix(matrix)
        error = np.abs(turned.array - expected.array).max() / np.abs(out.array).max()
        # a network of SO(3) knows the left hand from the right
        assert error > 1e-6 if so3 and matrix is not rotation else error < 1e-10


@pytest.mark.parametrize("name", FEW)
def test_a_potential_of_fewer_species_predicts_the_same(graph, name):
    """Its parameters are those of a potential made for these species: none was forgotten."""
    potential = Potential(network(name), scale=(1.0, 2.0, 3.0), shift=(0.0, -1.0, 0.5))
    variables = moved(variables_of(potential, graph))
    smaller, params = potential.narrow(variables, np.array([2, 0]))
    assert (smaller.scale, smaller.model.num_species) == ((3.0, 1.0), 2)
    species = jnp.asarray(np.where(np.arange(len(graph.species)) % 2, 2, 0), jnp.int32)
    expected = jax.jit(potential.apply)(variables, graph.vectors, species, graph.edges)
    renumbered = jnp.where(species == 2, 0, 1).astype(jnp.int32)
    arguments = graph.vectors, renumbered, graph.edges
    out = jax.jit(smaller.apply)(params, *arguments)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    made = jax.eval_shape(smaller.init, jax.random.key(0), *arguments)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, made)
    sizes = [sum(p.size for p in jax.tree.leaves(tree)) for tree in (params, variables)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("name", CUT_OFF)
def test_padding_and_edges_beyond_the_cutoff_change_nothing(graph, name):
    """The shortest edge is given other lengths; it has no weight just within its cutoff."""
    model = network(name)
    variables = moved(variables_of(model, graph))
    lengths = np.linalg.norm(graph.vectors, axis=1)
    edge, cutoff = np.argmin(lengths), CUTOFF
    if pairs := getattr(model, "pair_cutoffs", None):
        ends = graph.edges.receivers[edge], graph.edges.senders[edge]
        cutoff = pairs[graph.species[ends[0]]][graph.species[ends[1]]]
    apply, out = jax.jit(model.apply), []
    for length in (0.0, cutoff + 1e-7, 6.0, cutoff - 1e-7, 1.0):
        vectors = np.array(graph.vectors)
        vectors[edge] *= length / lengths[edge]
        out.append(apply(variables, vectors, graph.species, graph.edges).array)
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_array_equal(out[0], out[2])
    np.testing.assert_allclose(out[3], out[0], rtol=0, atol=1e-10 * np.abs(out[0]).max())
    assert np.abs(out[0] - out[4]).max() > 1e-6
