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
from eqfuse.data.readers.format import USUAL_KEYS, Keys, Units, named, require_file
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


def iterate_ase(
    path: str | os.PathLike, *, keys: Keys = USUAL_KEYS, units: Units | None = None
) -> Iterator[Structure]:
    """Yield the frames that ASE reads in a trajectory (.traj), a database (.db, .json), and others.

    Labels are those that ASE reads, of its calculators' names; `keys` also name entries of `info`
    and, in databases, of `key_value_pairs` and `data`. Weights are as in `read_extxyz`.

    Args:
      path: the file; of a name that is none of `SUFFIXES`, in the format that ASE guesses.
      keys: names of the labels.
      units: of the file; None for eV and Å.
    Raises:
      DataError: a missing or unreadable file, a pipe or a device, a frame that is no `Structure`.
    References: https://ase-lib.org
    """
    return named(_frames(path), path, lambda atoms, origin: of_atoms(atoms, keys, units, origin))


def _frames(path) -> Iterator[ase.Atoms]:
    require_file(path)
    format = next((f for end, f in _FORMATS.items() if str(path).endswith(end)), None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ASE's readers, about parts that are not read here
            if format in ("db", "json"):
                yield from map(of_row, _rows(path))
            else:
                yield from ase.io.iread(os.fspath(path), index=":", format=format)
    except DataError:
        raise
    except Exception as err:  # ASE's readers raise many types on broken files
        raise DataError(f"{path} cannot be read by ASE: {type(err).__name__}: {err}") from err


def _rows(path):
    return ase.db.connect(os.fspath(path), append=True, use_lock_file=False).select()


def of_row(row) -> ase.Atoms:
    """Return the atoms of a row of a database, with its columns."""
    atoms = row.toatoms()
    for key, value in {**row.data, **row.key_value_pairs}.items():
        kept = atoms.arrays if np.shape(value)[:1] == (len(atoms),) else atoms.info
        kept.setdefault(key, value)
    return atoms
