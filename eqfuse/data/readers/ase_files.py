"""Structures from trajectories and databases of ASE, and from other files that it reads."""

import os
import warnings
from collections.abc import Iterator

import ase
import ase.db
import ase.io
import numpy as np

from eqfuse.data.errors import DataError
from eqfuse.data.readers.atoms import of_atoms
from eqfuse.data.readers.format import USUAL_KEYS, Keys, Units, require_labels_of, require_regular
from eqfuse.data.structures import Structure

_FORMATS = {
    ".traj": "traj",
    ".db": "db",
    ".json": "json",
    ".cif": "cif",
    ".pdb": "proteindatabank",
    ".gen": "gen",
    ".vasp": "vasp",
    ".poscar": "vasp",
    "POSCAR": "vasp",
    "CONTCAR": "vasp",
    "OUTCAR": "vasp-out",
    "vasprun.xml": "vasp-xml",
}
SUFFIXES = tuple(_FORMATS)
"""Ends of the names of files that are read by ASE, in the format of each."""


def read_ase(
    path: str | os.PathLike,
    *,
    keys: Keys = USUAL_KEYS,
    units: Units | None = None,
    require_labels: bool = True,
) -> list[Structure]:
    """Read every frame of a file by ASE: a trajectory (.traj), a database (.db, .json), and others.

    Labels are those that ASE reads, of its calculators' names; `keys` also name entries of `info`
    and, in databases, of `key_value_pairs` and `data`. Weights are as in `read_extxyz`.

    Args:
      path: the file; of a name that is none of `SUFFIXES`, in the format that ASE guesses.
      keys: names of the labels.
      units: of the file; None for eV and Å.
      require_labels: refuse a file without any energy, or without any forces unless all frames
        are isolated atoms.
    Returns:
      one Structure per frame, in order, in eV and Å.
    Raises:
      DataError: a missing or unreadable file, a pipe or a device, labels that no frame has, a frame
        that is no `Structure`. Names the file and the frame, counted from 0.
    References: https://ase-lib.org
    """
    structures = []
    for frame, atoms in enumerate(_frames(path)):
        origin = f"{path}, frame {frame}"
        try:
            structures.append(of_atoms(atoms, keys, units, origin))
        except DataError as err:
            raise DataError(f"{origin}: {err}") from err
    if not structures:
        raise DataError(f"{path} has no frames; give a file with structures in it")
    if require_labels:
        require_labels_of(
            structures, path, lambda name: f"no {name} under the key {getattr(keys, name)!r}"
        )
    return structures


def _frames(path) -> Iterator[ase.Atoms]:
    require_regular(path)
    if not os.path.exists(path):
        raise DataError(f"no such file: {path}; check the path (data.path, data.val_path)")
    format = next((f for end, f in _FORMATS.items() if str(path).endswith(end)), None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ASE's readers, about parts that are not read here
            if format in ("db", "json"):
                yield from map(_of_row, _rows(path))
            else:
                yield from ase.io.iread(os.fspath(path), index=":", format=format)
    except DataError:
        raise
    except Exception as err:  # ASE's readers raise many types on broken files
        raise DataError(f"{path} cannot be read by ASE: {type(err).__name__}: {err}") from err


def _rows(path):
    return ase.db.connect(os.fspath(path), append=True, use_lock_file=False).select()


def _of_row(row) -> ase.Atoms:
    atoms = row.toatoms()
    for key, value in {**row.data, **row.key_value_pairs}.items():
        kept = atoms.arrays if np.shape(value)[:1] == (len(atoms),) else atoms.info
        kept.setdefault(key, value)
    return atoms
