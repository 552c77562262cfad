"""Neighbour lists, open or periodic in any direction."""

import numpy as np
import vesin

from eqfuse.data.errors import DataError

# Nearer than any nuclei in a simulation: such a pair is one atom listed twice. At zero distance
# the pair would pass for a padding edge and silently vanish from the energy.
_COINCIDENT = 1e-3


def neighbor_list(positions, cell, pbc, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All ordered pairs of atoms closer than the cutoff, periodic images included.

        vector[e] = positions[senders[e]] + shifts[e] - positions[receivers[e]]

    Cells smaller than the cutoff, skewed cells and atoms outside the cell are fine.

    Args:
      positions: [n_atoms, 3] Å.
      cell: [3, 3] Å, rows are lattice vectors; not read in non-periodic directions.
      pbc: [3] bool, which directions are periodic.
      cutoff: Å.
    Returns:
      senders (neighbours) [n_edges] int32, receivers (centres) [n_edges] int32 and shifts
      [n_edges, 3] float64 in Å, sorted by receiver, then sender, then periodic image.
    Raises:
      DataError: a cutoff that is not positive and finite, or two atoms at the same place.
    References: vesin, https://github.com/Luthaf/vesin
    """
    if not (np.isfinite(cutoff) and cutoff > 0):
        raise DataError(f"the cutoff must be a positive number of Å, got {cutoff}")
    positions = np.ascontiguousarray(positions, np.float64)
    cell = np.ascontiguousarray(cell, np.float64)
    pbc = np.ascontiguousarray(pbc, bool)
    calculator = vesin.NeighborList(cutoff=float(cutoff), full_list=True)
    receivers, senders, images, distances = calculator.compute(
        points=positions, box=cell, periodic=pbc, quantities="ijSd"
    )
    if distances.size and distances.min() < _COINCIDENT:
        pair = int(np.argmin(distances))
        raise DataError(
            f"atoms {receivers[pair]} and {senders[pair]} are at the same place "
            f"({distances[pair]:.1e} Å apart); remove one"
        )
    order = np.lexsort((images[:, 2], images[:, 1], images[:, 0], senders, receivers))
    images = images[order].astype(np.float64)
    images[:, ~pbc] = 0.0
    # Those of a molecule take no memory: large sets are mostly lists of neighbours.
    shifts = images @ cell if pbc.any() else np.broadcast_to(0.0, images.shape)
    return senders[order].astype(np.int32), receivers[order].astype(np.int32), shifts
