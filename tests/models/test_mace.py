import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import MACE
from tests.models.networks import shapes_of, small, variables_of


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
    found = MACE(irreps_out, channels=4, **settings).basis_and_feature_irreps()
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


def test_the_first_layer_has_a_skip_if_asked(graph):
    plain, skipping = (shapes_of(small(MACE, first_skip=s), graph) for s in (False, True))
    assert skipping.keys() - plain.keys() == {"layer_0/skip/w[0,0] 3x0e,3x0e"}


def test_a_layer_is_its_definition(graph):
    """The energy from the parameters by e3nn-jax alone, edge by edge and node by node."""
    model = small(MACE, layers=1, correlation=2)
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
    found = jax.jit(model.apply)(variables, graph.vectors, graph.species, graph.edges)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-10)
