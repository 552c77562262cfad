"""Structures from the npz files of the revised MD17 and the MD22 data sets."""

import os
from collections.abc import Iterator

import ase
import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse.data.readers.format import UNITS, Room, Units, require_file
from eqfuse.data.structures import DataError

_RMD17 = ("nuclear_charges", "coords", "energies", "forces")
_MD22 = ("z", "R", "E", "F")


def frames_of_rmd17(path: str | os.PathLike) -> Iterator[ase.Atoms]:
    """Yield the frames of one molecule in the layout of rMD17 or of MD22.

    The file holds `nuclear_charges` [n_atoms], `coords` [n_frames, n_atoms, 3], `energies`
    [n_frames] and `forces` [n_frames, n_atoms, 3]; or the same as `z`, `R`, `E` and `F`. Energies
    are in kcal/mol and lengths in Å, unless the file names its units as sGDML does, by `e_unit` and
    `r_unit`.

    References: Christensen and von Lilienfeld 2020, doi:10.1088/2632-2153/abba6f; Chmiela et al.
      2023, doi:10.1126/sciadv.adf0873.
    """
    arrays, units = _load(path)
    numbers, coords, energies, forces = arrays.values()
    for kinds, key in zip(("biu", "biuf", "biuf", "biuf"), arrays, strict=True):
        if arrays[key].dtype.kind not in kinds:
            real = "real numbers" if "f" in kinds else "integers"
            raise DataError(f"{path}: {key} must be {real}, and is {arrays[key].dtype}")
    shape = (len(coords), len(numbers), 3) if coords.ndim and numbers.ndim == 1 else None
    energies = energies.reshape(-1)
    if coords.shape != shape or forces.shape != shape or len(energies) != len(coords):
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise DataError(
            f"{path}: shapes do not fit: {shapes}; expected [n_atoms], [n_frames, n_atoms, 3], "
            "[n_frames], [n_frames, n_atoms, 3]"
        )
    for places, energy, force in zip(coords, energies, forces, strict=True):
        atoms = ase.Atoms(numbers, places, info={UNITS: units})
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=force)
        yield atoms


def _load(path) -> tuple[dict[str, np.ndarray], Units]:
    """Return the arrays and their units."""
    require_file(path)
    try:
        with open(path, "rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(
                    f"{path} is a single array, not an npz file with {', '.join(_RMD17)}"
                )
            Room(path, 8).take(sum(part.file_size for part in file.zip.infolist()))
            keys = _MD22 if set(_MD22) <= set(file) else _RMD17
            missing = [key for key in keys if key not in file]
            if missing:
                raise DataError(
                    f"{path} has no {', '.join(missing)}; it has {', '.join(file) or 'nothing'}, "
                    f"rMD17 has {', '.join(_RMD17)} and MD22 {', '.join(_MD22)}"
                )
            if "lattice" in file:
                raise DataError(
                    f"{path} has a lattice, and rMD17 and MD22 are molecules; write extended XYZ"
                )
            return {key: file[key] for key in keys}, _units(path, file)
    except DataError:
        raise
    except Exception as err:  # zip, zlib and numpy raise many types on broken files
        reason = str(err) or f"it is damaged ({type(err).__name__})"
        if "pickle" in reason:  # numpy takes any other format for a pickle
            reason = (
                "it has another format, or holds pickled Python objects, which can run any code"
            )
        raise DataError(f"{path} cannot be read as an npz file: {reason}") from err


def units_named(path: str | os.PathLike) -> str:
    """Return the names of the units that a file is read in, such as "kcal/mol and Å"."""
    with np.load(path, allow_pickle=False) as file:
        return " and ".join(_unit_names(file))


def _unit_names(file) -> list[str]:
    """Return the units that the file names; kcal/mol and Å where it names none."""
    names = {"e_unit": "kcal/mol", "r_unit": "Å"}
    for key in names:
        if key in file:
            name = file[key].tolist() if file[key].size != 1 else file[key].item()
            names[key] = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    return [*names.values()]


def _units(path, file) -> Units:
    try:
        return Units.of(*_unit_names(file))
    except DataError as err:
        raise DataError(f"{path} (e_unit, r_unit): {err}; convert the arrays") from err
