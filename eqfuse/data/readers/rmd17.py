"""Structures from the npz files of the revised MD17 and the MD22 data sets."""

import os
from collections.abc import Iterator

import numpy as np

from eqfuse.data.readers.format import USUAL_KEYS, Keys, Units, named, require_file
from eqfuse.data.structures import DataError, Structure

_RMD17 = ("nuclear_charges", "coords", "energies", "forces")
_MD22 = ("z", "R", "E", "F")


def iterate_rmd17(
    path: str | os.PathLike,
    *,
    keys: Keys = USUAL_KEYS,
    units: Units | None = None,
) -> Iterator[Structure]:
    """Yield the frames of one molecule in the layout of rMD17 or of MD22.

    The file holds `nuclear_charges` [n_atoms], `coords` [n_frames, n_atoms, 3], `energies`
    [n_frames] and `forces` [n_frames, n_atoms, 3]; or the same as `z`, `R`, `E` and `F`. Energies
    are in kcal/mol and lengths in Å, unless the file names its units as sGDML does, by `e_unit` and
    `r_unit`.

    `keys` are not used.

    References: Christensen and von Lilienfeld 2020, doi:10.1088/2632-2153/abba6f; Chmiela et al.
      2023, doi:10.1126/sciadv.adf0873.
    """
    arrays, units_of_file = _load(path)
    units = units or units_of_file
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"{path}: {key} must be real numbers, and is {array.dtype}")
    numbers, coords, energies, forces = arrays.values()
    shape = (len(coords), len(numbers), 3) if coords.ndim and numbers.ndim == 1 else None
    energies = energies.reshape(-1)
    if coords.shape != shape or forces.shape != shape or len(energies) != len(coords):
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
        raise DataError(
            f"{path}: shapes do not fit: {shapes}; expected [n_atoms], [n_frames, n_atoms, 3], "
            "[n_frames], [n_frames, n_atoms, 3]"
        )

    def structure(frame: int, origin: str) -> Structure:
        labels = {"energy": energies[frame], "forces": forces[frame], "origin": origin}
        return units.structure(numbers=numbers, positions=coords[frame], **labels)

    yield from named(range(len(coords)), path, structure)


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
            keys = _MD22 if set(_MD22) <= set(file) else _RMD17
            missing = [key for key in keys if key not in file]
            if missing:
                raise DataError(
                    f"{path} has no {', '.join(missing)}; it has {', '.join(file) or 'nothing'}, "
                    f"rMD17 has {', '.join(_RMD17)} and MD22 {', '.join(_MD22)}"
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


def _units(path, file) -> Units:
    """Return the units that the file names; kcal/mol and Å where it names none."""
    names = {"e_unit": "kcal/mol", "r_unit": "Å"}
    for key in names:
        if key in file:
            name = file[key].tolist() if file[key].size != 1 else file[key].item()
            names[key] = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
    try:
        return Units.of(*names.values())
    except DataError as err:
        raise DataError(f"{path} (e_unit, r_unit): {err}; convert the arrays") from err
