"""Sending what ghosts have to the ranks that own them, between neighbours."""

import numpy as np

_MARGIN = 1.1  # a box that deforms brings subdomains nearer to each other


class Exchange:
    """The ranks whose atoms may be ghosts here, or the other way around, and their atoms.

    Args:
      comm: communicator of all ranks.
      bounds: [2, 3], of the subdomain, in fractions of the box.
      widths: [3], how far ghosts are from the subdomain at most, in fractions of the box.
      periodic: [3] bool.
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
        """Ask the neighbours which of the ghosts they own; all ranks do so together.

        Args:
          own_tags: [n_own] atom IDs.
          ghost_tags: [n_ghosts] atom IDs, each once and not one's own.
        Raises:
          RuntimeError: a ghost that no neighbour owns.
        """
        order = np.argsort(own_tags)
        replies, self._incoming = [], []
        for asked in self._comm.neighbor_allgather(ghost_tags):
            place = np.searchsorted(own_tags, asked, sorter=order)
            place = order[np.minimum(place, len(order) - 1)] if len(order) else place
            owned = own_tags[place] == asked if len(order) else np.zeros(len(asked), bool)
            replies.append(owned)
            self._incoming.append(place[owned])
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
        """Add what ghosts have to what their owners have, in place; all ranks do so together.

        Args:
          of_ghosts: [n_ghosts, k].
          of_own: [n_own, k].
        """
        arrived = self._comm.neighbor_alltoall([of_ghosts[places] for places in self._outgoing])
        for places, values in zip(self._incoming, arrived, strict=True):
            of_own[places] += values  # no place twice from one rank


def _distances(bounds, own, periodic) -> np.ndarray:
    """Return how far subdomains are from the own one along each axis, [ranks, 3]."""
    distances = []
    for shift in (-1, 0, 1):
        low, high = bounds[:, 0] + shift, bounds[:, 1] + shift
        gap = np.maximum(np.maximum(low - own[1], own[0] - high), 0)
        distances.append(np.where(np.asarray(periodic) | (shift == 0), gap, np.inf))
    return np.min(distances, axis=0)
