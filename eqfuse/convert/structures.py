"""Structures of some elements, to compare networks on."""

import ase
import numpy as np
from ase.data import covalent_radii


def example_structures(elements, seed: int = 0) -> list[ase.Atoms]:
    """Return a skewed periodic cell of eight atoms, and a molecule of five, both disordered.

    Args:
      elements: atomic numbers; eight at most are taken, at random.
      seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
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


def to_arrays(structures: list[ase.Atoms]) -> dict[str, np.ndarray]:
    """Return structures as arrays, which `eqfuse/convert/original.py` reads."""
    arrays = {"count": np.array(len(structures))}
    for k, atoms in enumerate(structures):
        arrays |= {
            f"{k}_numbers": atoms.numbers,
            f"{k}_positions": atoms.positions,
            f"{k}_cell": atoms.cell.array,
            f"{k}_pbc": atoms.pbc,
        }
    return arrays


def from_arrays(arrays) -> list[ase.Atoms]:
    """Return the structures of `to_arrays`."""
    names = ("numbers", "positions", "cell", "pbc")
    return [
        ase.Atoms(**{name: arrays[f"{k}_{name}"] for name in names})
        for k in range(int(arrays["count"]))
    ]
