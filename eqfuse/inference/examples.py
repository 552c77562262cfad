"""Structures of some elements, to compare networks on."""

import ase
import numpy as np
from ase.data import covalent_radii


def example_structures(elements) -> list[ase.Atoms]:
    """Return a skewed periodic cell of eight atoms, and a molecule of five, both disordered.

    Args:
      elements: atomic numbers; eight at most are taken, at random.
    """
    rng = np.random.default_rng(0)
    elements = np.array(sorted(elements))
    numbers = rng.permutation(elements)[:8]
    numbers = np.concatenate([numbers, rng.choice(elements, 8 - len(numbers))])
    spacing = 2.1 * covalent_radii[numbers].mean()
    cell = 2 * spacing * np.array([[1, 0, 0], [0.06, 1.05, 0], [0.02, -0.08, 0.95]])
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)
    places = (grid + 0.5) / 2 + rng.normal(size=(8, 3)) * 0.03
    crystal = ase.Atoms(numbers, places @ cell, cell=cell, pbc=True)
    molecule = ase.Atoms(numbers[:5], 0.9 * crystal.positions[:5])
    return [crystal, molecule]
