"""The domain decomposition of LAMMPS: the graph of a rank, and what ghosts have, sent home."""

import dataclasses

import numpy as np

from eqfuse.data import neighbor_list

_MARGIN = 1.1  # a box that deforms brings subdomains nearer to each other


@dataclasses.dataclass(frozen=True, eq=False)
class Nodes:
    """The graph of one rank: the images of an atom are one node."""

    images: np.ndarray  # [n_nodes] the atom or ghost of each node; own ones first, then by `away`
    tags: np.ndarray  # [n_nodes] LAMMPS's atom IDs
    away: np.ndarray  # [n_nodes] the number of edges to the nearest own atom
    senders: np.ndarray  # [n_pairs] nodes; no pairs into nodes whose energy is not needed
    receivers: np.ndarray
    shifts: np.ndarray  # [n_pairs, 3] int32, lattice vectors that are added to the sender


def list_nodes(positions, tags, num_own: int, cell, reach: float, hops: int) -> Nodes:
    """Return the nodes within `hops` edges (of at most `reach`) of the own atoms, and the pairs.

    Positions are those of the own atoms and then of their ghosts, which are exact images. The
    outermost nodes only send.
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


class Exchange:
    """The ranks whose atoms may be ghosts here, or the other way around, and their atoms.

    Bounds of the subdomain, [2, 3], and the widths of the ghosts around it, [3], are fractions of
    the box.
    """

    def __init__(self, comm, bounds, widths, periodic):
        all_bounds = np.array(comm.allgather(np.asarray(bounds, np.float64)))  # [ranks, 2, 3]
        apart = _distances(all_bounds, all_bounds[comm.rank], periodic)
        near = (apart <= _MARGIN * np.asarray(widths)).all(axis=1)
        near[comm.rank] = False
        self.ranks = np.flatnonzero(near).tolist()
        self._comm = comm.Create_dist_graph_adjacent(self.ranks, self.ranks)
        self._outgoing, self._incoming = [], []

    def free(self):
        """Free the communicator; all ranks do so together."""
        self._comm.Free()

    def connect(self, own_tags, ghost_tags):
        """Ask the neighbours which of the ghosts they own; all ranks do so together."""
        order = np.argsort(own_tags)
        replies, self._incoming = [], []
        for asked in self._comm.neighbor_allgather(ghost_tags):
            owned = np.isin(asked, own_tags)
            place = np.searchsorted(own_tags, asked[owned], sorter=order)
            replies.append(owned)
            self._incoming.append(order[place])
        owned = self._comm.neighbor_alltoall(replies)
        self._outgoing = [np.flatnonzero(of_rank) for of_rank in owned]
        owners = sum(of_rank.astype(int) for of_rank in owned) + np.zeros(len(ghost_tags), int)
        if (owners != 1).any():
            ghost = int(np.flatnonzero(owners != 1)[0])
            raise RuntimeError(
                f"atom {ghost_tags[ghost]} is a ghost that {owners[ghost]} of the ranks "
                f"{self.ranks} own; is the communication cutoff that of eqfuse?"
            )

    def send_home(self, of_ghosts, of_own):
        """Add what ghosts have to what their owners have, in place; all ranks do so together."""
        arrived = self._comm.neighbor_alltoall([of_ghosts[places] for places in self._outgoing])
        for places, values in zip(self._incoming, arrived, strict=True):
            of_own[places] += values  # no place twice from one rank


def _distances(bounds, own, periodic) -> np.ndarray:
    """Return the distances of subdomains from the own one along each axis, [ranks, 3]."""
    distances = []
    for shift in (-1, 0, 1):
        low, high = bounds[:, 0] + shift, bounds[:, 1] + shift
        gap = np.maximum(np.maximum(low - own[1], own[0] - high), 0)
        distances.append(np.where(np.asarray(periodic) | (shift == 0), gap, np.inf))
    return np.min(distances, axis=0)
