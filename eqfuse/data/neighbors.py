"""Neighbour lists, open or periodic in any direction, and the order of atoms for them."""

import numpy as np
import vesin
from ase.data import covalent_radii

from eqfuse.data.structures import DataError, FlownApartError

# Such a pair is one atom listed twice: nuclei are never as near. At zero distance the pair would be
# taken for a padding edge and silently vanish from the energy.
COINCIDENT = 1e-3
"""Å, below which two atoms are at one place, and have no energy."""
LEAST_DISTANCE = 0.3
"""Å; no two nuclei are nearer in structures that are trained on, predicted or simulated."""
_REACH = 3.0  # of a list for the nearest pair; a shorter one has more boxes than vesin can have
_LEAST_CUTOFF = 1e-6  # vesin's
# vesin sorts atoms into boxes as wide as the cutoff, or wider ones if there are more than 1e5. It
# rounds the numbers of boxes along x, y and z down and divides by them; 3 or more do not become
# zero. Where only some directions are periodic, it compares each box with all boxes along the
# others: 1e8 comparisons take 20 s.
_BOXES, _FEWEST_BOXES, _COMPARED = 0.9e5, 3, 1e8
# 5e7 pairs take 6 GB while they are listed, and a model needs kilobytes for each. 1e5 neighbours of
# an atom are within 60 Å in a metal; more mean that the cell is too small. vesin looks at a hundred
# empty images of a box in the time of a pair.
_MOST_PAIRS, _MOST_NEIGHBORS, _IMAGES_PER_PAIR = 5e7, 1e5, 100


def neighbor_list(
    positions, cell, pbc, cutoff: float, *, least: float = COINCIDENT
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all ordered pairs of atoms closer than the cutoff, periodic images included.

        vector[e] = positions[senders[e]] + shifts[e] - positions[receivers[e]]

    Cells smaller than the cutoff, skewed cells and atoms outside the cell, however far, are fine.

    Args:
      positions: [n_atoms, 3] Å.
      cell: [3, 3] Å, rows are lattice vectors; not read in non-periodic directions.
      pbc: [3] bool, which directions are periodic.
      cutoff: Å.
      least: Å; atoms that are nearer are refused.
    Returns:
      senders (neighbours) [n_edges] int32, receivers (centres) [n_edges] int32 and shifts
      [n_edges, 3] float64 in Å, sorted by receiver, then sender, then periodic image.
    Raises:
      DataError: a cutoff that is not finite and above 1e-6 Å, two atoms nearer than `least`, or
        more than about 5e7 pairs or 1e5 for each atom, estimated before any is looked for.
      FlownApartError: atoms too far apart, or a vacuum too wide: more than 1e5 cutoffs along a line
        or 300 in a plane; along non-periodic directions of a narrow slab 1e4, of a wire 100.
    References: vesin, https://github.com/Luthaf/vesin
    """
    if not (np.isfinite(cutoff) and cutoff > _LEAST_CUTOFF):
        raise DataError(
            f"the cutoff must be a positive number of Å, above {_LEAST_CUTOFF}, got {cutoff}"
        )
    positions = np.ascontiguousarray(positions, np.float64)
    cell = np.ascontiguousarray(cell, np.float64)
    pbc = np.ascontiguousarray(pbc, bool)
    away = _cells_away(positions, cell, pbc)
    points = positions - away @ cell
    _require_together(points, cell, pbc, cutoff)
    # No pair of a molecule is further apart, and vesin looks for its images within all of `reach`.
    size = 1 + 1.01 * np.linalg.norm(np.ptp(points, axis=0))
    reach = cutoff if pbc.any() else min(cutoff, size)
    _require_few_pairs(points, cell, pbc, reach)
    calculator = vesin.NeighborList(cutoff=float(reach), full_list=True)
    receivers, senders, images, distances = calculator.compute(
        points=points, box=cell, periodic=pbc, quantities="ijSd"
    )
    if distances.size and distances.min() < least:
        pair = int(np.argmin(distances))
        raise coincident(receivers[pair], senders[pair], distances[pair])
    images = images + away[receivers] - away[senders]
    order = np.lexsort((images[:, 2], images[:, 1], images[:, 0], senders, receivers))
    images = images[order]
    images[:, ~pbc] = 0.0
    # Those of a molecule take no memory: large sets are mostly lists of neighbours.
    shifts = images @ cell if pbc.any() else np.broadcast_to(0.0, images.shape)
    return senders[order].astype(np.int32), receivers[order].astype(np.int32), shifts


def coincident(a: int, b: int, distance: float) -> DataError:
    """Return the error of two atoms that are too near, or at one place."""
    first, second = sorted((int(a), int(b)))
    pair = f"atoms {first} and {second}"
    if distance < COINCIDENT:
        return DataError(f"{pair} are at the same place ({distance:.1e} Å apart); remove one")
    return DataError(
        f"{pair} overlap: they are {distance:.3g} Å apart, and no nuclei are nearer than "
        f"{LEAST_DISTANCE} Å; correct the positions or the cell"
    )


BONDED = 1.25
"""Times the sum of covalent radii; atoms that are nearer are bonded."""


def pairs_by_radii(numbers, positions, cell, pbc, reach: float) -> tuple[np.ndarray, ...]:
    """Return the pairs of atoms nearer than `reach` times the sum of their covalent radii.

    The results are senders, receivers and shifts as of `neighbor_list`, lengths in Å, and over the
    sum of the radii.
    """
    radii = covalent_radii[numbers]
    i, j, shifts = neighbor_list(positions, cell, pbc, 2 * reach * radii.max())
    length = np.linalg.norm(positions[i] + shifts - positions[j], axis=1)
    relative = length / (radii[i] + radii[j])
    near = relative < reach
    return i[near], j[near], shifts[near], length[near], relative[near]


def require_apart(structure) -> None:
    """Refuse a structure, or ASE's atoms, of which two are nearer than `LEAST_DISTANCE`."""
    cell = getattr(structure.cell, "array", structure.cell)
    neighbor_list(structure.positions, cell, structure.pbc, _REACH, least=LEAST_DISTANCE)


def centred(positions, cell, pbc, senders, receivers, shifts) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of the atoms near the first one, around the origin, and shifts of these.

    The vectors of edges are the same, of smaller numbers, as float32 needs.
    """
    lattice = cell[pbc]
    moved = np.rint((positions - positions[0]) @ np.linalg.pinv(lattice)) @ lattice
    positions = positions - moved
    shifts = shifts + moved[senders] - moved[receivers] if moved.any() else shifts
    return positions - positions.mean(axis=0), shifts


def _cells_away(positions, cell, pbc) -> np.ndarray:
    """Return the cell that each atom is in, [n_atoms, 3]; 0 along non-periodic directions."""
    away = np.zeros(positions.shape)
    away[:, pbc] = np.floor(positions @ np.linalg.pinv(cell[pbc]))
    return away


def _extent(points, cell, pbc) -> np.ndarray:
    """Return the distance between faces of the cell, or of the first and last atom, [3] Å."""
    extent = np.ptp(points, axis=0)
    with np.errstate(divide="ignore"):
        extent[pbc] = 1 / np.linalg.norm(np.linalg.pinv(cell[pbc]), axis=0)
    return extent


def _require_together(points, cell, pbc, cutoff: float) -> None:
    """Refuse points for which vesin would divide by zero, which ends the process, or need hours."""
    extent = _extent(points, cell, pbc)
    with np.errstate(over="ignore", invalid="ignore"):  # cells of 1e154 Å and more
        boxes = np.maximum(np.floor(extent / cutoff), 1)
        excess = boxes.prod() / _BOXES
        if excess > 1:
            boxes /= np.cbrt(excess)
        divides_by_zero = excess > 1 and not boxes.min() >= _FEWEST_BOXES
        takes_hours = pbc.any() and not boxes.prod() * boxes[~pbc].prod() <= _COMPARED
    if divides_by_zero or takes_hours:
        spread = " × ".join(f"{length:.3g}" for length in extent)
        raise FlownApartError(
            f"atoms have flown apart, or a cell is too wide: they are spread over {spread} Å, too "
            f"far for a list of neighbours within {cutoff:.3g} Å; leave out this structure or the "
            "atoms far away, or make directions with a wide vacuum non-periodic"
        )


def _require_few_pairs(points, cell, pbc, cutoff: float) -> None:
    """Refuse a neighbour list that does not fit the memory, or takes hours.

    Along lattice vectors shorter than twice the cutoff, the density of the images is that of the
    lattice; along other directions, atoms are counted in boxes as wide as the cutoff.
    """
    lengths = _extent(points, cell, pbc)
    lengths[~pbc] = np.maximum(lengths[~pbc], 1)
    with np.errstate(over="ignore"):
        short = cell[pbc & (lengths < 2 * cutoff)]
        ball = (1, 2, np.pi, 4 / 3 * np.pi)[len(short)] * np.float64(cutoff) ** len(short)
        images = ball / np.sqrt(np.linalg.det(short @ short.T))
        across = points - points @ np.linalg.pinv(short) @ short
        boxes = np.unique(np.round(across / cutoff), axis=0, return_counts=True)[1]
        pairs = images * (boxes.astype(np.float64) ** 2).sum()
        looked_at = np.prod(np.maximum(2 * cutoff / lengths, 1)) / _IMAGES_PER_PAIR
    pairs, count = max(pairs, looked_at), len(points)
    if not pairs <= min(_MOST_PAIRS, _MOST_NEIGHBORS * count):
        raise DataError(
            f"{count} atoms in a cell of {cell.tolist()} Å have about {pairs:.1g} pairs within "
            f"{cutoff:.3g} Å, and at most {_MOST_PAIRS:.0e}, and {_MOST_NEIGHBORS:.0e} for each "
            "atom, are listed, for memory and time; lower the cutoff (a calculator adds its skin "
            "to it), or correct the cell"
        )


LARGE = 512
"""Atoms from which on a structure is sorted; the features of fewer stay in a cache in any order."""
_BITS = 20  # of the number of a box along an axis: three of them fit 63 bits


def spatial_order(positions, cell, pbc, cutoff: float) -> np.ndarray:
    """Return the atoms along a space-filling curve (Z-order); few atoms keep their order.

    A kernel reads the features of all neighbours of an atom; those of the atom before are mostly
    the same, and still in the cache. Atoms in a box of a quarter of the cutoff keep their order.

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
    """Return a neighbour list for atoms in another order, sorted by receiver, then sender."""
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    senders, receivers = number[senders], number[receivers]
    edges = np.lexsort((senders, receivers))
    return senders[edges], receivers[edges], shifts[edges]
