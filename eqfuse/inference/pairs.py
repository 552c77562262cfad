"""Neighbour lists that stay on the device.

A list holds the pairs within cutoff and skin. Each evaluation computes their vectors and passes the
pairs within the cutoff to the network, so that the skin costs a few operations and no edges: see
`eqfuse.inference.program`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data import neighbor_list
from eqfuse.ops import Edges

_PAIR_HEADROOM, _EDGE_HEADROOM, _EDGE_MULTIPLE = 1.1, 1.02, 32
_BLOCK = 16


class Pairs(NamedTuple):
    """A neighbour list, sorted by receiver.

    Attributes:
      edges: `eqfuse.ops.Edges`; padding joins a node to itself.
      images: [n_pairs, 3] int32, lattice vectors by which the sender is moved; zero for padding.
    """

    edges: Edges
    images: jax.Array


def room_for_pairs(count: int) -> int:
    """Return the number of pairs that a list of `count` pairs is padded to."""
    return _EDGE_MULTIPLE * math.ceil((_PAIR_HEADROOM * count + 1) / _EDGE_MULTIPLE)


def room_for_edges(count: int) -> int:
    """Return the number of edges of a program for about `count` edges within the cutoff.

    The headroom of 2% and two standard deviations of a Poisson distribution is for fluctuations.
    """
    room = _EDGE_HEADROOM * count + 2 * math.sqrt(count) + 1
    return _EDGE_MULTIPLE * math.ceil(room / _EDGE_MULTIPLE)


def list_pairs(positions, cell, pbc, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return senders, receivers and images of the pairs within `reach`, on the host.

    Raises:
      DataError: see `eqfuse.data.neighbor_list`.
    """
    senders, receivers, shifts = neighbor_list(positions, cell, pbc, reach)
    images = np.zeros(shifts.shape, np.int32)
    if np.any(pbc):
        images[:, pbc] = np.rint(shifts @ np.linalg.pinv(np.asarray(cell)[pbc]))
    return senders, receivers, images


def list_side_by_side(structures, pbc, cutoff: float, skin: float):
    """Return the pairs of structures whose atoms are numbered one structure after the other.

    Args:
      structures: list of (positions, cell), [n_atoms, 3] and [3, 3] Å.
      pbc: list of [3] bool, the periodic directions of each.
      cutoff, skin: Å; pairs are within both together.
    Returns:
      senders, receivers, images (see `list_pairs`), and how many of them are within the cutoff.
    Raises:
      DataError: see `eqfuse.data.neighbor_list`.
    """
    listed, near, first = [], 0, 0
    for (positions, cell), periodic in zip(structures, pbc, strict=True):
        senders, receivers, images = list_pairs(positions, cell, periodic, cutoff + skin)
        vectors = positions[senders] + images @ cell - positions[receivers]
        near += int((np.einsum("ei,ei->e", vectors, vectors) < cutoff**2).sum())
        listed.append((senders + first, receivers + first, images))
        first += len(positions)
    return *map(np.concatenate, zip(*listed, strict=True)), near


def padded_pairs(senders, receivers, images, num_nodes: int, room: int) -> Pairs:
    """Return the list of `room` pairs, of numpy arrays.

    Padding is spread over the nodes: the edges of one are summed one after the other.
    """
    padding = room - len(senders)
    loops = np.arange(padding) * num_nodes // max(padding, 1)
    senders, receivers = np.append(senders, loops), np.append(receivers, loops)
    order = np.argsort(receivers * num_nodes + senders, kind="stable")
    images = np.concatenate([images, np.zeros((padding, 3), np.int32)])[order]
    return Pairs(Edges.from_arrays(senders[order], receivers[order], num_nodes), images)


def is_valid(listed, positions, cutoff: float, skin: float) -> bool:
    """Return whether all pairs within the cutoff are in a list that reached to cutoff and skin.

    Every vector v of the list became v A + u_j - u_i, for the deformation A of the cell and the
    displacements u besides, so that it is at least as long as |v| s - 2 max |u| for the least
    singular value s of A.

    Args:
      listed: (positions, cell) for which the list was made, [n_atoms, 3] and [3, 3] Å.
      positions: (positions, cell) now; a cell that changed must have a volume.
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
    """Return a part of the pairs of a list that has all near ones, without sorting.

    Pairs that are not near fill what is left of `size`, spread over all. The list is sorted by
    receiver, and so is what is returned. If more than `size` pairs are near, the first are kept.

    Args:
      pairs: the list.
      near: [n_pairs] bool.
      size: at most n_pairs, static.
    Returns:
      the edges, which pair each of them is, [size], and how many pairs are near.
    """
    edges = pairs.edges
    # XLA would compute what is behind these barriers again for each of its uses
    number, count = jax.lax.optimization_barrier(chosen_evenly(near, size))  # [n_pairs + 1]
    if size == near.shape[0]:  # all are kept, in their order
        return edges, jnp.arange(size, dtype=jnp.int32), count
    kept = places(number, size)
    keep = number[1:] > number[:-1]
    of_sender = jax.lax.optimization_barrier(counted(keep[edges.sender_order]))
    chosen = Edges(
        senders=edges.senders[kept],
        receivers=edges.receivers[kept],
        receiver_order=jnp.arange(size, dtype=jnp.int32),
        receiver_ptr=number[edges.receiver_ptr],
        sender_order=number[edges.sender_order[places(of_sender, size)]],
        sender_ptr=of_sender[edges.sender_ptr],
        num_nodes=edges.num_nodes,
    )
    return chosen, kept, count


def chosen_evenly(near, size: int) -> tuple[jax.Array, jax.Array]:
    """Choose the near ones and others, spread evenly, that are `size` together.

    If more are near, the first are kept.

    Args:
      near: [count] bool.
      size: at most count, static.
    Returns:
      [count + 1] int32, how many are chosen before each place, and in all; and how many are near,
      which costs nothing here: a sum of them made XLA compute all of them again.
    """
    so_far = counted(near)
    until = jnp.minimum(so_far[1:], size)
    others = jnp.arange(1, len(near) + 1, dtype=jnp.int32) - until
    # how many of the first others are kept: evenly up to what is left
    due = others.astype(jnp.float64) * (size - until[-1]) / jnp.maximum(others[-1], 1)
    return jnp.append(jnp.int32(0), until + jnp.floor(due + 1e-9).astype(jnp.int32)), so_far[-1]


def counted(keep) -> jax.Array:
    """Return how many of [count] are true before each place, and in all, [count + 1] int32.

    On a CPU, XLA computes a cumulative sum in log2(count) passes over the array; a product with a
    triangular matrix leaves a sixteenth of it to them. float32 counts exactly up to 2^24.
    """
    count = keep.shape[0]
    blocks = jnp.pad(keep, (0, -count % _BLOCK)).reshape(-1, _BLOCK).astype(jnp.float32)
    inside = (blocks @ np.triu(np.ones((_BLOCK, _BLOCK), np.float32))).astype(jnp.int32)
    before = jnp.cumsum(inside[:, -1], dtype=jnp.int32) - inside[:, -1]
    return jnp.append(jnp.int32(0), (inside + before[:, None]).reshape(-1)[:count])


def places(number, size: int) -> jax.Array:
    """Return the places that are counted by `number`, [size] int32; see `counted`."""
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
