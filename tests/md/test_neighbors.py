import ase
import ase.build
import jax
import numpy as np
import pytest

from eqfuse.inference.pairs import list_pairs
from eqfuse.md.neighbors import grid_of, make_pairs

REACH = 4.5


def structures():
    rng = np.random.default_rng(0)
    sheared = np.eye(3) + rng.normal(scale=0.2, size=(3, 3))
    small = ase.Atoms("Cu2", [[0, 0, 0], [1, 2, 1]], cell=2.5 * sheared, pbc=True)
    cell = ase.build.bulk("Cu", cubic=True)
    cell.rattle(0.1, seed=0)
    large = cell.repeat((4, 5, 6))
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
    return {
        "small": small,
        "cell": cell,
        "large": large,
        "wire": wire,
        "slab": slab,
        "molecule": molecule,
        "single": single,
    }


def as_set(senders, receivers, images):
    return set(zip(senders.tolist(), receivers.tolist(), map(tuple, images.tolist()), strict=True))


@pytest.mark.parametrize("name", structures())
def test_pairs_are_those_of_the_list_of_the_host(name):
    atoms = structures()[name]
    positions, cell = atoms.positions, atoms.cell.array
    expected = as_set(*list_pairs(positions, cell, atoms.pbc, REACH))
    with jax.enable_x64(True):
        grid = grid_of(positions, cell, atoms.pbc, REACH)
        make = jax.jit(make_pairs, static_argnums=(0, 1))
        pairs, needed = jax.device_get(make(grid, len(expected) + 50, positions, cell))
    if name == "large":
        assert min(grid.boxes) > 2
    edges = pairs.edges
    vectors = positions[edges.senders] + pairs.images @ cell - positions[edges.receivers]
    lengths = np.linalg.norm(vectors, axis=1)
    near = (lengths < REACH) & (lengths > 0)
    found = as_set(edges.senders[near], edges.receivers[near], pairs.images[near])
    assert found == expected
    assert near.sum() == len(expected) == needed.pairs
    assert needed.is_wide
    assert needed.occupancy <= grid.occupancy
    assert (np.diff(edges.receivers) >= 0).all()


def test_what_is_too_small_is_reported():
    """Boxes with too many atoms, and a cell that shrank below the width of its boxes."""
    atoms = structures()["large"]
    positions, cell = atoms.positions, atoms.cell.array
    with jax.enable_x64(True):
        grid = grid_of(positions, cell, atoms.pbc, REACH, 0.9)
        few = grid._replace(occupancy=3)
        room = 100  # of several thousand pairs
        make = jax.jit(lambda *a: make_pairs(*a)[1], static_argnums=(0, 1))
        needed = make(few, room, positions, cell)
        assert needed.occupancy > 3
        assert needed.pairs > room
        assert needed.is_wide
        for factor, is_wide in ((0.91, True), (0.6, False)):
            needed = make(grid, room, factor * positions, factor * cell)
            assert needed.is_wide == is_wide
