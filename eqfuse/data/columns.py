"""Several samples as one array of each kind, which batches are padded from."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from eqfuse.data.structures import LABELS


@dataclasses.dataclass(frozen=True, eq=False)
class Columns:
    """The arrays of samples, one sample after the other; see `eqfuse.data.Sample` for their units.

    Attributes:
      num_atoms, num_edges: [n_samples] int64.
      positions: [n_atoms, 3].
      species: [n_atoms].
      senders, receivers: [n_edges], numbers of atoms in their sample.
      shifts: [n_edges, 3].
      cells: [n_samples, 3, 3].
      energy: [n_samples]; forces: [n_atoms, 3]; stress: [n_samples, 3, 3]; zero where unknown.
      known: [n_samples, 3] bool, which of these labels are known.
      weights: [n_samples, 3], of these labels.
    """

    num_atoms: np.ndarray
    num_edges: np.ndarray
    positions: np.ndarray
    species: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    shifts: np.ndarray
    cells: np.ndarray
    energy: np.ndarray
    forces: np.ndarray
    stress: np.ndarray
    known: np.ndarray
    weights: np.ndarray


def columns_of(samples: Sequence, indices: Sequence[int]) -> Columns:
    """Return the columns of the samples of these numbers: of stored samples, straight from disk."""
    if hasattr(samples, "columns"):
        return samples.columns(np.asarray(indices, np.int64))
    return columns([samples[i] for i in indices])


def columns(samples: Sequence) -> Columns:
    """Return the columns of samples; there may be none."""

    def joined(parts: list, size=(), dtype=np.float64) -> np.ndarray:
        return np.concatenate(parts) if parts else np.zeros((0, *size), dtype)

    def stacked(values: list, size=(), dtype=np.float64) -> np.ndarray:
        return np.array(values, dtype).reshape(-1, *size)

    def zeros(sample) -> np.ndarray:
        return np.zeros((sample.num_atoms, 3))

    no_stress = np.zeros((3, 3))
    return Columns(
        num_atoms=stacked([s.num_atoms for s in samples], dtype=np.int64),
        num_edges=stacked([s.num_edges for s in samples], dtype=np.int64),
        positions=joined([s.positions for s in samples], (3,)),
        species=joined([s.species for s in samples], dtype=np.int32),
        senders=joined([s.senders for s in samples], dtype=np.int32),
        receivers=joined([s.receivers for s in samples], dtype=np.int32),
        shifts=joined([s.shifts for s in samples], (3,)),
        cells=stacked([s.cell for s in samples], (3, 3)),
        energy=stacked([0.0 if s.energy is None else s.energy for s in samples]),
        forces=joined([zeros(s) if s.forces is None else s.forces for s in samples], (3,)),
        stress=stacked([no_stress if s.stress is None else s.stress for s in samples], (3, 3)),
        known=stacked([[getattr(s, n) is not None for n in LABELS] for s in samples], (3,), bool),
        weights=stacked([s.weights for s in samples], (3,)),
    )
