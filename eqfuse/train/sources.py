"""Where the structures of a run come from."""

import glob
import os
from pathlib import Path

import numpy as np

from eqfuse import data
from eqfuse.train.settings.data_config import FIT, FileData, MoleculeData, RMD17Data

_ISOLATED_ATOMS = {"3bpa": "iso_atoms.xyz", "acac": "isolated_atoms.xyz"}


def read_structures(settings: MoleculeData) -> list[data.Structure]:
    """Return the structures that `data=` names, in eV and Å; public sets are downloaded.

    Raises:
      data.DataError: a file that cannot be read or downloaded, or that is to be validated with.
    """
    if isinstance(settings, FileData) and settings.path is not None:
        _check_apart(settings)
        return _read_all(settings, settings.path)
    if settings.name in _ISOLATED_ATOMS:
        return _read(settings, _downloaded(settings, "train_300K.xyz"))
    if isinstance(settings, RMD17Data):
        frames = None
        if settings.name == "rmd17":
            # Frames near each other in time are alike: the authors give splits of 1000 for it.
            split = _downloaded(settings, "index_train_01.csv")
            frames = np.loadtxt(split, dtype=np.int64, ndmin=1)
        path = _downloaded(settings, f"{settings.name}_{settings.molecule}.npz")
        return data.read_rmd17(path, frames=frames)
    return data.read_embedded(settings.name)


def _check_apart(settings: FileData):
    """No file is both trained on and validated with."""
    if settings.val_path is None:
        return
    ours, theirs = (
        {os.path.realpath(file) for file in matching(path)}
        for path in (settings.path, settings.val_path)
    )
    if both := sorted(ours & theirs):
        raise data.DataError(
            f"{both[0]} is among the files of data.path and of data.val_path: what is trained on "
            "does not validate; move it, or change the pattern"
        )


def read_validation(settings: MoleculeData) -> list[data.Structure] | None:
    """Return the structures of `data.val_path`; None without one.

    Raises:
      data.DataError: a file that cannot be read.
    """
    path = settings.validation_origin
    return None if path is None else _read_all(settings, path)


def matching(path: str) -> list[str]:
    """Return the file of this name or, if there is none, those that it matches as a pattern,
    sorted.

    Args:
      path: `*` and `?` stand for letters of a name, `**` for folders within folders.
    Raises:
      data.DataError: a pattern that no file matches.
    """
    if os.path.exists(path) or not any(mark in path for mark in "*?["):
        return [path]
    found = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
    if not found:
        raise data.DataError(
            f"no file matches {path}; check the pattern (data.path, data.val_path)"
        )
    return found


def described(origin: str) -> str:
    """Return where structures are from, with the number of files if it is a pattern."""
    found = matching(origin)
    return origin if found == [origin] else f"{origin}: {len(found)} files"


def _read_all(settings: FileData, path: str) -> list[data.Structure]:
    return [structure for file in matching(path) for structure in _read(settings, file)]


def _read(settings: FileData, path) -> list[data.Structure]:
    return data.read_structures(path, format=settings.format, keys=_keys(settings))


def _keys(settings: MoleculeData) -> data.Keys:
    usual = data.Keys()._asdict()
    return data.Keys(*(getattr(settings, f"{name}_key", key) for name, key in usual.items()))


def read_reference_energies(settings: MoleculeData) -> dict[int, float] | None:
    """Return energies of isolated atoms, eV by atomic number; None if no file of them is given.

    Raises:
      data.DataError: a file that cannot be read or downloaded.
    """
    path = settings.reference_energies
    if path == FIT:
        return None
    if path is None and settings.name in _ISOLATED_ATOMS and settings.path is None:
        path = _downloaded(settings, _ISOLATED_ATOMS[settings.name])
    if path is None:
        return None
    return data.isolated_atom_energies(path, energy_key=_keys(settings).energy)


def _downloaded(settings: MoleculeData, file: str) -> Path:
    return data.fetch_public(settings.name, file, settings.folder)
