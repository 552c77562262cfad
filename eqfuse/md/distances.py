"""Distances between atoms, collected over the frames of a simulation."""

import csv
import math
from pathlib import Path

import ase
import numpy as np

from eqfuse.data import DataError, neighbor_list

REACH, WIDTH = 8.0, 0.05
"""Å: the largest distance, and the width of a bin."""


class Distances:
    """The radial distribution of a simulation.

    Attributes:
      counts: [2, n_bins]. The first row sums over frames the pairs in each bin for an atom, times
        the volume of an atom if there is one; the second begins with the number of frames.
    """

    def __init__(self, counts: np.ndarray | None = None):
        bins = round(REACH / WIDTH)
        self.counts = np.zeros((2, bins)) if counts is None else np.array(counts)

    def add(self, atoms: ase.Atoms):
        """Add the distances of a frame."""
        positions, cell, pbc = atoms.positions, atoms.cell.array, atoms.pbc
        try:
            senders, receivers, shifts = neighbor_list(positions, cell, pbc, REACH)
        except DataError:  # of more pairs than fit the memory, or flown apart
            return
        vectors = positions[senders] + shifts - positions[receivers]
        lengths = np.sqrt(np.einsum("ei,ei->e", vectors, vectors))
        bins = self.counts.shape[1]
        counts = np.bincount((lengths / WIDTH).astype(int), minlength=bins)[:bins]
        scale = abs(np.linalg.det(cell)) / len(atoms) if pbc.all() else 1.0
        self.counts[0] += counts * scale / len(atoms)
        self.counts[1, 0] += 1

    def write(self, path: Path, periodic: bool):
        """Write r (Å) and g(r), or the pairs of an atom by Å where there is no density.

        Args:
          path: the CSV file.
          periodic: in all directions.
        """
        edges = WIDTH * np.arange(self.counts.shape[1] + 1)
        shells = 4 / 3 * math.pi * np.diff(edges**3) if periodic else WIDTH
        values = self.counts[0] / max(self.counts[1, 0], 1) / shells
        with open(path, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("r_a", "g" if periodic else "pairs_by_a"))
            middles = (edges[1:] - WIDTH / 2).round(4)
            rows.writerows(np.stack([middles, values], axis=1).tolist())
