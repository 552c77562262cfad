"""Structures as arrays, for programs in other environments."""

import ase
import numpy as np


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
