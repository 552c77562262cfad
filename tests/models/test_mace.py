import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import MACE
from eqfuse.models.mace_irreps import feature_irreps

SMALL = {
    "num_species": 3,
    "channels": 3,
    "lmax": 1,
    "cutoff": 3.0,
    "radial_hidden": 8,
    "radial_layers": 1,
    "readout_hidden": 2,
    "num_bessel": 4,
    "avg_num_neighbors": 4.0,
}


@pytest.fixture
def graph(make_graph, molecule):
    return make_graph([molecule(0), molecule(1)], SMALL["cutoff"])


def variables_of(model, graph, seed=0):
    init = jax.jit(model.init)
    return init(jax.random.key(seed), graph.vectors, graph.species, graph.edges)


@pytest.mark.parametrize("inversion", [False, True])
def test_every_output_irrep_is_equivariant(graph, rotation, inversion):
    model = MACE("2x0e + 0o + 1o + 1e", **SMALL, parity=True)
    variables = variables_of(model, graph)
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    # The pseudoscalar of nearly flat molecules is small, and far above what rounding would leave.
    assert all(np.abs(chunk).max() > 1e-6 for chunk in out.chunks)

    matrix = -rotation if inversion else rotation
    turned = apply(graph.vectors @ matrix.T)
    # Output of size 1; each product rounds at 1e-16, a few thousand of them follow each other.
    expected = out.transform_by_matrix(matrix)
    np.testing.assert_allclose(turned.array, expected.array, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("irreps_out", "settings", "expected"),
    [
        # MACE of the paper: A up to l = 3, features up to L, scalars in the end
        ("0e", {}, [("0e+1o+2e+3o", "0e+1o+2e"), ("0e+1o+2e+3o", "0e")]),
        ("0e", {"hidden_lmax": 0}, [("0e+1o+2e+3o", "0e"), ("0e+1o+2e+3o", "0e")]),
        ("0e", {"layers": 1}, [("0e+1o+2e+3o", "0e")]),
        ("1o", {"layers": 1}, [("0e+1o+2e+3o", "0e+1o")]),
        ("0e", {"correlation": 1}, [("0e+1o+2e", "0e+1o+2e"), ("0e", "0e")]),
        # 1e comes in with the second product with the spherical harmonics, and 0o is 1o times 1e
        (
            "0e+0o",
            {"lmax": 1, "hidden_lmax": 1, "parity": True, "layers": 2},
            [("0e+1o", "0e+1o"), ("0e+1o+1e", "0e+0o")],
        ),
        (
            "0o",
            {"lmax": 2, "hidden_lmax": 1, "parity": True, "correlation": 2},
            [("0e+1o+2e", "0e+1o"), ("1o+1e+2e+2o", "0o")],
        ),
    ],
)
def test_features_are_those_reached_and_needed(irreps_out, settings, expected):
    settings = {
        "layers": 2,
        "lmax": 3,
        "hidden_lmax": 2,
        "correlation": 3,
        "parity": False,
        **settings,
    }
    found = feature_irreps(irreps_out, channels=4, **settings)
    repeated = [
        tuple(e3nn.Irreps(irreps).regroup() for irreps in layer)
        for layer in ([times(4, a), times(4, h)] for a, h in expected)
    ]
    assert found == repeated


def times(mul, irreps):
    return [(mul, ir) for _, ir in e3nn.Irreps(irreps)]


def test_the_largest_published_network_has_its_paths():
    """MACE-large: 1 + 4 + 8 paths to 0e, 1 + 3 + 12 to 1o, 1 + 5 + 14 to 2e."""
    model = MACE(num_species=4, channels=128, lmax=3, hidden_lmax=2)
    edges = ops.Edges.from_arrays(np.array([0, 1]), np.array([1, 0]), 2)
    arguments = (np.ones((2, 3)), np.zeros(2, np.int32), edges)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *arguments)["params"]
    assert shapes["layer_0"]["contraction"].shape == (4, 49, 128)
    assert shapes["layer_1"]["contraction"].shape == (4, 13, 128)


@pytest.mark.parametrize(
    "settings",
    [{}, {"irreps_out": "0o + 7x0e", "parity": True}, {"correlation": 1}, {"irreps_out": "1o"}],
    ids=["energy", "tetris", "correlation 1", "vector"],
)
def test_no_parameter_is_idle(graph, settings):
    model = MACE(**SMALL | settings)
    variables = variables_of(model, graph)

    def scalar(variables):
        out = model.apply(variables, graph.vectors, graph.species, graph.edges).array
        return jnp.sum(jnp.sin(out))

    for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(scalar))(variables)):
        assert np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    "settings",
    [{"parity": False}, {"layers": 1}, {"lmax": 0}],
    ids=["natural parity", "one layer", "scalars only"],
)
def test_pseudoscalar_out_of_reach_is_refused(graph, settings):
    model = MACE("0o + 7x0e", **SMALL | {"parity": True} | settings)
    with pytest.raises(ValueError, match=r"holds 0o, which .* cannot produce; use parity=True"):
        variables_of(model, graph)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"correlation": 0}, "correlation must be at least 1, got 0"),
        ({"cutoff": -1.0}, "cutoff must be positive, got -1.0"),
        ({"avg_num_neighbors": 0.0}, "avg_num_neighbors must be positive"),
        ({"backend": "cuda"}, "backend 'cuda' is unknown"),
    ],
)
def test_settings_out_of_range_are_refused(graph, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(MACE(**(SMALL | settings)), graph)


def names_of(model, graph):
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), graph.vectors, graph.species, graph.edges
    )
    leaves = jax.tree.leaves_with_path(shapes["params"])
    return {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves}


def test_parameters_have_these_names(graph):
    assert names_of(MACE(**SMALL), graph) == {
        "embedding": (3, 3),
        "layer_0/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "radial/layer_0/Dense_0/kernel": (4, 8),
        "radial/layer_0/Dense_1/kernel": (8, 6),
        "layer_0/linear_basis/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_0/linear_basis/w[1,1] 3x1o,3x1o": (3, 3),
        "layer_0/contraction": (3, 9, 3),
        "layer_0/linear_down/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_0/linear_down/w[1,1] 3x1o,3x1o": (3, 3),
        "readout_0/w[0,0] 3x0e,1x0e": (3, 1),
        "layer_1/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_1/linear_up/w[1,1] 3x1o,3x1o": (3, 3),
        "radial/layer_1/Dense_0/kernel": (4, 8),
        "radial/layer_1/Dense_1/kernel": (8, 12),
        "layer_1/linear_basis/w[0,0] 6x0e,3x0e": (6, 3),
        "layer_1/linear_basis/w[1,1] 6x1o,3x1o": (6, 3),
        "layer_1/contraction": (3, 5, 3),
        "layer_1/linear_down/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_1/skip/w[0,0] 3x0e,3x0e": (3, 3, 3),
        "readout_1/linear_in/w[0,0] 3x0e,2x0e": (3, 2),
        "readout_1/linear_out/w[0,0] 2x0e,1x0e": (2, 1),
    }


def test_the_first_layer_has_a_skip_if_asked(graph):
    plain, skipping = (names_of(MACE(**SMALL, first_skip=s), graph) for s in (False, True))
    assert skipping.keys() - plain.keys() == {"layer_0/skip/w[0,0] 3x0e,3x0e"}


def test_a_layer_is_its_definition(graph):
    """The energy from the parameters by e3nn-jax alone, edge by edge and node by node."""
    model = MACE(**SMALL, layers=1, correlation=2)
    variables = variables_of(model, graph)
    p = variables["params"]
    layer = p["layer_0"]
    senders, receivers = graph.edges.senders, graph.edges.receivers
    d = np.linalg.norm(graph.vectors, axis=1)
    x = d / 3.0
    envelope = 1 - 21 * x**5 + 35 * x**6 - 15 * x**7
    bessel = np.sqrt(2 / 3.0) * np.sin(np.arange(1, 5) * np.pi * x[:, None]) / d[:, None]
    hidden = bessel * envelope[:, None] @ p["radial"]["layer_0"]["Dense_0"]["kernel"] / 2
    radial = (
        e3nn.normalize_function(jax.nn.silu)(hidden) @ p["radial"]["layer_0"]["Dense_1"]["kernel"]
    )
    radial = radial.reshape(-1, 2, 3) / np.sqrt(8)  # [n_edges, path, channel]
    h = p["embedding"][graph.species] @ layer["linear_up"]["w[0,0] 3x0e,3x0e"] / np.sqrt(3)
    unit = graph.vectors / d[:, None]
    messages = [
        (radial[:, 0] * h[senders])[..., None],
        (radial[:, 1] * h[senders])[..., None] * np.sqrt(3) * unit[:, None, :],
    ]
    a = []
    for k, (message, ir) in enumerate(zip(messages, ("0e", "1o"), strict=True)):
        summed = np.zeros((len(graph.species), *message.shape[1:]))
        np.add.at(summed, receivers, message)
        w = layer["linear_basis"][f"w[{k},{k}] 3x{ir},3x{ir}"]
        a.append(np.einsum("zui,uv->zvi", summed, w) / np.sqrt(3) / 2.0)  # sqrt(n), n = 4
    scalar, vector = a[0][..., 0], a[1]
    # the basis of two factors: the scalar squared, and the vector squared over sqrt(3)
    c = np.asarray(layer["contraction"])[graph.species]
    squares = np.stack([scalar**2, (vector**2).sum(-1) / np.sqrt(3)], axis=1)
    basis = e3nn.reduced_symmetric_tensor_product_basis("0e+1o", 2, keep_ir=["0e"]).array
    order = [0, 1] if abs(basis[0, 0, 0]) == 1 else [1, 0]
    signs = [np.sign(basis[0, 0].sum()), np.sign(basis[1, 1].sum())]
    squares = (squares * np.array(signs)[:, None])[:, order]
    b = c[:, 0] * scalar + (c[:, 1:] * squares).sum(1)
    h = b @ layer["linear_down"]["w[0,0] 3x0e,3x0e"] / np.sqrt(3)
    readout = p["readout_0"]
    h = e3nn.normalize_function(jax.nn.silu)(
        h @ readout["linear_in"]["w[0,0] 3x0e,2x0e"] / np.sqrt(3)
    )
    expected = h @ readout["linear_out"]["w[0,0] 2x0e,1x0e"] / np.sqrt(2)
    found = model.apply(variables, graph.vectors, graph.species, graph.edges)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-10)


def test_float32_in_float32_out(graph):
    model = MACE(**SMALL, layers=1, correlation=2)
    vectors = graph.vectors.astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), vectors, graph.species, graph.edges)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    out = jax.jit(model.apply)(variables, vectors, graph.species, graph.edges)
    assert out.dtype == np.float32


def test_atoms_without_neighbours_are_zero(graph):
    """Every product has a factor A, which is a sum over neighbours."""
    model = MACE(**SMALL)
    variables = variables_of(model, graph)
    edges = ops.Edges.from_arrays(np.zeros(0, int), np.zeros(0, int), 3)
    species = np.array([2, 1, 2], np.int32)
    out = jax.jit(model.apply)(variables, jnp.zeros((0, 3)), species, edges)
    np.testing.assert_array_equal(out.array, 0)
