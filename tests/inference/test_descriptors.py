"""Descriptors of atoms: invariant, in the order of the atoms, and what the layers compute."""

import ase.build
import e3nn_jax as e3nn
import jax
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import eqfuse
from eqfuse.inference.network import Network

WIDTHS = {"nequip": 4, "mace": 4, "allegro": 8}  # scalars of a layer


@pytest.fixture(scope="module", params=sorted(WIDTHS))
def network(request, untrained):
    return Network(untrained(request.param))


@pytest.fixture(scope="module")
def atoms():
    atoms = ase.build.molecule("C60")[:7]
    atoms.numbers = [13, 29, 29, 13, 29, 13, 13]
    atoms.positions *= 1.6
    return atoms


def test_descriptors_are_invariant_and_follow_the_atoms(network, atoms, rng):
    name = network.metadata["model"]
    features = eqfuse.descriptors(network, atoms)
    assert features.shape == (7, 2 * WIDTHS[name])
    assert np.abs(features).max() > 1e-2
    assert np.abs(features - features[:1]).max() > 1e-3
    moved, order = atoms.copy(), rng.permutation(7)
    moved.positions = -Rotation.random(rng=rng).apply(atoms.positions) + [1.0, -2.0, 3.0]
    found = eqfuse.descriptors(network, moved[order])
    np.testing.assert_allclose(found, features[order], rtol=0, atol=1e-10)
    first = eqfuse.descriptors(network, atoms, num_layers=1)
    np.testing.assert_array_equal(first, features[:, : WIDTHS[name]])


@pytest.mark.slow
def test_all_irreps_turn_with_the_atoms(network, atoms, rng):
    if network.metadata["model"] == "allegro":
        with pytest.raises(ValueError, match="no features of atoms"):
            eqfuse.descriptors(network, atoms, invariants_only=False)
        return
    irreps = sum(map(e3nn.Irreps, network.metadata["irreps"][1:-1]), e3nn.Irreps())
    rotation = Rotation.random(rng=rng)
    moved = atoms.copy()
    moved.positions = rotation.apply(atoms.positions)
    features, found = (
        eqfuse.descriptors(network, a, invariants_only=False) for a in (atoms, moved)
    )
    with jax.enable_x64(True):
        matrix = irreps.D_from_matrix(np.asarray(rotation.as_matrix()))
    np.testing.assert_allclose(found, features @ np.asarray(matrix).T, rtol=0, atol=1e-10)
    assert np.abs(found - features).max() > 1e-3


@pytest.mark.slow
def test_the_calculator_gives_them_by_the_name_of_mace(untrained, atoms):
    run, other = untrained("mace"), atoms.copy()
    other.calc = eqfuse.Calculator(run)
    expected = eqfuse.descriptors(run, [atoms, atoms[:3]])
    assert [f.shape[0] for f in expected] == [7, 3]
    np.testing.assert_array_equal(other.calc.get_descriptors(other), expected[0])
    np.testing.assert_array_equal(eqfuse.descriptors(other), expected[0])
    with pytest.raises(ValueError, match=r"an eqfuse\.Calculator"):
        eqfuse.descriptors(atoms)
    with pytest.raises(ValueError, match="num_layers must be from 1 to 2"):
        eqfuse.descriptors(run, atoms, num_layers=3)
