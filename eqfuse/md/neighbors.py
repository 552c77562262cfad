"""Neighbour lists that are made on the device, from boxes as wide as they reach."""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase.cell import Cell

from eqfuse.data import DataError
from eqfuse.inference.pairs import Pairs, chosen_evenly, places
from eqfuse.ops import Edges

_OCCUPANCY_HEADROOM = 1.3


class Grid(NamedTuple):
    """Boxes along the lattice vectors, and along the axes of directions that are not periodic.

    All pairs within `reach` are of atoms in boxes that are next to each other, or in images of the
    box along a lattice vector that is no longer.

    Attributes:
      reach: Å.
      pbc: the periodic directions.
      axes: unit vectors of the directions that are not periodic; zero for the others.
      boxes: the number of boxes along each direction.
      aside: how many boxes, or images, to look at on either side.
      occupancy: the number of atoms that a box has room for.
    """

    reach: float
    pbc: tuple[bool, bool, bool]
    axes: tuple[tuple[float, ...], ...]
    boxes: tuple[int, int, int]
    aside: tuple[int, int, int]
    occupancy: int


class Needed(NamedTuple):
    """What a list needs: room for pairs, for atoms in a box, and boxes as wide as the reach."""

    pairs: jax.Array
    occupancy: jax.Array
    is_wide: jax.Array


def grid_of(structures, pbc, reach: float, shrinking: float = 1.0) -> Grid:
    """Return the grid of the structures of a batch.

    Args:
      structures: list of (positions, cell), [n_atoms, 3] and [3, 3] Å, of numpy.
      pbc: [3] bool, of all of them.
      reach: Å.
      shrinking: by which cells may become smaller, at most 1.
    Raises:
      DataError: the directions that are not periodic differ.
    """
    pbc = np.asarray(pbc, bool)
    boxes, aside, axes = [], [], []
    for positions, cell in structures:
        basis = np.asarray(Cell(np.where(pbc[:, None], cell, 0)).complete())
        heights = 1 / np.linalg.norm(np.linalg.inv(basis), axis=0)
        extents = np.ptp(positions @ np.linalg.inv(basis), axis=0) + reach
        lengths = np.where(pbc, shrinking * heights, extents)
        boxes.append(np.maximum(1, (lengths / reach).astype(int)))
        images = np.where(pbc, np.ceil(reach / lengths), 0).astype(int)
        aside.append(np.where(boxes[-1] > 1, 1, images))
        axes.append(np.where(pbc[:, None], 0.0, basis))
        if not np.allclose(axes[-1], axes[0], atol=1e-8):
            raise DataError(
                f"structures 0 and {len(axes) - 1} are periodic in different planes or directions, "
                "and are not simulated in one batch; simulate them apart"
            )
    axes = tuple(map(tuple, axes[0].tolist()))
    boxes, aside = np.min(boxes, axis=0).tolist(), np.max(aside, axis=0).tolist()
    grid = Grid(reach, tuple(pbc.tolist()), axes, tuple(boxes), tuple(aside), 0)
    rooms = []
    for positions, cell in structures:
        box = _places(grid, positions, cell, np)[0]
        counts = np.unique(box, axis=0, return_counts=True)[1]
        rooms.append(room_in_boxes(int(counts.max()), len(positions)))
    return grid._replace(occupancy=max(rooms))


def room_in_boxes(most: int, num_atoms: int) -> int:
    """Return the occupancy of a grid in which the fullest box has `most` atoms."""
    return min(num_atoms, math.ceil(_OCCUPANCY_HEADROOM * most) + 2)


def make_pairs(grid: Grid, room: int, positions, cells, is_atom) -> tuple[Pairs, Needed]:
    """Return all pairs within the reach, and what the list needs; inside of `jit`.

    If more is needed than there is room for, the list is not complete. What is left of the room
    holds pairs further apart and atoms joined to themselves, spread over all atoms.

    Args:
      grid: see `grid_of`; static.
      room: number of pairs of each structure, static.
      positions: [n_structures, n_atoms, 3] float64, Å, in or out of the cell.
      cells: [n_structures, 3, 3] float64, Å.
      is_atom: [n_structures, n_atoms] bool; others are padding and have no neighbours.
    Returns:
      the list of all structures side by side; what the most demanding one needs.
    """
    structures, count = is_atom.shape
    find = jax.vmap(functools.partial(_find_pairs, grid, room))
    senders, receivers, images, needed = find(positions, cells, is_atom)
    first = count * jnp.arange(structures, dtype=jnp.int32)[:, None]
    ends = (senders + first).reshape(-1), (receivers + first).reshape(-1)
    pairs = Pairs(Edges.from_arrays(*ends, structures * count), images.reshape(-1, 3))
    most = Needed(jnp.max(needed.pairs), jnp.max(needed.occupancy), jnp.all(needed.is_wide))
    return pairs, most


def _find_pairs(grid: Grid, room: int, positions, cell, is_atom):
    """Return senders, receivers, images and `Needed` of one structure; see `make_pairs`."""
    count = positions.shape[0]
    box, images, basis = _places(grid, positions, cell)
    boxes = jnp.array(grid.boxes, jnp.int32)
    strides = jnp.array([grid.boxes[1] * grid.boxes[2], grid.boxes[2], 1], jnp.int32)
    number = jnp.where(is_atom, jnp.sum(box * strides, axis=1), math.prod(grid.boxes))
    table, fullest = _members(number, grid)
    steps = [range(-n, n + 1) for n in grid.aside]
    offsets = jnp.array(list(itertools.product(*steps)), jnp.int32)
    beside = box[:, None] + offsets  # [n_atoms, n_offsets, 3]
    away = jnp.where(jnp.array(grid.pbc), beside // boxes, 0)
    beside = beside - away * boxes
    inside = jnp.all((beside >= 0) & (beside < boxes), axis=2)
    beside = jnp.sum(jnp.where(inside[..., None], beside, 0) * strides, axis=2)
    # XLA would compute what is behind these barriers again for each of its uses
    barrier = jax.lax.optimization_barrier
    away, inside, beside = barrier((away, inside, beside))
    senders = barrier(table[beside])
    senders = jnp.where(inside[..., None], senders, count)  # [n_atoms, n_offsets, occupancy]
    receivers = jnp.arange(count, dtype=jnp.int32)[:, None, None]
    is_self = (senders == receivers) & jnp.all(away == 0, axis=2)[..., None]
    real = (senders < count) & ~is_self & is_atom[:, None, None]
    senders = jnp.where(real, senders, receivers)
    wrapped = positions - images.astype(positions.dtype) @ basis
    shifted = away.astype(positions.dtype) @ basis - wrapped[:, None]
    # by components: a gather of rows takes several times as long
    apart = (wrapped[:, k][senders] + shifted[:, :, None, k] for k in range(3))
    squares = sum(component**2 for component in apart)
    near = barrier((real & (squares < grid.reach**2)).reshape(-1))
    room = min(room, near.shape[0])
    number, found = barrier(chosen_evenly(near, room))
    kept = barrier(places(number, room))
    visit = kept // senders.shape[2]  # which of [n_atoms, n_offsets]
    receivers, away = visit // senders.shape[1], away.reshape(-1, 3)[visit]
    senders, real = senders.reshape(-1)[kept], real.reshape(-1)[kept]
    away = jnp.where(real[:, None], away - images[senders] + images[receivers], 0)
    widths = 1 / jnp.linalg.norm(_inverse(basis), axis=0) / boxes
    enough = widths * jnp.maximum(jnp.array(grid.aside), 1) >= grid.reach * (1 - 1e-12)
    is_wide = jnp.all(enough | ~jnp.array(grid.pbc))
    needed = Needed(found, fullest, is_wide)
    return senders, receivers, away, needed


def _inverse(matrix, xp=jnp):
    """Return the inverse of a 3 x 3 matrix, in a few operations on any device."""
    crossed = xp.stack([xp.cross(matrix[k - 2], matrix[k - 1]) for k in range(3)], axis=1)
    return crossed / xp.sum(matrix[0] * crossed[:, 0])


def _places(grid: Grid, positions, cell, xp=jnp):
    """Return for each atom its box, [n_atoms, 3], and image, and the basis of the boxes.

    Args:
      xp: jax.numpy, or numpy on the host.
    """
    pbc, boxes = np.array(grid.pbc), np.array(grid.boxes)
    basis = xp.where(pbc[:, None], cell, np.array(grid.axes))
    fractions = positions @ _inverse(basis, xp)
    images = xp.where(pbc, xp.floor(fractions), 0)
    along = (fractions - images) * boxes
    box = xp.floor(xp.where(pbc, along, (fractions - xp.min(fractions, axis=0)) / grid.reach))
    # those that flew apart are in the last box: next to each other as before
    return xp.clip(box, 0, boxes - 1).astype(xp.int32), images.astype(xp.int32), basis


def _members(box, grid: Grid):
    """Return the atoms in each box, [n_boxes, occupancy], n_atoms where none is; the most in one.

    They are in the order of their numbers. Atoms of a box that does not exist are in none.
    """
    count, num_boxes = box.shape[0], math.prod(grid.boxes)
    order = jnp.argsort(box, stable=True).astype(jnp.int32)
    in_order = box[order]
    starts = jnp.searchsorted(in_order, jnp.arange(num_boxes + 1, dtype=jnp.int32))
    rank = jnp.arange(count, dtype=jnp.int32) - starts[in_order].astype(jnp.int32)
    table = jnp.full((num_boxes, grid.occupancy), count, jnp.int32)
    table = table.at[in_order, rank].set(order, mode="drop", unique_indices=True)
    return table, jnp.max(jnp.diff(starts)).astype(jnp.int32)
