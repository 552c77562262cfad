"""The order of the atoms of large structures: those near in space are near in memory."""

import numpy as np

LARGE = 512
"""Atoms from which on a structure is sorted; the features of fewer stay in a cache in any order."""
_BITS = 20  # of the number of a box along an axis: three of them fit 63 bits


def spatial_order(positions, cell, pbc, cutoff: float) -> np.ndarray:
    """Return the atoms along a space-filling curve (Z-order); few atoms keep their order.

    A kernel reads the features of all neighbours of an atom; those of the atom before are mostly
    the same, and still in the cache.

    Args:
      positions: [n_atoms, 3] Å, in or out of the cell.
      cell: [3, 3] Å, rows are lattice vectors.
      pbc: [3] bool, the periodic directions.
      cutoff: Å; atoms in a box of a quarter of it keep their order.
    Returns:
      [n_atoms] int64, a permutation.
    References: Morton 1966, A computer oriented geodetic data base (IBM technical report).
    """
    count = len(positions)
    if count < LARGE:
        return np.arange(count)
    at = np.array(positions, np.float64)
    if np.any(pbc):  # the image in the cell
        lattice = np.asarray(cell)[pbc]
        at -= np.floor(at @ np.linalg.pinv(lattice)) @ lattice
    at -= at.min(axis=0)
    width = max(cutoff / 4, at.max() / (2**_BITS - 1))
    boxes = (at / width).astype(np.int64)
    curve = np.zeros(count, np.int64)
    for bit in range(_BITS):
        for axis in range(3):
            curve |= ((boxes[:, axis] >> bit) & 1) << (3 * bit + axis)
    return np.argsort(curve, kind="stable")


def renumbered(order, senders, receivers, shifts) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a neighbour list for atoms in another order, sorted by receiver, then sender.

    Args:
      order: [n_atoms], the atoms in their new order.
      senders, receivers, shifts: see `eqfuse.data.neighbor_list`.
    """
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    senders, receivers = number[senders], number[receivers]
    edges = np.lexsort((senders, receivers))
    return senders[edges], receivers[edges], shifts[edges]
