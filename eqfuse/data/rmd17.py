"""Structures from the npz files of the revised MD17 data set."""

import os

import ase.units
import numpy as np

from eqfuse.data.errors import DataError
from eqfuse.data.structures import Structure

_KEYS = ("nuclear_charges", "coords", "energies", "forces")


def read_rmd17(path: str | os.PathLike) -> list[Structure]:
    """Read a molecular-dynamics trajectory of one molecule in the layout of rMD17.

    The file holds `nuclear_charges` [n_atoms], `coords` [n_frames, n_atoms, 3] in Å, `energies`
    [n_frames] in kcal/mol and `forces` [n_frames, n_atoms, 3] in kcal/mol/Å.

    Args:
      path: the npz file.
    Returns:
      one Structure per frame, in order; energies in eV, forces in eV/Å.
    Raises:
      DataError: a missing or unreadable file, missing arrays, shapes that do not fit, an unknown
        element, NaN or infinity. Names the file and the frame, counted from 0.
    References: Christensen and von Lilienfeld 2020, doi:10.1088/2632-2153/abba6f.
    """
    arrays = _load(path)
    numbers, coords = arrays["nuclear_charges"], arrays["coords"]
    shape = (len(coords), len(numbers), 3) if coords.ndim and numbers.ndim == 1 else None
    energies = arrays["energies"].reshape(-1)
    forces = arrays["forces"]
    if coords.shape != shape or forces.shape != shape or len(energies) != len(coords):
        shapes = ", ".join(f"{key} {arrays[key].shape}" for key in _KEYS)
        raise DataError(
            f"{path}: shapes do not fit: {shapes}; expected [n_atoms], [n_frames, n_atoms, 3], "
            "[n_frames], [n_frames, n_atoms, 3]"
        )
    if len(coords) == 0:
        raise DataError(f"{path} has no frames; give a file with structures in it")
    kcal_per_mol = ase.units.kcal / ase.units.mol
    structures = []
    for frame in range(len(coords)):
        try:
            structures.append(
                Structure(
                    numbers=numbers,
                    positions=coords[frame],
                    energy=np.float64(energies[frame]) * kcal_per_mol,
                    forces=np.asarray(forces[frame], np.float64) * kcal_per_mol,
                )
            )
        except DataError as err:
            raise DataError(f"{path}, frame {frame}: {err}") from err
    return structures


def _load(path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as stream, _npz(path, stream) as file:
            missing = [key for key in _KEYS if key not in file]
            if missing:
                raise DataError(
                    f"{path} has no {', '.join(missing)}; it has {', '.join(file) or 'nothing'} "
                    f"and the layout of rMD17 needs {', '.join(_KEYS)}"
                )
            return {key: file[key] for key in _KEYS}
    except FileNotFoundError as err:
        raise DataError(f"no such file: {path}; check the path (data.path)") from err
    except DataError:
        raise
    except Exception as err:  # zip, zlib and numpy raise many types on broken files
        raise DataError(f"{path} cannot be read as an npz file: {err}") from err


def _npz(path, stream) -> np.lib.npyio.NpzFile:
    file = np.load(stream, allow_pickle=False)
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise DataError(f"{path} is a single array, not an npz file with {', '.join(_KEYS)}")
    return file
