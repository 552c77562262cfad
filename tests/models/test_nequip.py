import e3nn_jax as e3nn
import pytest

from eqfuse.models import NequIP


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
