"""Neighbour lists against ASE's own, and the order of the atoms of large structures."""

import ase
import ase.build
import ase.neighborlist
import numpy as np
import pytest

from eqfuse.data import DataError, Structure, neighbor_list
from eqfuse.data.neighbors import LARGE, centred, require_apart
from eqfuse.data.samples import prepare_samples

# ASE 3.29 sets shapes in place, which NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")


def assert_same_as_ase(atoms: ase.Atoms, cutoff: float) -> int:
    """Compare the edges as a multiset of (receiver, sender, vector); return their number."""
    senders, receivers, shifts = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    vectors = atoms.positions[senders] + shifts - atoms.positions[receivers]
    i, j, images, ase_vectors = ase.neighborlist.neighbor_list("ijSD", atoms, cutoff)
    order = np.lexsort((images[:, 2], images[:, 1], images[:, 0], j, i))
    np.testing.assert_array_equal(receivers, i[order])
    np.testing.assert_array_equal(senders, j[order])
    # Coordinates up to 50 Å in float64: a few roundings of 7e-15 each.
    np.testing.assert_allclose(vectors, ase_vectors[order], rtol=0, atol=1e-13 * 50)
    assert (np.linalg.norm(vectors, axis=1) < cutoff + 1e-12).all()
    assert senders.dtype == receivers.dtype == np.int32
    assert shifts.dtype == np.float64
    return len(senders)


FLAT = ase.Atoms("H4", np.random.default_rng(1).uniform(0, 3, (4, 3)), cell=[3.0, 3.0, 0.0])
FLAT.pbc = (True, True, False)


@pytest.mark.parametrize(
    ("atoms", "cutoff", "number"),
    [
        (ase.build.molecule("CH3CH2OH"), 3.0, None),
        # shells of diamond within 6 Å: 4 + 12 + 12 + 6 + 12 neighbours of each of the two atoms
        (ase.build.bulk("Si", a=5.43), 6.0, 2 * 46),
        (ase.Atoms("H", cell=2 * np.eye(3), pbc=True), 2.1, 6),
        (FLAT, 5.0, None),
        (ase.build.fcc111("Cu", (2, 2, 3), vacuum=8.0), 5.0, None),
    ],
    ids=["molecule", "cell smaller than the cutoff", "images", "no third vector", "surface"],
)
def test_edges_are_those_of_ase(atoms, cutoff, number):
    found = assert_same_as_ase(atoms, cutoff)
    assert found > 0
    assert number in (None, found)


@pytest.mark.parametrize("pbc", list(np.ndindex(2, 2, 2)), ids=lambda p: "".join(map(str, p)))
@pytest.mark.parametrize("cell", ["straight", "skewed", "left-handed"])
def test_every_periodicity_with_atoms_outside_the_cell(pbc, cell, skewed_cell):
    rng = np.random.default_rng(0)
    cells = {
        "straight": np.diag([3.0, 4.0, 5.0]),
        "skewed": skewed_cell,
        "left-handed": skewed_cell[::-1],
    }
    atoms = ase.Atoms("H12", positions=rng.uniform(-6, 6, (12, 3)), cell=cells[cell], pbc=pbc)
    assert assert_same_as_ase(atoms, 4.5) > 0


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 0, 1), (0, 0, 1)])
def test_atoms_many_cells_away_have_the_neighbours_of_their_images(skewed_cell, pbc):
    """Also along x, y and z of directions that are not periodic, which vesin makes boxes along."""
    rng = np.random.default_rng(4)
    pbc = np.array(pbc, bool)
    positions = rng.uniform(0, 3, (5, 3))
    away = rng.integers(-(10**6), 10**6, (5, 3)) * pbc
    near = neighbor_list(positions, skewed_cell, pbc, 5.0)
    far = neighbor_list(positions + away @ skewed_cell, skewed_cell, pbc, 5.0)
    assert len(near[0]) == len(far[0]) > 0
    # the same pairs, by the images that the atoms are moved to
    moved = (away @ skewed_cell)[far[0]] - (away @ skewed_cell)[far[1]]
    rows = [np.column_stack([r, s, shifts.round(6) + 0.0]) for s, r, shifts in (near, far)]
    rows[1][:, 2:] = (far[2] + moved).round(6) + 0.0
    rows = [table[np.lexsort(table.T)] for table in rows]
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", [np.zeros((1, 3)), np.array([[0.0, 0, 0], [9.0, 0, 0]])])
def test_no_neighbours(positions):
    senders, receivers, shifts = neighbor_list(positions, np.zeros((3, 3)), np.zeros(3, bool), 5.0)
    assert senders.shape == receivers.shape == (0,)
    assert shifts.shape == (0, 3)


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan, np.inf])
def test_impossible_cutoff(cutoff):
    with pytest.raises(DataError, match="cutoff must be a positive number"):
        neighbor_list(np.zeros((1, 3)), np.zeros((3, 3)), np.zeros(3, bool), cutoff)


def test_coincident_atoms_are_refused():
    positions = np.array([[0.0, 0, 0], [1.5, 0, 0], [1.5, 0, 0]])
    with pytest.raises(DataError, match="atoms 1 and 2 are at the same place"):
        neighbor_list(positions, np.zeros((3, 3)), np.zeros(3, bool), 5.0)


@pytest.mark.parametrize("distance", [0.0, 0.2, 0.31])
def test_require_apart(distance):
    atoms = ase.Atoms("Cu3", [(0, 0, 0), (3, 0, 0), (3, 3 - distance, 0)], cell=3 * np.eye(3))
    atoms.pbc = True
    atoms.cell[0, 0] = 9  # atom 2 is near an image of atom 1
    if distance > 0.3:
        require_apart(atoms)
        return
    with pytest.raises(
        DataError, match=r"atoms 1 and 2 (are at the same|overlap: they are 0\.2 Å)"
    ):
        require_apart(atoms)


def test_require_apart_of_wide_layers_and_wires():
    """Their boxes of 0.3 Å would be too many for vesin."""
    layer = np.stack(np.meshgrid(*2 * [np.arange(0, 150, 1.5)], [0.0]), axis=-1).reshape(-1, 3)
    require_apart(Structure(np.full(len(layer), 6), layer))
    near = layer[[0]] + [0.2, 0, 0]
    with pytest.raises(DataError, match=f"atoms 0 and {len(layer)} overlap: they are 0.2 Å"):
        require_apart(Structure(np.full(len(layer) + 1, 6), np.concatenate([layer, near])))
    wire = np.stack(np.meshgrid(*2 * [np.arange(0, 60, 2.0)], [0.0]), axis=-1).reshape(-1, 3)
    cell, pbc = np.diag([0, 0, 3.0]), [False, False, True]
    require_apart(Structure(np.full(len(wire), 6), wire, cell, pbc))


@pytest.mark.parametrize(
    ("far", "cell", "pbc"),
    [
        ((0, 0, 2e6), np.zeros((3, 3)), (0, 0, 0)),
        ((1e9, 0, 0), np.zeros((3, 3)), (0, 0, 0)),
        ((2000, 2000, 0), np.zeros((3, 3)), (0, 0, 0)),
        ((0, 0, 1e6), np.diag([3.0, 3.0, 0.0]), (1, 1, 0)),
        ((0, 5e4, 0), np.diag([3.0, 9.0, 50.0]), (1, 0, 1)),
        ((0, 0, 4e5), np.diag([3.0, 3.0, 0.0]), (1, 1, 0)),
        ((0, 0, 2), np.diag([4.0, 5.0, 1e6]), (1, 1, 1)),
        ((0, 0, 2), 1e160 * np.eye(3), (1, 1, 1)),
        ((0, 0, 2), 1e300 * np.eye(3), (1, 1, 1)),
    ],
)
def test_atoms_flown_apart_are_refused(far, cell, pbc):
    """They would end the process, in a division by zero within vesin, or take an hour."""
    positions = np.array([[0.0, 0, 0], [0, 0, 1], far])
    with pytest.raises(DataError, match="atoms have flown apart, or a cell is too wide: they are"):
        neighbor_list(positions, cell, np.array(pbc, bool), 5.0)


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, False)])
def test_samples_have_small_coordinates_wherever_the_atoms_are(pbc):
    """Also astride the corner of a cell with a wide vacuum; vectors of edges are the same."""
    atoms = ase.build.bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, seed=0)
    atoms.cell[2, 2] = 500.0
    rng = np.random.default_rng(0)
    x = atoms.positions + 1000 + rng.integers(-99, 99, (32, 3)) * pbc @ atoms.cell.array
    given = x, atoms.cell.array, np.array(pbc)
    senders, receivers, shifts = neighbor_list(*given, 3.6)
    near, moved = centred(*given, senders, receivers, shifts)
    assert len(senders) > 100
    assert np.abs(near).max() < 8
    assert np.abs(moved).max() < 8
    vectors = x[senders] + shifts - x[receivers]
    centred_ones = near[senders] + moved - near[receivers]
    np.testing.assert_allclose(centred_ones, vectors, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("n_atoms", "cell", "pbc", "cutoff"),
    [
        (1, 0.02 * np.eye(3), (1, 1, 1), 5.0),
        (1, 0.1 * np.eye(3), (1, 1, 1), 5.0),
        (20, 0.1 * np.eye(3), (1, 1, 1), 5.0),
        (4, 4 * np.eye(3), (1, 1, 1), 1e9),
        (4, 4 * np.eye(3), (1, 1, 1), 1e200),
        (4, 4 * np.eye(3), (1, 1, 1), 1e6),
        (4, np.diag([1e-3, 1e-3, 1e4]), (1, 1, 1), 5.0),
        (2, np.diag([1e-3, 1e-3, 0]), (1, 1, 0), 5.0),
        (2, 1e-8 * np.eye(3), (0, 1, 0), 5.0),
        (2, np.diag([1e7, 1e7, 0]), (1, 1, 0), 1e9),
        (20_000, 200 * np.eye(3), (0, 0, 0), 1e3),
    ],
)
def test_too_many_pairs_are_refused_before_they_are_listed(n_atoms, cell, pbc, cutoff):
    rng = np.random.default_rng(5)
    positions = rng.uniform(0, 1, (n_atoms, 3)) * np.where(cell.any(axis=1), cell.diagonal(), 1)
    with pytest.raises(
        DataError, match=r"atoms in a cell of \[\[.* pairs within .* lower the cutof"
    ):
        neighbor_list(positions, cell, np.array(pbc, bool), cutoff)


@pytest.mark.parametrize("cutoff", [1e3, 1e9])
def test_a_molecule_has_all_its_pairs_within_a_large_cutoff(cutoff):
    """Refuse a cell in which vesin alone would look for images for minutes."""
    water = ase.build.molecule("H2O")
    senders, receivers, _ = neighbor_list(water.positions, np.zeros((3, 3)), water.pbc, cutoff)
    np.testing.assert_array_equal(receivers, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(senders, [1, 2, 0, 2, 0, 1])


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
    sample, count = prepared(structure), structure.num_atoms
    assert not np.array_equal(sample.order, np.arange(count))
    np.testing.assert_array_equal(sample.in_structure(sample.forces), structure.forces)
    species = np.searchsorted([29, 79], structure.numbers)
    np.testing.assert_array_equal(sample.in_structure(sample.species), species)
    # the same pairs, by the atoms that they join and how far these are apart
    x, cell = structure.positions, structure.cell
    senders, receivers, shifts = neighbor_list(x, cell, structure.pbc, CUTOFF)
    expected = _pairs(senders, receivers, x[senders] + shifts - x[receivers])
    vectors = sample.positions[sample.senders] + sample.shifts - sample.positions[sample.receivers]
    found = _pairs(sample.order[sample.senders], sample.order[sample.receivers], vectors)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert (np.diff(sample.receivers.astype(int) * count + sample.senders) >= 0).all()


def _pairs(senders, receivers, vectors):
    rows = np.column_stack([receivers, senders, np.round(vectors, 6)])
    return rows[np.lexsort(rows.T[::-1])]
