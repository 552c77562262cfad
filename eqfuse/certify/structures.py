"""Structures that find faults: small, large, skewed, thin and open cells, and a close pair."""

import ase
import numpy as np
from ase.data import covalent_radii

_SKEWED = np.array([[1.0, 0.0, 0.0], [0.45, 1.0, 0.0], [-0.3, 0.4, 1.0]])


def made_structures(elements) -> list[ase.Atoms]:
    """Return disordered structures of some elements, by name in `info["name"]`.

    Args:
      elements: atomic numbers.
    """
    rng = np.random.default_rng(0)
    elements = np.array(sorted(elements))
    spacing = 2.3 * covalent_radii[elements].max()

    def grid(name, counts, shape=None, periodic=True):
        number = int(np.prod(counts))
        numbers = np.resize(rng.permutation(elements), number)
        places = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1).reshape(-1, 3)
        cell = spacing * np.diag(counts) @ (np.eye(3) if shape is None else shape)
        moved = rng.normal(scale=0.04 * spacing, size=(number, 3))
        positions = (places / counts) @ cell + moved
        cell = cell if np.any(periodic) else None
        return ase.Atoms(numbers, positions, cell=cell, pbc=periodic, info={"name": name})

    slab = grid("slab", (2, 2, 2), periodic=(True, True, False))
    slab.center(vacuum=10.0, axis=2)
    molecule = grid("molecule", (3, 2, 2), periodic=False)
    close = grid("close pair", (2, 2, 1), periodic=False)
    close.set_distance(0, 1, 0.4 * spacing, fix=0)
    return [
        grid("one atom", (1, 1, 1), 0.9 * _SKEWED),
        grid("skewed cell", (2, 2, 2), _SKEWED),
        slab,
        molecule,
        close,
        grid("large cell", (5, 5, 4)),
    ]
