"""Neighbour lists, which the host makes, and which are kept while they hold all pairs.

A list holds the pairs within cutoff and skin. Each evaluation computes their vectors and passes the
pairs within the cutoff to the network, so that the skin costs a few operations and no edges: see
`eqfuse.inference.evaluator`. All headroom of padded arrays is chosen here.
"""

import contextlib
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.data import DataError, neighbor_list
from eqfuse.ops import Edges

_PAIR_HEADROOM, _EDGE_HEADROOM, _EDGE_MULTIPLE = 1.1, 1.02, 32
_NODE_HEADROOM, _NODE_MULTIPLE = 1.1, 4
_BLOCK = 16


class Pairs(NamedTuple):
    """A neighbour list, sorted by receiver."""

    edges: Edges  # padding joins a node to itself
    images: jax.Array  # [n_pairs, 3] int32, lattice vectors that are added to the sender


def room_for_pairs(count: int) -> int:
    """Return the number of pairs that a list of `count` pairs is padded to."""
    return _EDGE_MULTIPLE * math.ceil((_PAIR_HEADROOM * count + 1) / _EDGE_MULTIPLE)


def room_for_edges(count: int) -> int:
    """Return the number of edges of a program for about `count` edges within the cutoff.

    The headroom of 2% and two standard deviations of a Poisson distribution is for fluctuations.
    """
    room = _EDGE_HEADROOM * count + 2 * math.sqrt(count) + 1
    return _EDGE_MULTIPLE * math.ceil(room / _EDGE_MULTIPLE)


def room_for_nodes(count: int) -> int:
    """Return the number of nodes of a program for structures whose number of atoms changes."""
    return _NODE_MULTIPLE * math.ceil(int(_NODE_HEADROOM * count + 1) / _NODE_MULTIPLE)


def list_pairs(positions, cell, pbc, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return senders, receivers and images of the pairs within `reach`, on the host."""
    senders, receivers, shifts = neighbor_list(positions, cell, pbc, reach)
    images = np.zeros(shifts.shape, np.int32)
    if np.any(pbc):
        images[:, pbc] = np.rint(shifts @ np.linalg.pinv(np.asarray(cell)[pbc]))
    return senders, receivers, images


def list_side_by_side(structures, pbc, cutoff: float, skin: float, names=None):
    """Return the pairs of (positions, cell) side by side: senders, receivers, images.

    The last result is the number of pairs within the cutoff; names are for messages.
    """
    listed, near, first = [], 0, 0
    for k, ((positions, cell), periodic) in enumerate(zip(structures, pbc, strict=True)):
        with naming(names and names[k]):
            pairs = list_pairs(positions, cell, periodic, cutoff + skin)
        near += count_near(positions, cell, *pairs, cutoff)
        listed.append((pairs[0] + first, pairs[1] + first, pairs[2]))
        first += len(positions)
    return *map(np.concatenate, zip(*listed, strict=True)), near


@contextlib.contextmanager
def naming(name: str | None):
    try:
        yield
    except DataError as error:
        if name is None:
            raise
        raise type(error)(f"{name}: {error}") from error


def count_near(positions, cell, senders, receivers, images, cutoff: float) -> int:
    """Return the number of pairs within the cutoff."""
    vectors = positions[senders] + images @ cell - positions[receivers]
    return int((np.einsum("ei,ei->e", vectors, vectors) < cutoff**2).sum())


def padded_pairs(senders, receivers, images, num_nodes: int, room: int) -> Pairs:
    """Return a list of `room` pairs, whose padding is spread over the nodes.

    The edges of one node are summed one after the other.
    """
    padding = room - len(senders)
    loops = np.arange(padding) * num_nodes // max(padding, 1)
    senders, receivers = np.append(senders, loops), np.append(receivers, loops)
    order = np.argsort(receivers * num_nodes + senders, kind="stable")
    images = np.concatenate([images, np.zeros((padding, 3), np.int32)])[order]
    return Pairs(Edges.from_arrays(senders[order], receivers[order], num_nodes), images)


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
    # XLA would compute what is behind these barriers again for each of its uses
    number, count = jax.lax.optimization_barrier(select_evenly(near, size))  # [n_pairs + 1]
    if size == near.shape[0]:  # all are kept, in their order
        return edges, jnp.arange(size, dtype=jnp.int32), count
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
