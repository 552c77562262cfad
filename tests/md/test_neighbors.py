import ase
import ase.build
import jax
import numpy as np
import pytest

from eqfuse.data import DataError
from eqfuse.inference import Grid
from eqfuse.inference.lists import list_pairs
from eqfuse.md.steps import padded_to_longest

REACH = 4.5


def structures():
    rng = np.random.default_rng(0)
    sheared = np.eye(3) + rng.normal(scale=0.2, size=(3, 3))
    small = ase.Atoms("Cu2", [[0, 0, 0], [1, 2, 1]], cell=2.5 * sheared, pbc=True)
    cell = ase.build.bulk("Cu", cubic=True)
    cell.rattle(0.1, seed=0)
    large = cell.repeat((4, 5, 5))
    large.set_cell(large.cell.array @ sheared, scale_atoms=True)
    large.positions += rng.integers(-2, 3, (len(large), 3)) @ large.cell.array
    wire = cell.repeat((1, 1, 7))
    slab = cell.repeat((3, 1, 4))
    slab.pbc = (True, False, True)
    slab.cell[1] = 0
    slab.positions[:, 1] *= 3
    molecule = cell.repeat((3, 2, 4))
    molecule.pbc, molecule.cell = False, None
    single = ase.Atoms("Cu", pbc=True, cell=[3.0, 20.0, 30.0])
    names = {"small": small, "cell": cell, "large": large, "wire": wire, "slab": slab}
    return names | {"molecule": molecule, "single": single}


MAKE = jax.jit(Grid.make_pairs, static_argnums=(0, 1))


def batch(*frames):
    """Return positions and cells side by side, and which atoms are real."""
    positions = padded_to_longest([atoms.positions for atoms in frames])
    is_atom = padded_to_longest([np.ones(len(atoms)) for atoms in frames], bool)
    return positions, np.stack([atoms.cell.array for atoms in frames]), is_atom


def as_set(senders, receivers, images):
    return {*map(tuple, np.column_stack([senders, receivers, images]).tolist())}


@pytest.mark.parametrize(
    "names", [*((n,) for n in structures()), ("wire", "cell", "small", "single")]
)
def test_pairs_of_a_batch_are_those_of_the_lists_of_the_host(names):
    """Cells of one, a few and many boxes, alone and of different numbers of atoms in a batch."""
    frames = [structures()[name] for name in names]
    expected = [list_pairs(a.positions, a.cell.array, a.pbc, REACH) for a in frames]
    room = max(len(senders) for senders, _, _ in expected) + 7
    with jax.enable_x64(True):
        grid = Grid.of([(a.positions, a.cell.array) for a in frames], frames[0].pbc, REACH)
        pairs, needed = jax.device_get(MAKE(grid, room, *batch(*frames)))
    assert (min(grid.boxes) > 2) == (names == ("large",))
    assert needed.pairs == room - 7
    assert not needed.is_narrow
    assert needed.occupancy <= grid.occupancy
    edges, most = pairs.edges, max(map(len, frames))
    assert edges.num_nodes == len(frames) * most
    assert (np.diff(edges.receivers) >= 0).all()
    for k, (atoms, theirs) in enumerate(zip(frames, expected, strict=True)):
        own = slice(k * room, (k + 1) * room)
        senders, receivers = (index[own] - k * most for index in (edges.senders, edges.receivers))
        images, positions = pairs.images[own], batch(*frames)[0][k]
        vectors = positions[senders] + images @ atoms.cell.array - positions[receivers]
        lengths = np.linalg.norm(vectors, axis=1)
        near = (lengths < REACH) & (lengths > 0)
        assert as_set(senders[near], receivers[near], images[near]) == as_set(*theirs)
        assert near.sum() == len(theirs[0])


def test_structures_periodic_in_different_planes_are_no_batch():
    slab, other = structures()["slab"], structures()["slab"]
    other.rotate(30, "x", rotate_cell=True)
    with pytest.raises(DataError, match="structures 0 and 1 are periodic in different planes"):
        Grid.of([(a.positions, a.cell.array) for a in (slab, other)], slab.pbc, REACH)


def test_lists_that_are_too_small_are_reported():
    """Boxes with too many atoms, and a cell that shrank below the width of its boxes."""
    atoms = structures()["large"]
    positions, cell = atoms.positions, atoms.cell.array
    with jax.enable_x64(True):
        grid = Grid.of([(positions, cell)], atoms.pbc, REACH, 0.9)
        few, room = grid._replace(occupancy=3), 100  # of several thousand pairs
        needed = MAKE(few, room, *batch(atoms))[1]
        assert needed.occupancy > 3
        assert needed.pairs > room
        assert not needed.is_narrow
        for factor, is_narrow in ((0.91, False), (0.6, True)):
            atoms.set_cell(factor * cell, scale_atoms=True)
            assert MAKE(grid, room, *batch(atoms))[1].is_narrow == is_narrow
