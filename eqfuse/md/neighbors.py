"""Neighbour lists that are made on the device, from boxes as wide as they reach."""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase.cell import Cell

from eqfuse.inference.pairs import Pairs, chosen_evenly, numbered
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


def grid_of(positions, cell, pbc, reach: float, shrinking: float = 1.0) -> Grid:
    """Return the grid of a structure.

    Args:
      positions, cell: [n_atoms, 3] and [3, 3] Å, of numpy.
      pbc: [3] bool.
      reach: Å.
      shrinking: by which the cell may become smaller, at most 1.
    """
    pbc = np.asarray(pbc, bool)
    basis = np.asarray(Cell(np.where(pbc[:, None], cell, 0)).complete())
    heights = 1 / np.linalg.norm(np.linalg.inv(basis), axis=0)
    extents = np.ptp(positions @ np.linalg.inv(basis), axis=0)
    boxes, aside = [], []
    for k in range(3):
        length = shrinking * heights[k] if pbc[k] else extents[k] + reach
        boxes.append(max(1, int(length / reach)))
        images = math.ceil(reach / length) if pbc[k] else 0
        aside.append(1 if boxes[k] > 1 else images)
    axes = tuple(map(tuple, np.where(pbc[:, None], 0.0, basis).tolist()))
    grid = Grid(reach, tuple(pbc.tolist()), axes, tuple(boxes), tuple(aside), 0)
    box = _places(grid, positions, cell, np)[0]
    counts = np.unique(box, axis=0, return_counts=True)[1]
    return grid._replace(occupancy=room_in_boxes(int(counts.max()), len(positions)))


def room_in_boxes(most: int, num_atoms: int) -> int:
    """Return the occupancy of a grid in which the fullest box has `most` atoms."""
    return min(num_atoms, math.ceil(_OCCUPANCY_HEADROOM * most) + 2)


def make_pairs(grid: Grid, room: int, positions, cell) -> tuple[Pairs, Needed]:
    """Return all pairs within the reach, and what the list needs; inside of `jit`.

    If more is needed than there is room for, the list is not complete. What is left of the room
    holds pairs further apart and atoms joined to themselves, spread over all atoms.

    Args:
      grid: see `grid_of`; static.
      room: number of pairs, static.
      positions: [n_atoms, 3] float64, Å, in or out of the cell.
      cell: [3, 3] float64, Å.
    """
    count = positions.shape[0]
    box, images, basis = _places(grid, positions, cell)
    boxes = jnp.array(grid.boxes, jnp.int32)
    strides = jnp.array([grid.boxes[1] * grid.boxes[2], grid.boxes[2], 1], jnp.int32)
    table, fullest = _members(jnp.sum(box * strides, axis=1), grid)
    steps = [range(-n, n + 1) for n in grid.aside]
    offsets = jnp.array(list(itertools.product(*steps)), jnp.int32)
    beside = box[:, None] + offsets  # [n_atoms, n_offsets, 3]
    away = jnp.where(jnp.array(grid.pbc), beside // boxes, 0)
    beside = beside - away * boxes
    inside = jnp.all((beside >= 0) & (beside < boxes), axis=2)
    senders = table[jnp.sum(jnp.where(inside[..., None], beside, 0) * strides, axis=2)]
    senders = jnp.where(inside[..., None], senders, count)  # [n_atoms, n_offsets, occupancy]
    receivers = jnp.arange(count, dtype=jnp.int32)[:, None, None]
    is_self = (senders == receivers) & jnp.all(away == 0, axis=2)[..., None]
    real = (senders < count) & ~is_self
    senders = jnp.where(real, senders, receivers)
    wrapped = positions - images.astype(positions.dtype) @ basis
    shifted = (away.astype(positions.dtype) @ basis)[:, :, None] - wrapped[:, None, None]
    squares = jnp.sum((wrapped[senders] + shifted) ** 2, axis=3)
    near = (real & (squares < grid.reach**2)).reshape(-1)
    room = min(room, near.shape[0])
    _, kept = numbered(chosen_evenly(near, room), room)
    receivers = jnp.broadcast_to(receivers, senders.shape).reshape(-1)[kept]
    away = jnp.broadcast_to(away[:, :, None], (*senders.shape, 3)).reshape(-1, 3)[kept]
    senders, real = senders.reshape(-1)[kept], real.reshape(-1)[kept]
    away = jnp.where(real[:, None], away - images[senders] + images[receivers], 0)
    pairs = Pairs(Edges.from_arrays(senders, receivers, count), away)
    widths = 1 / jnp.linalg.norm(_inverse(basis), axis=0) / boxes
    enough = widths * jnp.maximum(jnp.array(grid.aside), 1) >= grid.reach * (1 - 1e-12)
    is_wide = jnp.all(enough | ~jnp.array(grid.pbc))
    return pairs, Needed(jnp.sum(near, dtype=jnp.int32), fullest, is_wide)


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

    They are in the order of their numbers.
    """
    count, num_boxes = box.shape[0], math.prod(grid.boxes)
    order = jnp.argsort(box, stable=True).astype(jnp.int32)
    in_order = box[order]
    starts = jnp.searchsorted(in_order, jnp.arange(num_boxes + 1, dtype=jnp.int32))
    rank = jnp.arange(count, dtype=jnp.int32) - starts[in_order].astype(jnp.int32)
    table = jnp.full((num_boxes, grid.occupancy), count, jnp.int32)
    table = table.at[in_order, rank].set(order, mode="drop", unique_indices=True)
    return table, jnp.max(jnp.diff(starts)).astype(jnp.int32)
