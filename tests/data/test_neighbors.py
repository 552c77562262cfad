"""Neighbour lists against ASE's own, and the order of the atoms of large structures."""

import ase
import ase.build
import ase.neighborlist
import numpy as np
import pytest

from eqfuse.data import DataError, Structure, neighbor_list
from eqfuse.data.neighbors import LARGE, require_apart
from eqfuse.data.samples import prepare_samples
from tests.data.conftest import SKEWED

# ASE 3.29 sets shapes in place, which NumPy 2.5 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
OPEN = np.zeros((3, 3)), np.zeros(3, bool)
"""The cell and pbc of a molecule."""


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
        (ase.Atoms("H"), 5.0, 0),
        (ase.Atoms("H2", [[0, 0, 0], [9.0, 0, 0]]), 5.0, 0),
    ],
    ids=[
        "molecule", "cell smaller than the cutoff", "images", "no third vector", "surface", "atom",
        "far apart",
    ],
)  # fmt: skip
def test_edges_are_those_of_ase(atoms, cutoff, number):
    found = assert_same_as_ase(atoms, cutoff)
    assert found > 0 or number == 0
    assert number in (None, found)


@pytest.mark.parametrize("pbc", list(np.ndindex(2, 2, 2)), ids=lambda p: "".join(map(str, p)))
@pytest.mark.parametrize("cell", ["straight", "skewed", "left-handed"])
def test_edges_of_every_periodicity_with_atoms_outside_the_cell(pbc, cell):
    positions = np.random.default_rng(0).uniform(-6, 6, (12, 3))
    cells = {"straight": np.diag([3.0, 4.0, 5.0]), "skewed": SKEWED}
    cells["left-handed"] = SKEWED[::-1]
    assert assert_same_as_ase(ase.Atoms("H12", positions, cell=cells[cell], pbc=pbc), 4.5) > 0


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 0, 1), (0, 0, 1)])
def test_edges_of_atoms_many_cells_away_are_those_of_their_images(pbc):
    """Also along x, y and z of directions that are not periodic, which vesin makes boxes along."""
    rng = np.random.default_rng(4)
    pbc = np.array(pbc, bool)
    positions = rng.uniform(0, 3, (5, 3))
    moved = rng.integers(-(10**6), 10**6, (5, 3)) * pbc @ SKEWED
    near = neighbor_list(positions, SKEWED, pbc, 5.0)
    far = neighbor_list(positions + moved, SKEWED, pbc, 5.0)
    assert len(near[0]) == len(far[0]) > 0
    # the same pairs, by the images that the atoms are moved to
    far = *far[:2], far[2] + moved[far[0]] - moved[far[1]]
    rows = [_pairs(*ends, shifts + 0.0) for *ends, shifts in (near, far)]
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-5)


def _pairs(senders, receivers, vectors):
    rows = np.column_stack([receivers, senders, np.round(vectors, 6) + 0.0])
    return rows[np.lexsort(rows.T[::-1])]


@pytest.mark.parametrize("cutoff", [0.0, -1.0, np.nan, np.inf])
def test_impossible_cutoff_is_refused(cutoff):
    with pytest.raises(DataError, match="cutoff must be a positive number"):
        neighbor_list(np.zeros((1, 3)), *OPEN, cutoff)


@pytest.mark.parametrize("distance", [0.0, 0.2, 0.31])
def test_require_apart(distance):
    atoms = ase.Atoms("Cu3", [(0, 0, 0), (3, 0, 0), (3, 3 - distance, 0)], cell=3 * np.eye(3))
    atoms.pbc = True
    atoms.cell[0, 0] = 9  # atom 2 is near an image of atom 1
    if distance > 0.3:
        require_apart(atoms)
        return
    message = r"atoms 1 and 2 (are at the same|overlap: they are 0\.2 Å)"
    with pytest.raises(DataError, match=message):
        require_apart(atoms)


def test_require_apart_of_wide_layers_and_wires():
    """Their boxes of 0.3 Å would be too many for vesin."""
    layer = np.stack(np.meshgrid(*2 * [np.arange(0, 150, 1.5)], [0.0]), axis=-1).reshape(-1, 3)
    require_apart(Structure(np.full(len(layer), 6), layer))
    near = layer[[0]] + [0.2, 0, 0]
    with pytest.raises(DataError, match=f"atoms 0 and {len(layer)} overlap: they are 0.2 Å"):
        require_apart(Structure(np.full(len(layer) + 1, 6), np.concatenate([layer, near])))
    wire = np.stack(np.meshgrid(*2 * [np.arange(0, 60, 2.0)], [0.0]), axis=-1).reshape(-1, 3)
    require_apart(Structure(np.full(len(wire), 6), wire, np.diag([0, 0, 3.0]), [0, 0, 1]))


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
    message = r"atoms in a cell of \[\[.* pairs within .* lower the cutof"
    with pytest.raises(DataError, match=message):
        neighbor_list(positions, cell, np.array(pbc, bool), cutoff)


@pytest.mark.parametrize("cutoff", [1e3, 1e9])
def test_edges_of_a_molecule_within_a_large_cutoff(cutoff):
    """Refuse a cell in which vesin alone would look for images for minutes."""
    water = ase.build.molecule("H2O")
    senders, receivers, _ = neighbor_list(water.positions, *OPEN, cutoff)
    np.testing.assert_array_equal(receivers, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(senders, [1, 2, 0, 2, 0, 1])


@pytest.mark.parametrize("pbc", [(True, True, True), (False, False, False), (True, False, True)])
def test_order_of_a_large_structure(pbc):
    """Neighbours are near in memory, of copper in no order, as a liquid, and partly outside."""
    rng, cutoff = np.random.default_rng(0), 4.0
    atoms = ase.build.bulk("Cu", cubic=True) * (6, 6, 6)
    atoms = atoms[rng.permutation(len(atoms))]
    x = atoms.positions + rng.normal(scale=0.05, size=(len(atoms), 3))
    x += rng.integers(-1, 2, size=(len(atoms), 3)) * np.array(pbc) @ atoms.cell.array
    numbers, forces = np.where(np.arange(len(atoms)) % 3, 29, 79), rng.normal(size=x.shape)
    structure = Structure(numbers, x, atoms.cell.array, pbc, energy=0.0, forces=forces)
    [sample] = prepare_samples([structure], cutoff, (29, 79), {29: 0.0, 79: 0.0})
    count = len(atoms)
    assert count >= LARGE
    # of two atoms anywhere a third of all lie between; along the curve most neighbours are near
    assert np.median(np.abs(sample.senders.astype(int) - sample.receivers)) < count / 16
    assert not np.array_equal(sample.order, np.arange(count))
    assert sorted(sample.order.tolist()) == list(range(count))
    np.testing.assert_array_equal(sample.in_structure(sample.forces), forces)
    np.testing.assert_array_equal(sample.in_structure(sample.species), numbers == 79)
    # the same pairs, by the atoms that they join and how far these are apart
    senders, receivers, shifts = neighbor_list(x, atoms.cell.array, structure.pbc, cutoff)
    expected = _pairs(senders, receivers, x[senders] + shifts - x[receivers])
    vectors = sample.positions[sample.senders] + sample.shifts - sample.positions[sample.receivers]
    found = _pairs(sample.order[sample.senders], sample.order[sample.receivers], vectors)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert (np.diff(sample.receivers.astype(int) * count + sample.senders) >= 0).all()
