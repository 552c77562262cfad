"""The settings of NequIP in which published networks differ, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import NequIP
from eqfuse.models.nequip_edges import xplor_cutoff
from tests.models.conftest import CUTOFF
from tests.models.networks import idle_parameters, small, variables_of
from tests.ops import tiers

HIDDEN = "4x0e+3x1o+2x1e+2x2e"
VARIANTS = {
    "multiplicities": {"hidden": HIDDEN, "lmax": 2, "embedding_channels": 5},
    "layers differ": {"hidden": "4x0e+3x1o,5x0e+2x1o,3x0e", "layers": 3, "skip": "linear"},
    "all kept": {"hidden": "3x0e+2x0o+2x1o+2x1e", "keep_irreps": True},
    "so3": {"hidden": "4x0e+3x1e+2x2e", "lmax": 2, "so3": True, "skip": "linear"},
    "one-hot": {"one_hot": True, "layer_norm": True, "skip": "linear", "embedding_channels": 5},
    "norm": {"layer_norm": True, "hidden": "4x0e+2x1o"},
    "skips": {"skip": "none,linear,species", "layers": 3, "biases": True},
    "as stored": {"normalize_activation": False, "trainable_bessel": True},
    "plain norm": {"normalize_activation": False, "layer_norm": True, "biases": True},
    "xplor": {"cutoff_function": "xplor", "cutoff_onset": 2.0, "solid_harmonics": True},
    "neighbors": {"species_neighbors": (2.0, 3.0, 5.0)},
    "pairs": {"pair_cutoffs": ((3.0, 2.5, 2.0), (2.2, 3.0, 2.1), (2.4, 2.6, 2.8))},
}
ORDINARY = {"layers": 2, "lmax": 1}
ALL = tiers.slow_unless(["so3", "one-hot", "skips"], *VARIANTS)


def network(name, irreps_out="0e", **others):
    return small(NequIP, irreps_out, **ORDINARY | VARIANTS[name] | others)


def values_and_gradients(model, variables, graph):
    def total(variables, vectors):
        out = model.apply(variables, vectors, graph.species, graph.edges).array
        return jnp.sum(jnp.sin(out)), out

    gradients, out = jax.jit(jax.grad(total, (0, 1), has_aux=True))(variables, graph.vectors)
    return [out, *jax.tree.leaves(gradients)]


@pytest.mark.parametrize("backend", ["xla", "llvm"])
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


@pytest.mark.parametrize("name", ALL)
def test_vectors_turn_with_the_structure(graph, rotation, name):
    so3 = name == "so3"
    options = {"hidden": "4x0e+3x1o"} if name == "layers differ" else {}
    model = network(name, "0e + 1e" if so3 else "0e + 1o", **options)
    variables = variables_of(model, graph)
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert np.abs(out.filter("1e + 1o").array).max() > 1e-6
    for matrix in (rotation, -rotation):
        turned, expected = apply(graph.vectors @ matrix.T), out.transform_by_matrix(matrix)
        error = np.abs(turned.array - expected.array).max() / np.abs(out.array).max()
        # a network of SO(3) knows the left hand from the right
        assert error > 1e-6 if so3 and matrix is not rotation else error < 1e-10


@pytest.mark.parametrize("name", ALL)
def test_no_parameter_is_idle(graph, name):
    # what is kept although nobody reads it has idle parameters
    idle = idle_parameters(network(name, keep_irreps=False), graph)
    assert idle == []


@pytest.mark.parametrize("name", ALL)
def test_a_network_of_fewer_species_predicts_the_same(graph, name):
    model = network(name)
    variables = variables_of(model, graph)
    keep = np.array([2, 0])
    smaller, params = model.narrow(variables["params"], keep)
    species = jnp.asarray(np.where(np.arange(len(graph.species)) % 2, 2, 0), jnp.int32)
    expected = model.apply(variables, graph.vectors, species, graph.edges).array
    renumbered = jnp.where(species == 2, 0, 1).astype(jnp.int32)
    out = smaller.apply({"params": params}, graph.vectors, renumbered, graph.edges).array
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    sizes = [sum(p.size for p in jax.tree.leaves(tree)) for tree in (params, variables)]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("name", ["xplor", "pairs"])
def test_an_edge_beyond_its_cutoff_changes_nothing(graph, name):
    model = network(name)
    variables = variables_of(model, graph)
    lengths = np.linalg.norm(graph.vectors, axis=1)
    cutoffs = np.full(len(lengths), CUTOFF)
    if name == "pairs":
        table = np.array(VARIANTS[name]["pair_cutoffs"])
        receivers, senders = (
            np.asarray(graph.species)[e] for e in (graph.edges.receivers, graph.edges.senders)
        )
        cutoffs = table[receivers, senders]

    def moved(vectors):
        return model.apply(variables, vectors, graph.species, graph.edges).array

    before, after = (cutoffs - 1e-7)[:, None], (cutoffs + 1e-7)[:, None]
    directions = np.asarray(graph.vectors) / np.maximum(lengths, 1e-9)[:, None]
    edge = np.argmin(np.where(lengths > 0, lengths, np.inf))
    others = np.asarray(graph.vectors)
    out = []
    for length in (before[edge], after[edge], 2 * after[edge]):
        vectors = others.copy()
        vectors[edge] = directions[edge] * length
        out.append(moved(jnp.asarray(vectors)))
    np.testing.assert_allclose(out[0], out[2], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(out[1], out[2])
    assert np.abs(moved(graph.vectors) - out[2]).max() > 1e-6


def test_xplor_is_one_at_its_onset_and_smooth_at_both_ends():
    onset, cutoff = 4.5, 5.0
    d = jnp.array([1.0, 4.4999999, 4.5000001, 4.75, 4.9999999, 5.5])
    u = xplor_cutoff(d, onset, cutoff)
    middle = (25 - 4.75**2) ** 2 * (25 + 2 * 4.75**2 - 3 * 4.5**2) / (25 - 4.5**2) ** 3
    np.testing.assert_allclose(u, [1, 1, 1, middle, 0, 0], atol=1e-6)
    slopes = jax.vmap(jax.grad(lambda d: xplor_cutoff(d, onset, cutoff)))(d)
    np.testing.assert_allclose(slopes[jnp.array([0, 1, 2, 4, 5])], 0, atol=1e-5)
    assert slopes[3] < -1


def test_frequencies_begin_as_those_that_are_fixed(graph):
    fixed, trained = (network("multiplicities", trainable_bessel=t) for t in (False, True))
    variables = variables_of(trained, graph)
    params = {k: v for k, v in variables["params"].items() if k != "frequencies"}
    out = trained.apply(variables, graph.vectors, graph.species, graph.edges).array
    expected = fixed.apply({"params": params}, graph.vectors, graph.species, graph.edges).array
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_gate_is_fused_unless_a_norm_comes_before_it(graph, name):
    model = network(name, backend="llvm")
    variables = variables_of(model, graph)
    with ops.recorded() as calls:
        jax.eval_shape(
            lambda v: model.apply(v, graph.vectors, graph.species, graph.edges), variables
        )
    kinds = [op.kind for op in calls if op.kind.startswith("tensor_product_linear")]
    normed = VARIANTS[name].get("layer_norm")
    expected = "tensor_product_linear" if normed else "tensor_product_linear_gate"
    assert kinds == [expected] * model.layers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip": "nequip"}, "skip must be one of species, linear, none"),
        ({"skip": "none,linear,none"}, "or one of them for each of the 2 layers"),
        ({"cutoff_function": "cosine"}, "cutoff_function must be polynomial or xplor"),
        ({"cutoff_function": "xplor"}, "needs a cutoff_onset between 0 and 3.0 Å, got None"),
        ({"cutoff_function": "xplor", "cutoff_onset": 4.0}, "between 0 and 3.0 Å, got 4.0"),
        ({"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        ({"pair_cutoffs": ((4.0, 3, 3),) * 3}, "at most 3.0 Å"),
        ({"species_neighbors": (2.0, 3.0)}, "species_neighbors must be 3 positive numbers"),
        ({"hidden": "4x1o"}, "0e, which"),
        ({"hidden": "4x0e,4x0e,4x0e"}, "for each of the 2 layers with commas"),
    ],
)
def test_settings_that_are_impossible_are_refused(graph, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(small(NequIP, **ORDINARY | settings), graph)
