"""Structures from ASE's atoms: trajectories, databases and other files that it reads."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator

import ase
import ase.db
import ase.io
import numpy as np

from eqfuse.data.readers.format import USUAL_KEYS, Keys, Units, named, require_file
from eqfuse.data.remarks import remarks_of
from eqfuse.data.structures import DataError, Structure, Weights

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
    and, in databases, of `key_value_pairs` and `data`. Weights are as in extended XYZ. A file of a
    name that is none of `SUFFIXES` is read in the format that ASE guesses.

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


PLAIN = "eqfuse_"
NINE_NUMBERS = ("stress", "virial")
"""ASE reads nothing but nine numbers under these keys; the reader of extxyz puts `PLAIN` before."""


def properties_of(atoms) -> tuple[dict, dict]:
    """Return the properties of a frame and of its atoms, by their names in the file."""
    # ASE moves the keys it knows (energy, forces, stress) into a calculator; asking that one
    # through `atoms.get_forces()` would apply constraints, so its results are read directly.
    results = atoms.calc.results if atoms.calc is not None else {}
    plain = {PLAIN + key: key for key in NINE_NUMBERS}
    info = {plain.get(key, key): value for key, value in atoms.info.items()}
    # results may have a column of the same name
    return {**results, **info}, {**atoms.arrays, **results}


def of_atoms(
    atoms: ase.Atoms, keys: Keys = USUAL_KEYS, units: Units | None = None, origin: str | None = None
) -> Structure:
    """Return the `Structure` of ASE's atoms with labels of its calculator, `info` and `arrays`."""
    per_frame, per_atom = properties_of(atoms)
    atom_weights = per_atom.get("forces_weight")
    config_type = atoms.info.get("config_type")
    volume = abs(np.linalg.det(atoms.cell.array))
    return (units or Units()).structure(
        numbers=atoms.numbers,
        positions=atoms.positions,
        cell=atoms.cell.array,
        pbc=atoms.pbc,
        energy=per_frame.get(keys.energy),
        forces=per_atom.get(keys.forces),
        stress=stress_of(per_frame, keys.stress, volume),
        config_type=None if config_type is None else str(config_type),
        origin=origin,
        atom_weights=atom_weights if np.shape(atom_weights) == (len(atoms),) else None,
        hessian=per_atom.get("hessian", per_frame.get("hessian")),
        weights=_weights(atoms.info, is_virial(stress_key(per_frame, keys.stress))),
        remarks=remarks_of(atoms),
    )


def _weights(info: dict, from_virial: bool) -> Weights:
    """Return the weights of the labels of a frame, with the names that mace has.

    That of a stress `from_virial` is `config_virials_weight`.
    """

    def weight(key: str) -> float:
        value = info.get(key, 1.0)
        if not is_number(value) or not 0 <= value < np.inf:
            raise DataError(f"{key} must be a finite number, zero or more, got {value}")
        return float(value)

    common = weight("config_weight")
    names = {name: f"config_{name}_weight" for name in Weights._fields}
    if from_virial and "config_virials_weight" in info:
        names["stress"] = "config_virials_weight"
    return Weights(*(common * weight(name) for name in names.values()))


def is_number(value) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def stress_key(per_frame: dict, key: str) -> str:
    """Return the key of a frame's stress: for "stress" that of its virial, where it has only it."""
    if key == "stress" and key not in per_frame:
        return next((k for k in ("virial", "virials") if k in per_frame), key)
    return key


def is_virial(key: str) -> bool:
    """Test whether a key is that of -volume * stress."""
    return "virial" in key.lower()


_SAME, _ROUNDED = 0.02, 1e-5  # of the largest component; eV/Å^3


def stress_of(per_frame: dict, key: str, volume: float) -> np.ndarray | None:
    """Return the stress [3, 3], eV/Å^3, of 6 or 9 numbers under a key, or of the virial.

    Without the key "stress" a virial is taken, which is -volume * stress; volume 0 has no stress.
    A frame that has both must have the same stress in both.
    """
    key = stress_key(per_frame, key)
    if per_frame.get(key) is None or volume == 0:
        return None
    stress = _read_stress(per_frame, key, volume)
    for other in (key.replace("stress", "virial"), key.replace("stress", "virials")):
        if other != key and per_frame.get(other) is not None:
            of_virial = stress
            with contextlib.suppress(DataError):  # no numbers, and not trained on
                of_virial = _read_stress(per_frame, other, volume)
            _require_same(key, stress, other, of_virial)
    return stress


def _require_same(key: str, stress, other: str, of_virial):
    k = np.unravel_index(np.abs(stress - of_virial).argmax(), (3, 3))
    size = max(np.abs(stress).max(), np.abs(of_virial).max())
    if abs(stress[k] - of_virial[k]) > _SAME * size + _ROUNDED:
        raise DataError(
            f"{key} and {other} disagree: {key} has {'xyz'[k[0]]}{'xyz'[k[1]]} {stress[k]:.6g} "
            f"eV/Å^3, and {other}, which is -volume * stress, stands for {of_virial[k]:.6g}; name "
            f"the right one (data.stress_key={other}, or --stress-key), or remove {other}"
        )


def _read_stress(per_frame: dict, key: str, volume: float) -> np.ndarray:
    value = per_frame[key]
    try:
        # a list of lists, as ASE leaves it
        listed = isinstance(value, str) and re.sub(r"[\[\],]", " ", value).split()
        stress = np.asarray(listed or value, np.float64)
    except (TypeError, ValueError) as err:
        raise DataError(f"{key} must be 6 or 9 numbers, got {value!r}") from err
    if stress.size == 6:
        stress = stress.ravel()[[0, 5, 4, 5, 1, 3, 4, 3, 2]]
    if stress.size != 9:
        raise DataError(f"{key} must be 6 or 9 numbers, got {stress.size}")
    stress = stress.reshape(3, 3)
    stress = (stress + stress.T) / 2
    return -stress / volume if is_virial(key) else stress
