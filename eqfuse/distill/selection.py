"""Which frames are labelled: those of a large spread, far from each other, and no near copies."""

from collections.abc import Sequence

import ase
import numpy as np

from eqfuse.data import neighbor_list
from eqfuse.inference.descriptors import descriptors

_COPY = 0.05
"""Distance of near copies: RMS over features, in standard deviations of these."""
_REACH, _WIDTH = 6.0, 0.3  # Å, of distances where there is no network


def features(frames: Sequence[ase.Atoms], network=None) -> np.ndarray:
    """Return features of frames, [n_frames, n_features]: mean and deviation over their atoms.

    They are the scalars in all layers of a network or, without one, the numbers of neighbours of an
    atom by distance.
    """
    rows = descriptors(network, list(frames)) if network else [*map(_distances, frames)]
    return np.stack([np.concatenate([row.mean(axis=0), row.std(axis=0)]) for row in rows])


def _distances(atoms: ase.Atoms) -> np.ndarray:
    places = np.arange(_WIDTH, _REACH, _WIDTH)
    pairs = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, _REACH + 3 * _WIDTH)
    senders, receivers, shifts = pairs
    vectors = atoms.positions[senders] + shifts - atoms.positions[receivers]
    away = (np.linalg.norm(vectors, axis=1)[:, None] - places) / _WIDTH
    rows = np.zeros((len(atoms), len(places)))
    np.add.at(rows, receivers, np.exp(-(away**2) / 2))
    return rows


def choose(frames, known, number: int, *, network=None, spreads=None) -> list[int]:
    """Return which frames to label: the farthest from the known ones and from each other.

    Of frames with spreads, those of the smaller half are left out, unless too few remain. A frame
    nearer than 0.05 standard deviations of the features to another is a copy, and left out.

    Args:
      frames: candidates.
      known: labelled frames; may be none.
      number: of frames at most.
      network: whose features are compared, see `features`.
      spreads: of the forces of each frame, eV/Å; None where there is no network.
    """
    if not frames:
        return []
    rows = features([*known, *frames], network)
    deviation = rows.std(axis=0)
    varied = deviation > 1e-6 * np.abs(rows).max(initial=1e-300)
    rows = rows[:, varied] / deviation[varied]
    rows = rows / np.sqrt(max(rows.shape[1], 1))
    known, rows = rows[: len(known)], rows[len(known) :]
    nearest = np.full(len(rows), np.inf)
    for row in known:
        nearest = np.minimum(nearest, np.linalg.norm(rows - row, axis=1))
    if spreads is not None:
        kept = max(number, len(rows) // 2)
        nearest[np.argsort(-np.asarray(spreads), kind="stable")[kept:]] = -np.inf
    chosen = []
    while len(chosen) < number and nearest.max() > _COPY:
        chosen.append(int(nearest.argmax()))
        away = np.linalg.norm(rows - rows[chosen[-1]], axis=1)
        nearest = np.minimum(nearest, away)
    return chosen
