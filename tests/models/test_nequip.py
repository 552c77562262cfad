"""What is NequIP's own: its features and the settings of published networks, in float64."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import NequIP
from eqfuse.models.radial import xplor_cutoff
from tests.models.networks import variables_of
from tests.models.settings_variants import NEQUIP as VARIANTS
from tests.models.settings_variants import nequip as network


@pytest.mark.parametrize(
    ("irreps_out", "settings", "expected"),
    [
        ("0e", {"layers": 1}, ["4x0e"]),
        ("0e", {"layers": 3}, ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x2e", "4x0e"]),
        (
            "0e",
            {"layers": 4},
            ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x1e+4x2e+4x2o", "4x0e+4x1o+4x2e", "4x0e"],
        ),
        (
            "0e",
            {"layers": 4, "parity": False},
            ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x2e", "4x0e+4x1o+4x2e", "4x0e"],
        ),
        (
            "0o + 7x0e",
            {"layers": 3},
            ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x1e+4x2e+4x2o", "4x0e+4x0o"],
        ),
        ("0e", {"layers": 2, "lmax": 0}, ["4x0e", "4x0e"]),
        ("0e", {"layers": 2, "hidden": "8x0e+2x1o+3x1e"}, ["8x0e+2x1o", "8x0e"]),
        ("0e", {"layers": 2, "hidden": "8x0e+2x1o,6x0e+5x1o"}, ["8x0e+2x1o", "6x0e"]),
        ("0e", {"layers": 2, "hidden": "2x2o+3x1e+4x0e", "so3": True}, ["4x0e+3x1e", "4x0e"]),
        (
            "0e",
            {"layers": 3, "hidden": "8x0e+3x1o+2x1e", "keep_irreps": True},
            ["8x0e+3x1o", "8x0e+3x1o+2x1e", "8x0e"],
        ),
    ],
)
def test_hidden_irreps_are_those_reached_and_needed(irreps_out, settings, expected):
    _, *hidden, _ = NequIP(irreps_out, channels=4, **settings).layer_irreps()
    assert hidden == [e3nn.Irreps(i) for i in expected]


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
    fixed, trained = (network("pairs", layers=1, trainable_bessel=t) for t in (False, True))
    variables = variables_of(trained, graph)
    params = {k: v for k, v in variables["params"].items() if k != "frequencies"}
    arguments = graph.vectors, graph.species, graph.edges
    out = jax.jit(trained.apply)(variables, *arguments).array
    expected = jax.jit(fixed.apply)({"params": params}, *arguments).array
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("name", VARIANTS)
def test_the_gate_is_fused_unless_a_norm_comes_before_it(graph, name):
    model, arguments = network(name, backend="llvm"), (graph.vectors, graph.species, graph.edges)
    variables = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    with ops.recorded() as calls:
        jax.eval_shape(lambda v: model.apply(v, *arguments), variables)
    kinds = [op.kind for op in calls if op.kind.startswith("tensor_product_linear")]
    normed = VARIANTS[name].get("layer_norm")
    expected = "tensor_product_linear" if normed else "tensor_product_linear_gate"
    assert kinds == [expected] * model.layers
