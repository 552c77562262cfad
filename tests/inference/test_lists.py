import ase.build
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.inference.lists import is_valid, list_pairs, running_count

CUTOFF, SKIN = 4.0, 0.8


@pytest.fixture
def crystal():
    atoms = ase.build.bulk("Cu", cubic=True).repeat((2, 1, 1))
    atoms.set_cell(atoms.cell.array + np.random.default_rng(0).normal(scale=0.3, size=(3, 3)))
    atoms.rattle(0.2, seed=0)
    return atoms


@pytest.mark.parametrize("count", [1, 16, 37, 5000])
def test_places_are_running_count(count):
    keep = np.random.default_rng(count).random(count) < 0.5
    expected = np.append(0, np.cumsum(keep))
    np.testing.assert_array_equal(running_count(jnp.asarray(keep)), expected)


def test_a_list_is_valid_as_long_as_it_holds_all_pairs(crystal):
    """Random deformations and moves: wherever a pair is missing, the list is not valid."""
    rng = np.random.default_rng(1)
    old, cell = crystal.positions, crystal.cell.array
    pairs = set(_pairs(old, cell, CUTOFF + SKIN))
    missing = kept = 0
    for scale in np.linspace(0.0, 0.25, 60):
        deformation = np.eye(3) + rng.normal(scale=scale / 2, size=(3, 3))
        moves = rng.normal(scale=scale, size=old.shape)
        now = old @ deformation + moves
        complete = set(_pairs(now, cell @ deformation, CUTOFF)) <= pairs
        valid = is_valid((old, cell), (now, cell @ deformation), CUTOFF, SKIN)
        assert complete or not valid
        missing += not complete
        kept += valid
    assert missing > 5
    assert kept > 5
    assert not is_valid((old, np.zeros((3, 3))), (old, cell), CUTOFF, SKIN)
    assert is_valid((old, cell), (old + 0.0, cell), CUTOFF, 0.0)
    assert not is_valid((old, cell), (old + 0.4001 * np.eye(3)[0], cell), CUTOFF, 0.8)


def _pairs(positions, cell, reach):
    senders, receivers, images = list_pairs(positions, cell, np.ones(3, bool), reach)
    return zip(senders.tolist(), receivers.tolist(), map(tuple, images.tolist()), strict=True)
