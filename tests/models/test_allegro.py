import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from eqfuse.models import Allegro
from tests.models.conftest import CUTOFF
from tests.models.networks import variables_of


@pytest.mark.parametrize("name", ["allegro", pytest.param("nequip", marks=pytest.mark.slow)])
def test_an_atom_feels_those_within_its_cutoff_and_no_others(small_potential, make_graph, name):
    """The derivatives of the energy of each atom, of a zigzag chain that is longer than the cutoff.

    NequIP, here as the control, reaches as many cutoffs as it has layers.
    """
    count = np.arange(8)
    positions = np.stack([1.3 * count, 0.5 * (-1.0) ** count, 0.1 * count**2], axis=1)
    graph = make_graph([(count % 3, positions, None)])
    potential = small_potential(name, layers=3)
    variables = variables_of(potential, graph)

    @jax.jit
    def energies(positions):
        vectors = positions[graph.edges.senders] - positions[graph.edges.receivers]
        return potential.apply(variables, vectors, graph.species, graph.edges)[:8]

    slopes = np.abs(jax.jit(jax.jacobian(energies))(positions)).max(axis=2)  # [atom, moved atom]
    distances = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    within = distances < CUTOFF
    assert within.any(axis=1).all()
    assert slopes[within].min() > 1e-9
    assert not within[0, 4]
    if name == "nequip":
        assert slopes[0, 4] > 1e-9
    else:
        np.testing.assert_array_equal(slopes[~within], 0)
        moved = positions.copy()
        moved[4] += (0.1, -0.2, 0.3)
        before, after = energies(positions), energies(moved)
        np.testing.assert_array_equal(before[~within[4]], after[~within[4]])
        assert (before[within[4]] != after[within[4]]).all()


@pytest.mark.parametrize(
    ("irreps_out", "settings", "expected"),
    [
        ("0e", {"layers": 1}, [("0e+1o+2e", "0e+1o+2e", "0e")]),
        # what the last product makes a scalar of has natural parity
        ("0e", {}, [("0e+1o+2e", "0e+1o+2e", "0e+1o+2e"), ("0e+1o+2e", "0e+1o+2e", "0e")]),
        (
            "0e",
            {"layers": 3, "lmax": 1},
            [
                ("0e+1o", "0e+1o", "0e+1o+1e"),
                ("0e+1o+1e", "0e+1o", "0e+1o"),
                ("0e+1o", "0e+1o", "0e"),
            ],
        ),
        (
            "0e",
            {"layers": 3, "lmax": 1, "parity": False},
            [("0e+1o", "0e+1o", "0e+1o"), ("0e+1o", "0e+1o", "0e+1o"), ("0e+1o", "0e+1o", "0e")],
        ),
        ("0e", {"lmax": 0}, [("0e", "0e", "0e"), ("0e", "0e", "0e")]),
        # one product more for the pseudoscalar: 1o times 1o is 1e, and 1e times 1o is 0o
        ("0o + 7x0e", {"layers": 1, "lmax": 1}, [("0e+1o", "0e+1o", "0e+1e"), ("1e", "1o", "0o")]),
    ],
)
def test_paths_are_those_reached_and_needed(irreps_out, settings, expected):
    found = Allegro(irreps_out, **settings).paths()
    if irreps_out == "0e":
        last = found.pop()
        assert (last.inputs, last.environment, last.products) == ((), (), ())
    names = [(p.inputs, p.environment, p.products) for p in found]
    assert names == [tuple(map(irs_of, layer)) for layer in expected]


def irs_of(irreps):
    return tuple(ir for _, ir in e3nn.Irreps(irreps))
