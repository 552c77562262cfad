import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import NequIP
from eqfuse.models.nequip import hidden_irreps

SMALL = {"num_species": 3, "channels": 3, "cutoff": 3.0, "radial_hidden": 8, "num_bessel": 4}


def available_backends():
    names = [None]
    for name in ops.BACKENDS:
        try:
            ops.resolve(name)
        except ValueError:
            continue
        names.append(name)
    return names


@pytest.fixture
def graph(make_graph, molecule):
    return make_graph([molecule(0), molecule(1)], SMALL["cutoff"])


def variables_of(model, graph, seed=0):
    init = jax.jit(model.init)
    return init(jax.random.key(seed), graph.vectors, graph.species, graph.edges)


@pytest.mark.parametrize("inversion", [False, True])
def test_every_output_irrep_is_equivariant(graph, rotation, inversion):
    model = NequIP("2x0e + 0o + 1o + 1e + 2e + 2o", **SMALL, layers=3)
    variables = variables_of(model, graph)
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert all(np.abs(chunk).max() > 1e-3 for chunk in out.chunks)

    matrix = -rotation if inversion else rotation
    turned = apply(graph.vectors @ matrix.T)
    # Output of size 1; each product rounds at 1e-16, a few thousand of them follow each other.
    expected = out.transform_by_matrix(matrix)
    np.testing.assert_allclose(turned.array, expected.array, rtol=0, atol=1e-12)


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
    ],
)
def test_hidden_irreps_are_those_reached_and_needed(irreps_out, settings, expected):
    settings = {"channels": 4, "lmax": 2, "parity": True, **settings}
    assert hidden_irreps(irreps_out, **settings) == [e3nn.Irreps(i) for i in expected]


@pytest.mark.parametrize(("irreps_out", "layers"), [("0e", 4), ("0o + 7x0e", 3)])
def test_no_parameter_is_idle(graph, irreps_out, layers):
    model = NequIP(irreps_out, **SMALL, layers=layers, lmax=1)
    variables = variables_of(model, graph)

    def scalar(variables):
        out = model.apply(variables, graph.vectors, graph.species, graph.edges).array
        return jnp.sum(jnp.sin(out))

    for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(scalar))(variables)):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "settings",
    [{"parity": False}, {"layers": 2}, {"lmax": 0}],
    ids=["natural parity", "two layers", "scalars only"],
)
def test_pseudoscalar_out_of_reach_is_refused(graph, settings):
    model = NequIP("0o + 7x0e", **(SMALL | settings))
    with pytest.raises(ValueError, match=r"holds 0o, which .* cannot produce; use parity=True"):
        variables_of(model, graph)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"cutoff": -1.0}, "cutoff must be positive, got -1.0"),
        ({"avg_num_neighbors": 0.0}, "avg_num_neighbors must be positive"),
        ({"backend": "cuda"}, "backend 'cuda' is unknown"),
    ],
)
def test_settings_out_of_range_are_refused(graph, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(NequIP(**(SMALL | settings)), graph)


@pytest.mark.parametrize("backend", available_backends())
def test_parameters_are_named_alike_for_every_backend(graph, backend):
    model = NequIP(**SMALL, layers=2, lmax=1, backend=backend)
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), graph.vectors, graph.species, graph.edges
    )
    leaves = jax.tree.leaves_with_path(shapes["params"])
    names = {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves}
    assert names == {
        "embedding": (3, 3),
        "layer_0/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "radial/layer_0/Dense_0/kernel": (4, 8),
        "radial/layer_0/Dense_1/kernel": (8, 8),
        "radial/layer_0/Dense_2/kernel": (8, 6),
        "layer_0/linear_down/w[0,0] 3x0e,6x0e": (3, 6),
        "layer_0/linear_down/w[1,1] 3x1o,3x1o": (3, 3),
        "layer_0/skip/w[0,0] 3x0e,6x0e": (3, 3, 6),
        "layer_1/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_1/linear_up/w[1,1] 3x1o,3x1o": (3, 3),
        "radial/layer_1/Dense_0/kernel": (4, 8),
        "radial/layer_1/Dense_1/kernel": (8, 8),
        "radial/layer_1/Dense_2/kernel": (8, 6),
        "layer_1/linear_down/w[0,0] 6x0e,3x0e": (6, 3),
        "layer_1/skip/w[0,0] 3x0e,3x0e": (3, 3, 3),
        "readout/w[0,0] 3x0e,1x0e": (3, 1),
    }


def test_float32_in_float32_out(graph):
    model = NequIP(**SMALL, layers=1, lmax=1)
    vectors = graph.vectors.astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), vectors, graph.species, graph.edges)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    out = jax.jit(model.apply)(variables, vectors, graph.species, graph.edges)
    assert out.dtype == np.float32


def test_a_graph_without_edges(graph):
    model = NequIP(**SMALL, layers=2, lmax=1)
    variables = variables_of(model, graph)
    edges = ops.Edges.from_arrays(np.zeros(0, int), np.zeros(0, int), 3)
    species = np.array([2, 1, 2], np.int32)
    out = jax.jit(model.apply)(variables, jnp.zeros((0, 3)), species, edges)
    assert np.all(np.isfinite(out.array))
    assert out.array[0] == out.array[2] != out.array[1]
