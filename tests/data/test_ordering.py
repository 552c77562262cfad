"""Atoms of large structures lie near each other in memory, and come back in their own order."""

import dataclasses

import ase.build
import numpy as np
import pytest

from eqfuse.data import Structure
from eqfuse.data.neighbors import LARGE, spatial_order
from eqfuse.data.samples import prepare_samples

CUTOFF = 4.0


def shuffled_copper(repeats: int, pbc) -> Structure:
    """Copper whose atoms are in no order, as those of a liquid, some outside of the cell."""
    rng = np.random.default_rng(0)
    atoms = ase.build.bulk("Cu", cubic=True) * (repeats, repeats, repeats)
    atoms = atoms[rng.permutation(len(atoms))]
    positions = atoms.positions + rng.normal(scale=0.05, size=(len(atoms), 3))
    positions += rng.integers(-1, 2, size=(len(atoms), 3)) * pbc @ atoms.cell.array
    numbers = np.where(np.arange(len(atoms)) % 3, 29, 79)
    forces = rng.normal(size=(len(atoms), 3))
    return Structure(numbers, positions, atoms.cell.array, pbc, energy=0.0, forces=forces)


def prepared(structure):
    [sample] = prepare_samples([structure], CUTOFF, (29, 79), {29: 0.0, 79: 0.0})
    return sample


@pytest.mark.parametrize("pbc", [(True, True, True), (False, False, False), (True, False, True)])
def test_neighbours_are_near_in_memory(pbc):
    structure = shuffled_copper(8, np.array(pbc))
    sample = prepared(structure)
    distance = np.abs(sample.senders.astype(int) - sample.receivers)
    count = structure.num_atoms
    assert count >= LARGE
    # of two atoms anywhere a third of all lie between; along the curve most neighbours are near
    assert np.median(distance) < count / 20
    assert sorted(sample.order.tolist()) == list(range(count))


def test_a_sorted_structure_is_the_same_one():
    structure = shuffled_copper(6, np.array([True, True, True]))
    sample = prepared(structure)
    assert not np.array_equal(sample.order, np.arange(structure.num_atoms))
    np.testing.assert_array_equal(sample.in_structure(sample.forces), structure.forces)
    species = np.searchsorted([29, 79], structure.numbers)
    np.testing.assert_array_equal(sample.in_structure(sample.species), species)
    # the same pairs, by the atoms that they join and how far these are apart
    vectors = sample.positions[sample.senders] + sample.shifts - sample.positions[sample.receivers]
    ends = sample.order[sample.senders], sample.order[sample.receivers]
    found = _pairs(*ends, vectors)
    alone = dataclasses.replace(structure, numbers=structure.numbers, forces=structure.forces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eqfuse.data.neighbors.LARGE", 10**9)
        unsorted = prepared(alone)
    assert np.array_equal(unsorted.order, np.arange(structure.num_atoms))
    vectors = (
        unsorted.positions[unsorted.senders]
        + unsorted.shifts
        - unsorted.positions[unsorted.receivers]
    )
    np.testing.assert_allclose(
        found, _pairs(unsorted.senders, unsorted.receivers, vectors), rtol=0, atol=1e-9
    )
    by_receiver = sample.receivers.astype(int) * structure.num_atoms + sample.senders
    assert (np.diff(by_receiver) >= 0).all()


def _pairs(senders, receivers, vectors):
    rows = np.column_stack([receivers, senders, np.round(vectors, 6)])
    return rows[np.lexsort(rows.T[::-1])]


def test_few_atoms_keep_their_order():
    positions = np.random.default_rng(0).normal(size=(LARGE - 1, 3))
    order = spatial_order(positions, np.zeros((3, 3)), np.zeros(3, bool), CUTOFF)
    np.testing.assert_array_equal(order, np.arange(LARGE - 1))


def test_atoms_far_apart_are_sorted_too():
    positions = np.random.default_rng(0).normal(size=(LARGE, 3)) * [1e9, 1.0, 1.0]
    order = spatial_order(positions, np.zeros((3, 3)), np.zeros(3, bool), CUTOFF)
    assert sorted(order.tolist()) == list(range(LARGE))
    x = positions[order, 0]
    assert np.all(np.diff(x) > -1e9 / 2**15)
