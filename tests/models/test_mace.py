"""What is MACE's own; its layers are compared with mace-torch in `tests/convert`."""

import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import MACE


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
