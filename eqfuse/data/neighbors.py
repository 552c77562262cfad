"""Neighbour lists, open or periodic in any direction."""

import numpy as np
import vesin

from eqfuse.data.errors import DataError, FlownApartError

# Nearer than any nuclei in a simulation: such a pair is one atom listed twice. At zero distance
# the pair would pass for a padding edge and silently vanish from the energy.
_COINCIDENT = 1e-3
_LEAST_CUTOFF = 1e-6  # vesin's
# vesin sorts atoms into boxes as wide as the cutoff, of which it makes wider ones where they are
# more than 1e5 (a few per cent of margin here). It rounds their numbers along x, y and z down, one
# after the other, and divides by them: with 3 or more before that, none becomes zero. Where only
# some directions are periodic, it compares each box with all along the others: 1e8 take 20 s.
_BOXES, _FEWEST_BOXES, _COMPARED = 0.9e5, 3, 1e8


def neighbor_list(positions, cell, pbc, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All ordered pairs of atoms closer than the cutoff, periodic images included.

        vector[e] = positions[senders[e]] + shifts[e] - positions[receivers[e]]

    Cells smaller than the cutoff, skewed cells and atoms outside the cell, however far, are fine.

    Args:
      positions: [n_atoms, 3] Å.
      cell: [3, 3] Å, rows are lattice vectors; not read in non-periodic directions.
      pbc: [3] bool, which directions are periodic.
      cutoff: Å.
    Returns:
      senders (neighbours) [n_edges] int32, receivers (centres) [n_edges] int32 and shifts
      [n_edges, 3] float64 in Å, sorted by receiver, then sender, then periodic image.
    Raises:
      DataError: a cutoff that is not finite and above 1e-6 Å, or two atoms at the same place.
      FlownApartError: atoms too far apart in directions that are not periodic: those of a molecule
        by 1e5 cutoffs along a line or 300 in a plane, of a narrow slab by 1e4, of a wire by 100.
    References: vesin, https://github.com/Luthaf/vesin
    """
    if not (np.isfinite(cutoff) and cutoff > _LEAST_CUTOFF):
        raise DataError(f"the cutoff must be a number of Å above {_LEAST_CUTOFF}, got {cutoff}")
    positions = np.ascontiguousarray(positions, np.float64)
    cell = np.ascontiguousarray(cell, np.float64)
    pbc = np.ascontiguousarray(pbc, bool)
    away = _cells_away(positions, cell, pbc)
    points = positions - away @ cell
    _require_together(points, cell, pbc, cutoff)
    calculator = vesin.NeighborList(cutoff=float(cutoff), full_list=True)
    receivers, senders, images, distances = calculator.compute(
        points=points, box=cell, periodic=pbc, quantities="ijSd"
    )
    if distances.size and distances.min() < _COINCIDENT:
        pair = int(np.argmin(distances))
        raise DataError(
            f"atoms {receivers[pair]} and {senders[pair]} are at the same place "
            f"({distances[pair]:.1e} Å apart); remove one"
        )
    images = images + away[receivers] - away[senders]
    order = np.lexsort((images[:, 2], images[:, 1], images[:, 0], senders, receivers))
    images = images[order]
    images[:, ~pbc] = 0.0
    # Those of a molecule take no memory: large sets are mostly lists of neighbours.
    shifts = images @ cell if pbc.any() else np.broadcast_to(0.0, images.shape)
    return senders[order].astype(np.int32), receivers[order].astype(np.int32), shifts


def lattice_offsets(positions, cell, pbc) -> np.ndarray:
    """The lattice vector between each atom and its image in the cell, [n_atoms, 3] float64 in Å.

    What is left without it are small numbers, which single precision resolves.

    Args:
      positions: [n_atoms, 3] Å.
      cell: [3, 3] Å, rows are lattice vectors; not read in non-periodic directions.
      pbc: [3] bool, which directions are periodic.
    """
    return _cells_away(positions, cell, pbc) @ cell


def _cells_away(positions, cell, pbc) -> np.ndarray:
    """How many cells each atom is outside of its own, [n_atoms, 3]; 0 in other directions."""
    away = np.zeros(positions.shape)
    away[:, pbc] = np.floor(positions @ np.linalg.pinv(cell[pbc]))
    return away


def _require_together(points, cell, pbc, cutoff: float) -> None:
    """Refuse what vesin would divide by zero for, which ends the process, or need hours for.

    Raises:
      FlownApartError: points in too many boxes.
    """
    extent = np.ptp(points, axis=0)
    extent[pbc] = 1 / np.linalg.norm(np.linalg.pinv(cell[pbc]), axis=0)
    # logarithms, which do not overflow
    boxes = np.log(np.maximum(np.floor(extent / cutoff), 1))
    excess = boxes.sum() - np.log(_BOXES)
    if excess > 0:
        boxes -= excess / 3
    ends = excess > 0 and boxes.min() < np.log(_FEWEST_BOXES)
    lasts = pbc.any() and boxes.sum() + boxes[~pbc].sum() > np.log(_COMPARED)
    if ends or lasts:
        spread = " × ".join(f"{length:.3g}" for length in extent)
        raise FlownApartError(
            f"atoms have flown apart: they are spread over {spread} Å, too far for a list of "
            f"neighbours within {cutoff:.3g} Å; leave out this structure, or the atoms far away"
        )
