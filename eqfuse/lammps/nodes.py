"""Which of LAMMPS's atoms and ghosts are nodes of the network's graph, and its pairs."""

import dataclasses

import numpy as np

from eqfuse.data import neighbor_list


@dataclasses.dataclass(frozen=True, eq=False)
class Nodes:
    """The graph of one rank: the images of an atom are one node.

    Attributes:
      images: [n_nodes], the atom or ghost that stands for each node; the own atoms come first, then
        others by how many edges they are away.
      tags: [n_nodes], LAMMPS's atom IDs.
      away: [n_nodes], the number of edges to the nearest own atom.
      senders, receivers: [n_pairs] nodes; pairs into nodes whose energy is not needed are left out.
      shifts: [n_pairs, 3] int32, lattice vectors by which the sender's node is moved.
    """

    images: np.ndarray
    tags: np.ndarray
    away: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    shifts: np.ndarray


def list_nodes(positions, tags, num_own: int, cell, reach: float, hops: int) -> Nodes:
    """Return the nodes within some edges of the own atoms, and the pairs between them.

    Args:
      positions: [n, 3] Å, of the own atoms and then their ghosts, which are exact images.
      tags: [n] atom IDs.
      num_own: how many are own atoms.
      cell: [3, 3] Å, rows are lattice vectors.
      reach: length of the longest pair, Å.
      hops: how many edges away the outermost nodes are; these only send.
    Raises:
      DataError: two atoms at one place, or too many pairs.
    """
    if num_own == 0:
        none = np.zeros(0, np.int64)
        return Nodes(none, tags[:0], none, none, none, np.zeros((0, 3), np.int32))
    open_box = np.zeros((3, 3)), np.zeros(3, bool)  # the ghosts are the images
    senders, receivers, _ = neighbor_list(positions, *open_box, reach)
    away = count_hops(len(positions), num_own, senders, receivers, hops)
    # one image of each atom: its own, or the nearest
    order = np.lexsort((away, tags))
    firsts = order[np.unique(tags[order], return_index=True)[1]]
    others = firsts[(firsts >= num_own) & (away[firsts] <= hops)]
    others = others[np.argsort(away[others], kind="stable")]
    images = np.concatenate([np.arange(num_own), others])
    by_tag = np.argsort(tags[images])
    node_of_image = np.full(len(positions), -1)
    node_of_image[images] = np.arange(len(images))
    used = (node_of_image[receivers] >= 0) & (away[receivers] < hops)
    senders, receivers = senders[used], node_of_image[receivers[used]]
    place = np.searchsorted(tags[images], tags[senders], sorter=by_tag)
    nodes = by_tag[place]
    shifts = (positions[senders] - positions[images[nodes]]) @ np.linalg.inv(cell)
    return Nodes(
        images, tags[images], away[images], nodes, receivers, np.rint(shifts).astype(np.int32)
    )


def count_hops(count: int, num_own: int, senders, receivers, most: int) -> np.ndarray:
    """Return for each of `count` atoms how many edges it is away from the own; most + 1 if more."""
    away = np.full(count, most + 1)
    away[:num_own] = 0
    for hop in range(most):
        reached = senders[away[receivers] == hop]
        away[reached] = np.minimum(away[reached], hop + 1)
    return away
