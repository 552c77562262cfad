"""Small random structures."""

import numpy as np

from eqfuse.data import Structure

SKEWED = np.array([[3.0, 0.0, 0.0], [2.5, 3.0, 0.0], [-2.0, 1.5, 2.5]])


def random_structure(rng, n_atoms=5, *, periodic=False, stress=False, elements=(1, 6, 8)):
    """Random atoms at least about 0.8 Å apart, with random labels."""
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    sites = 1.5 * rng.permutation(grid)[:n_atoms]
    return Structure(
        numbers=rng.choice(elements, n_atoms),
        positions=sites + rng.uniform(-0.3, 0.3, (n_atoms, 3)),
        cell=6.0 * np.eye(3) + 0.5 * rng.normal(size=(3, 3)) if periodic else None,
        pbc=periodic,
        energy=rng.normal() - 1e4,
        forces=rng.normal(size=(n_atoms, 3)),
        stress=np.eye(3) * rng.normal() if stress else None,
    )
