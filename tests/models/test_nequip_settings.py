"""The settings of NequIP in which published networks differ, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models.radial import xplor_cutoff
from tests.models.conftest import CUTOFF
from tests.models.networks import variables_of
from tests.models.settings_variants import NEQUIP as VARIANTS
from tests.models.settings_variants import nequip as network


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

    @jax.jit
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
    arguments = graph.vectors, graph.species, graph.edges
    out = jax.jit(trained.apply)(variables, *arguments).array
    expected = jax.jit(fixed.apply)({"params": params}, *arguments).array
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
