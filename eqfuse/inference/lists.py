"""Neighbour lists: made on the host or on the device, kept while they hold all pairs.

A list holds the pairs within cutoff and skin. Each evaluation computes their vectors and passes the
pairs within the cutoff to the network, so that the skin costs a few operations and no edges: see
`eqfuse.inference.evaluator`.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ase.cell import Cell

from eqfuse.data import DataError, neighbor_list, padding
from eqfuse.ops import Edges
from eqfuse.runs.errors import naming

_BLOCK = 16


class Pairs(NamedTuple):
    """A neighbour list, sorted by receiver."""

    edges: Edges  # padding joins a node to itself
    images: jax.Array  # [n_pairs, 3] int32, lattice vectors that are added to the sender

    @classmethod
    def padded(cls, senders, receivers, images, num_nodes: int, room: int) -> "Pairs":
        """Return a list of `room` pairs, see `eqfuse.data.padding.padded_edges`."""
        edges, order = padding.padded_edges(senders, receivers, num_nodes, room)
        images = np.concatenate([images, np.zeros((room - len(images), 3), np.int32)])
        return cls(edges, images[order])


def list_pairs(positions, cell, pbc, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return senders, receivers and images of the pairs within `reach`, on the host."""
    senders, receivers, shifts = neighbor_list(positions, cell, pbc, reach)
    images = np.zeros(shifts.shape, np.int32)
    if np.any(pbc):
        images[:, pbc] = np.rint(shifts @ np.linalg.pinv(np.asarray(cell)[pbc]))
    return senders, receivers, images


def list_structures(structures, pbc, cutoff: float, skin: float, names=None):
    """Return the pairs of (positions, cell) side by side: senders, receivers, images.

    The last result is the number of pairs within the cutoff; names are for messages.
    """
    listed, near, first = [], 0, 0
    for k, ((positions, cell), periodic) in enumerate(zip(structures, pbc, strict=True)):
        with naming(names and names[k]):
            senders, receivers, images = list_pairs(positions, cell, periodic, cutoff + skin)
        vectors = positions[senders] + images @ cell - positions[receivers]
        near += int((np.einsum("ei,ei->e", vectors, vectors) < cutoff**2).sum())
        listed.append((senders + first, receivers + first, images))
        first += len(positions)
    return *map(np.concatenate, zip(*listed, strict=True)), near


def is_valid(listed, positions, cutoff: float, skin: float) -> bool:
    """Test that all pairs within the cutoff are in a list that reached to cutoff and skin.

    Both arguments are (positions, cell). Every vector v of the list became v A + u_j - u_i, for the
    deformation A of the cell and the displacements u besides, so that it is at least as long as |v|
    s - 2 max |u| for the least singular value s of A.
    """
    (old, old_cell), (new, cell) = listed, positions
    stretch = 1.0
    if old_cell is not cell and not np.array_equal(old_cell, cell):
        if np.linalg.det(old_cell) == 0:
            return False
        deformation = np.linalg.solve(old_cell, cell)
        old = old @ deformation
        stretch = np.linalg.svd(deformation, compute_uv=False)[-1]
    moved = new - old
    most = math.sqrt(np.einsum("ai,ai->a", moved, moved).max(initial=0))
    return 2 * most <= (cutoff + skin) * stretch - cutoff


def within(pairs: Pairs, near, size: int) -> tuple[Edges, jax.Array, jax.Array]:
    """Return `size` (static) pairs of a list that have all near ones, without sorting.

    Pairs that are not near fill what is left of `size`, spread over all; of more near ones, the
    first are kept. The results are the edges, sorted by receiver, which pair each is, [size], and
    how many are near.
    """
    edges = pairs.edges
    if size == near.shape[0]:  # all are kept, in their order
        return edges, jnp.arange(size, dtype=jnp.int32), jnp.sum(near, dtype=jnp.int32)
    # XLA would compute what is behind these barriers again for each of its uses
    number, count = jax.lax.optimization_barrier(select_evenly(near, size))  # [n_pairs + 1]
    kept = selected(number, size)
    keep = number[1:] > number[:-1]
    of_sender = jax.lax.optimization_barrier(running_count(keep[edges.sender_order]))
    chosen = Edges(
        senders=edges.senders[kept],
        receivers=edges.receivers[kept],
        receiver_order=jnp.arange(size, dtype=jnp.int32),
        receiver_ptr=number[edges.receiver_ptr],
        sender_order=number[edges.sender_order[selected(of_sender, size)]],
        sender_ptr=of_sender[edges.sender_ptr],
        num_nodes=edges.num_nodes,
    )
    return chosen, kept, count


def select_evenly(near, size: int) -> tuple[jax.Array, jax.Array]:
    """Choose the near ones, or the first of them, and others, spread evenly: `size` together.

    Return how many are chosen before each place, and in all, and how many are near. A sum of the
    latter made XLA compute all of them again.
    """
    so_far = running_count(near)
    until = jnp.minimum(so_far[1:], size)
    others = jnp.arange(1, len(near) + 1, dtype=jnp.int32) - until
    # how many of the first others are kept: evenly up to what is left
    due = others.astype(jnp.float64) * (size - until[-1]) / jnp.maximum(others[-1], 1)
    return jnp.append(jnp.int32(0), until + jnp.floor(due + 1e-9).astype(jnp.int32)), so_far[-1]


def running_count(keep) -> jax.Array:
    """Count the true ones of [count] before each place, and in all, [count + 1] int32.

    On a CPU, XLA computes a cumulative sum in log2(count) passes; a product with a triangular
    matrix leaves a sixteenth of it to them. float32 counts exactly up to 2^24.
    """
    count = keep.shape[0]
    blocks = jnp.pad(keep, (0, -count % _BLOCK)).reshape(-1, _BLOCK).astype(jnp.float32)
    inside = (blocks @ np.triu(np.ones((_BLOCK, _BLOCK), np.float32))).astype(jnp.int32)
    before = jnp.cumsum(inside[:, -1], dtype=jnp.int32) - inside[:, -1]
    return jnp.append(jnp.int32(0), (inside + before[:, None]).reshape(-1)[:count])


def selected(number, size: int) -> jax.Array:
    """Return the true places that `number` counts, [size] int32; see `running_count`."""
    place = jnp.where(number[1:] > number[:-1], number[:-1], size)
    numbers = jnp.arange(len(place), dtype=jnp.int32)
    zero = jnp.zeros(size, jnp.int32)
    return zero.at[place].set(numbers, mode="drop", unique_indices=True)


def pair_vectors(positions, cells, graph_index, senders, receivers, images):
    """Return the vectors [n_edges, 3] from receivers to senders, in the precision of positions."""
    images = images.astype(positions.dtype)
    if cells.shape[0] == 1:  # a matmul would be a call of its own, with arrays of its own
        shifts = sum(images[:, k : k + 1] * cells[0, k] for k in range(3))
    else:
        shifts = jnp.einsum("ei,eij->ej", images, cells[graph_index[receivers]])
    return positions[senders] + shifts - positions[receivers]


class Grid(NamedTuple):
    """Boxes along the lattice vectors, and along the axes of directions that are not periodic.

    All pairs within the reach (Å) are in boxes, or images, that are next to each other.
    """

    reach: float  # Å
    pbc: tuple[bool, bool, bool]
    axes: tuple[tuple[float, ...], ...]  # unit vectors where not periodic, else zero
    boxes: tuple[int, int, int]  # along each direction
    aside: tuple[int, int, int]  # boxes, or images, to look at on either side
    occupancy: int  # the number of atoms that a box has room for

    @classmethod
    def of(cls, structures, pbc, reach: float, shrinking: float = 1.0) -> "Grid":
        """Return the grid of structures of a batch, whose cells may shrink by a factor."""
        pbc = np.asarray(pbc, bool)
        boxes, aside, axes = [], [], []
        for positions, cell in structures:
            basis = np.asarray(Cell(np.where(pbc[:, None], cell, 0)).complete())
            inverse = np.linalg.inv(basis)
            extents = np.ptp(positions @ inverse, axis=0) + reach
            lengths = np.where(pbc, shrinking / np.linalg.norm(inverse, axis=0), extents)
            boxes.append(np.maximum(1, (lengths / reach).astype(int)))
            images = np.where(pbc, np.ceil(reach / lengths), 0).astype(int)
            aside.append(np.where(boxes[-1] > 1, 1, images))
            axes.append(np.where(pbc[:, None], 0.0, basis))
            if not np.allclose(axes[-1], axes[0], atol=1e-8):
                raise DataError(
                    f"structures 0 and {len(axes) - 1} are periodic in different planes or "
                    "directions, and are not simulated in one batch; simulate them apart"
                )
        axes, pbc = tuple(map(tuple, axes[0].tolist())), tuple(pbc.tolist())
        boxes, aside = np.min(boxes, axis=0).tolist(), np.max(aside, axis=0).tolist()
        grid, rooms = cls(reach, pbc, axes, tuple(boxes), tuple(aside), 0), []
        for positions, cell in structures:
            box = _boxes_of(grid, positions, cell, np)[0]
            counts = np.unique(box, axis=0, return_counts=True)[1]
            rooms.append(padding.room_in_boxes(int(counts.max()), len(positions)))
        return grid._replace(occupancy=max(rooms))

    def enlarged(self, most: int, num_atoms: int) -> "Grid":
        """Return this grid, in which the fullest box has `most` of the atoms of a structure."""
        return self._replace(occupancy=padding.room_in_boxes(most, num_atoms))

    def most_pairs(self, num_atoms: int) -> int:
        """Return how many pairs a list can have: each atom with all places of the boxes around."""
        return num_atoms * math.prod(2 * n + 1 for n in self.aside) * self.occupancy

    def make_pairs(self, room: int, positions, cells, is_atom) -> tuple[Pairs, "Needed"]:
        """Return all pairs within the reach, and what the list needs; inside of `jit`.

        If more is needed than there is room for, the list is not complete. What is left of the room
        holds pairs further apart and atoms joined to themselves, spread over all atoms.
        """
        structures, count = is_atom.shape
        find = jax.vmap(functools.partial(_find_pairs, self, room))
        senders, receivers, images, needed = find(positions, cells, is_atom)
        first = count * jnp.arange(structures, dtype=jnp.int32)[:, None]
        ends = (senders + first).reshape(-1), (receivers + first).reshape(-1)
        pairs = Pairs(Edges.from_arrays(*ends, structures * count), images.reshape(-1, 3))
        return pairs, jax.tree.map(jnp.max, needed)


class Needed(NamedTuple):
    """Needs of a list: room for pairs and atoms in a box, and whether boxes are too narrow."""

    pairs: jax.Array
    occupancy: jax.Array
    is_narrow: jax.Array


def _find_pairs(grid: Grid, room: int, positions, cell, is_atom):
    """Return senders, receivers, images and `Needed` of one structure; see `Grid.make_pairs`."""
    barrier, count = jax.lax.optimization_barrier, positions.shape[0]  # see `within`
    box, images, basis = _boxes_of(grid, positions, cell)
    number = jnp.where(is_atom, _number_of(grid, box), math.prod(grid.boxes))
    table, fullest = _box_table(number, grid)

    # candidates are the atoms in the boxes around that of each, [n_atoms, n_offsets, occupancy]
    away, inside, beside = barrier(_boxes_beside(grid, box))
    senders = jnp.where(inside[..., None], barrier(table[beside]), count)
    receivers = jnp.arange(count, dtype=jnp.int32)[:, None, None]
    is_self = (senders == receivers) & jnp.all(away == 0, axis=2)[..., None]
    real = (senders < count) & ~is_self & is_atom[:, None, None]
    senders = jnp.where(real, senders, receivers)

    # those within the reach are kept, and others as far as there is room
    wrapped = positions - images.astype(positions.dtype) @ basis
    shifted = away.astype(positions.dtype) @ basis - wrapped[:, None]
    # by components: a gather of rows takes several times as long
    apart = (wrapped[:, k][senders] + shifted[:, :, None, k] for k in range(3))
    squares = sum(component**2 for component in apart)
    near = barrier((real & (squares < grid.reach**2)).reshape(-1))
    room = min(room, grid.most_pairs(count))
    chosen, found = barrier(select_evenly(near, room))
    kept = barrier(selected(chosen, room))

    # a number of a candidate is that of its box beside, [n_atoms, n_offsets], and place in it
    visit = kept // grid.occupancy
    receivers, away = visit // beside.shape[1], away.reshape(-1, 3)[visit]
    senders, real = senders.reshape(-1)[kept], real.reshape(-1)[kept]
    away = jnp.where(real[:, None], away - images[senders] + images[receivers], 0)
    # near atoms may be farther than `aside` boxes, as a cell that shrank has them
    widths = 1 / jnp.linalg.norm(_inverse(basis), axis=0) / jnp.array(grid.boxes, jnp.int32)
    enough = widths * jnp.maximum(jnp.array(grid.aside), 1) >= grid.reach * (1 - 1e-12)
    is_narrow = jnp.any(~enough & jnp.array(grid.pbc))
    return senders, receivers, away, Needed(found, fullest, is_narrow)


def _boxes_beside(grid: Grid, box):
    """Return the boxes around each box, [n_atoms, 3], in which near atoms may be.

    The results, for each of [n_atoms, n_offsets], are how many cells away it is, along each lattice
    vector, whether there is such a box, and its number.
    """
    steps = [range(-n, n + 1) for n in grid.aside]
    beside = box[:, None] + jnp.array(list(itertools.product(*steps)), jnp.int32)
    boxes = jnp.array(grid.boxes, jnp.int32)
    away = jnp.where(jnp.array(grid.pbc), beside // boxes, 0)
    beside = beside - away * boxes
    inside = jnp.all((beside >= 0) & (beside < boxes), axis=2)
    return away, inside, _number_of(grid, jnp.where(inside[..., None], beside, 0))


def _number_of(grid: Grid, box):
    """Return the number of each box, [...], of its place along three directions, [..., 3]."""
    strides = jnp.array([grid.boxes[1] * grid.boxes[2], grid.boxes[2], 1], jnp.int32)
    return jnp.sum(box * strides, axis=-1)


def _inverse(matrix, xp=jnp):
    """Return the inverse of a 3 x 3 matrix, in a few operations on any device."""
    crossed = xp.stack([xp.cross(matrix[k - 2], matrix[k - 1]) for k in range(3)], axis=1)
    return crossed / xp.sum(matrix[0] * crossed[:, 0])


def _boxes_of(grid: Grid, positions, cell, xp=jnp):
    """Return for each atom its box, [n_atoms, 3], and image, and the basis of the boxes."""
    pbc, boxes = np.array(grid.pbc), np.array(grid.boxes)
    basis = xp.where(pbc[:, None], cell, np.array(grid.axes))
    fractions = positions @ _inverse(basis, xp)
    images = xp.where(pbc, xp.floor(fractions), 0)
    along = (fractions - images) * boxes
    box = xp.floor(xp.where(pbc, along, (fractions - xp.min(fractions, axis=0)) / grid.reach))
    # those that flew apart are in the last box: next to each other as before
    return xp.clip(box, 0, boxes - 1).astype(xp.int32), images.astype(xp.int32), basis


def _box_table(box, grid: Grid):
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
