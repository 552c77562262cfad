"""Structures from ASE's atoms: trajectories, databases and other files that it reads."""

import contextlib
import functools
import itertools
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator

import ase
import ase.db
import ase.io
import numpy as np
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import atomic_numbers
from ase.io.cif import parse_cif
from ase.io.extxyz import per_atom_properties, per_config_properties
from ase.io.formats import open_with_compression

from eqfuse.data.readers.format import (
    PLAIN,
    UNITS,
    USUAL_KEYS,
    Keys,
    Units,
    lines_of,
    refused_as,
    require_file,
)
from eqfuse.data.remarks import remarks_of, total_charge
from eqfuse.data.structures import LABELS, DataError, Structure, Weights


def read_by_ase(path: str | os.PathLike, format: str, **how) -> Iterator[ase.Atoms]:
    """Yield the frames of a file in a format of ASE, which `how` is for.

    Labels are those that ASE reads, of its calculators' names; keys also name entries of `info`
    and, in databases, of `key_value_pairs` and `data`. Weights are as in extended XYZ.

    References: https://ase-lib.org
    """
    with by_ase(path):
        for atoms in ase.io.iread(os.fspath(path), index=":", format=format, **how):
            for name, column in atoms.info.pop(_COLUMNS, {}).items():
                atoms.set_array(name, np.asarray(column))
            yield atoms


_COLUMNS = PLAIN + "columns"


def for_trajectory(atoms: ase.Atoms) -> ase.Atoms:
    """Return atoms of which a trajectory of ASE keeps all numbers, for `read_by_ase`.

    ASE itself keeps columns and results of its own names alone.
    """
    results = {name: v for name, v in _results_of(atoms).items() if name in all_properties}
    kept = {"numbers", "positions", *results}
    per_frame, per_atom = (
        {name: value for name, value in part.items() if name not in kept}
        for part in properties_of(atoms)
    )
    columns = {k: np.asarray(v) for k, v in per_atom.items() if shape_of(v)[:1] == (len(atoms),)}
    made = atoms.copy()
    made.info = per_frame | {_COLUMNS: {k: v for k, v in columns.items() if v.dtype.kind in "biuf"}}
    made.calc = SinglePointCalculator(made, **results) if results else None
    return made


@contextlib.contextmanager
def by_ase(path):
    """Enter what ASE reads of a file, which its errors name."""
    require_file(path)
    with refused_as(f"{path} cannot be read by ASE"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ASE's readers, about parts that are not read here
        warnings.filterwarnings("error", "scaled_positions .* are equivalent")  # atoms get lost
        yield


def frames_of_rows(path: str | os.PathLike, type: str) -> Iterator[ase.Atoms]:
    """Yield the rows of a database of ASE of a type, db or json, see `read_by_ase`."""
    with by_ase(path):
        database = ase.db.connect(os.fspath(path), type, append=True, use_lock_file=False)
        yield from map(of_row, database.select())


_WHOLE = 1e-3  # of an occupancy, which files round


def frames_of_cif(path: str | os.PathLike) -> Iterator[ase.Atoms]:
    """Yield the crystals of a CIF file, whose sites each have one whole atom of a known element."""
    with by_ase(path), open_with_compression(os.fspath(path), "rb") as file:
        for block in parse_cif(file):
            if not block.has_structure():
                continue
            elements = block.get("_atom_site_type_symbol") or block["_atom_site_label"]
            names = block.get("_atom_site_label") or elements
            occupancies = block.get("_atom_site_occupancy") or [1.0] * len(elements)
            for name, element, occupancy in zip(names, elements, occupancies, strict=True):
                where = f"{path}, {block.name}: the site {name}"
                if not re.fullmatch(r"[A-Z][a-z]?([\d+-].*)?", element):  # ASE reads CU as C
                    raise DataError(f"{where} has the element {element!r}; write Cu, O2-, ...")
                if occupancy not in (".", "?") and abs(float(occupancy) - 1) > _WHOLE:
                    raise DataError(
                        f"{where} is occupied by {occupancy} of an atom, and a structure has whole "
                        "ones; choose which atoms of a supercell are there, and write it with "
                        "occupancies of 1"
                    )
            yield block.get_atoms(fractional_occupancies=False)


def frames_of_poscar(path: str | os.PathLike) -> Iterator[ase.Atoms]:
    """Yield the structure of a POSCAR that names its elements, as before VASP 5 in its first line.

    ASE would look for other files, or take words such as I of that line for elements.
    """
    lines = [*itertools.islice(lines_of(path), 6)]
    names, counts = (lines[k].split() if len(lines) == 6 else [] for k in (0, 5))
    old = counts and counts[0].isdecimal()
    if old and (len(names) != len(counts) or not set(names) <= set(atomic_numbers)):
        raise DataError(f"{path} names no elements above their numbers ({lines[5].strip()})")
    yield from read_by_ase(path, "vasp")


def shape_of(value) -> tuple[int, ...]:
    """Return the shape of a value; () for objects and lists of several lengths."""
    try:
        array = np.asarray(value)
    except ValueError:
        return ()
    return () if array.dtype == object else array.shape


def of_row(row) -> ase.Atoms:
    """Return the atoms of a row of a database, with its columns."""
    atoms = row.toatoms()
    for key, value in {**row.data, **row.key_value_pairs}.items():
        of_atoms = shape_of(value)[:1] == (len(atoms),) and not re.search(_WORDS["stress"], key)
        (atoms.arrays if of_atoms else atoms.info).setdefault(
            key, np.asarray(value) if of_atoms else value
        )
    return atoms


NINE_NUMBERS = ("stress", "virial")
"""ASE reads nothing but nine numbers under these keys; the reader of extxyz puts `PLAIN` before."""


def _results_of(atoms) -> dict:
    """Return the results of a calculator, {} where the atoms have changed since.

    Atoms that were wrapped into their cell have not.
    """
    calc, changes = atoms.calc, []
    if calc is not None and getattr(calc, "atoms", None) is not None:
        changes = calc.check_state(atoms)
    if changes == ["positions"]:
        moves = atoms.cell.complete().scaled_positions(atoms.positions - calc.atoms.positions)
        changes = np.abs(moves - moves.round() * atoms.pbc).max() > 1e-8
    return {} if calc is None or changes else calc.results


def properties_of(atoms) -> tuple[dict, dict]:
    """Return the properties of a frame and of its atoms, by their names in the file."""
    # ASE moves the keys it knows (energy, forces, stress) into a calculator; asking that one
    # through `atoms.get_forces()` would apply constraints, so its results are read directly.
    results = _results_of(atoms)
    own = {key: atoms.info[PLAIN + key] for key in NINE_NUMBERS if PLAIN + key in atoms.info}
    info = {str(key): value for key, value in atoms.info.items()}
    info = {key: value for key, value in info.items() if not key.startswith(PLAIN)}
    # of a name that both have, all labels are those of the calculator
    return {**info, **results, **own}, {**atoms.arrays, **results}


def of_atoms(
    atoms: ase.Atoms, keys: Keys = USUAL_KEYS, units: Units | None = None, origin: str | None = None
) -> Structure:
    """Return the `Structure` of ASE's atoms with labels of its calculator, `info` and `arrays`.

    A key that differs from the label's in case, - or _ alone is its own where it is the only one.
    Units that are given come before those that a file names.
    """
    per_frame, per_atom = properties_of(atoms)
    atom_weights = per_atom.get("forces_weight")
    config_type = atoms.info.get("config_type")
    volume = abs(np.linalg.det(atoms.cell.array))
    energy = spelled(per_frame, keys.energy, is_number)
    if isinstance(per_frame.get(energy), bool):  # a word of a comment, as in "energy -76.4"
        del per_frame[energy]
    forces = spelled(per_atom, keys.forces, lambda value: shape_of(value) == (len(atoms), 3))
    stress = stress_key(per_frame, keys.stress)
    return (units or atoms.info.get(UNITS) or Units()).structure(
        numbers=atoms.numbers,
        positions=atoms.positions,
        cell=atoms.cell.array,
        pbc=atoms.pbc,
        energy=per_frame.get(energy),
        forces=per_atom.get(forces),
        stress=stress_of(per_frame, stress, volume),
        config_type=None if config_type is None else str(config_type),
        origin=origin,
        atom_weights=atom_weights if shape_of(atom_weights) == (len(atoms),) else None,
        hessian=per_atom.get("hessian", per_frame.get("hessian")),
        weights=_weights(atoms.info, is_virial(stress)),
        unread=_unread(per_frame, per_atom, Keys(energy, forces, stress), len(atoms)),
        remarks=remarks_of(atoms),
        charge=total_charge(per_frame, keys.charge),
    )


def unlabelled(atoms: ase.Atoms, origin: str) -> ase.Atoms:
    """Return atoms that are a valid structure, in Å, without labels and what the reader needs."""
    atoms.positions = of_atoms(atoms, origin=origin).positions  # raises
    atoms.calc = None
    atoms.info = {k: v for k, v in atoms.info.items() if not k.startswith(PLAIN)}
    return atoms


_OF_FILES = {"Lattice", "Properties", "pbc", "Z", "pos", "species", "symbols", "move_mask"}
"""Names that extended XYZ has for itself."""
_RESULTS = {*per_atom_properties, *per_config_properties, "virial", "virials", "hessian"}


def keep(made: ase.Atoms, given: ase.Atoms, without: Collection[str] = ()) -> dict[str, str]:
    """Add the `info`, columns, other results and constraints of given atoms to those made of them.

    What has the name of a result, or of what the made ones have, gets `input_` before it.

    Args:
      without: names that are left out.
    Returns:
      the new names of what has another one now, by its own.
    """
    per_frame, _ = properties_of(given)
    of_results = per_atom_properties if given.calc is not None else ()
    parts = [(name in of_results, name, value) for name, value in per_frame.items()]
    parts += [(True, *item) for item in given.arrays.items()]
    own = {name for _, name, _ in parts}
    taken, renamed = {*made.info, *made.arrays, *_RESULTS, *_OF_FILES}, {}
    for is_of_atoms, name, value in parts:
        if name in ("numbers", "positions", *without) or value is None:
            continue
        new = name
        while new in taken or (new != name and new in own):
            new = f"input_{new}"
        if new != name:
            taken.add(new)
            renamed[name] = new
        if is_of_atoms:
            made.arrays[new] = _words(value)
        else:
            made.info[new] = _writable(value)
    made.set_constraint(given.constraints)
    return renamed


def writable(atoms: ase.Atoms) -> ase.Atoms:
    """Return atoms with their calculator, of which extended XYZ has all `info` and columns."""
    made = atoms.copy()
    made.calc = atoms.calc
    made.info = {_name(key): _quoted(_writable(value)) for key, value in atoms.info.items()}
    columns = {name: column for name, column in atoms.arrays.items() if np.size(column)}
    made.arrays = {_name(k, r"[\s:=\"'\\]"): _words(column) for k, column in columns.items()}
    return made


def _name(key, wrong: str = r"[^\S ]|[=\\]") -> str:
    return re.sub(wrong, "_", str(key)) or "_"


def _quoted(value):
    """Return a value as ASE has to write it so that it, and what follows it, is read again."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        value = value.tolist()
    if isinstance(value, str):
        is_plain = value.isprintable() and "\\" not in value
        if value and is_plain and not value.startswith(("=", "_JSON")):
            return value
    elif not isinstance(value, list | tuple | dict):
        return value
    return f"_JSON {json.dumps(value)}".replace("\\", "\\\\")  # ASE escapes quotes alone


def _words(column):
    """Return a column as extended XYZ can be read: of rows of numbers, or of texts of one word."""
    column = np.asarray(column)
    column = column.reshape(len(column), -1) if column.ndim > 2 else column
    if column.dtype.kind == "u":
        column = column.astype(np.int64)
    is_long = column.dtype.kind == "i" and abs(column).max(initial=0) >= 2**31  # ASE reads int32
    if column.dtype.kind in "bif" and not is_long:
        return column
    texts = column.astype(str)
    return np.array(["_".join(t.split()) or "_" for t in texts.flat]).reshape(texts.shape)


def _writable(value):
    """Return a value, or its text if extended XYZ would not have it, as a ragged list."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "biufU" and value.size:
            return value
        value = value.tolist()
    try:
        np.asarray(json.loads(json.dumps(value)))  # as ASE reads it again
    except (TypeError, ValueError):
        return " ".join(str(value).split())
    return value


def labels_of(atoms: ase.Atoms) -> set[str]:
    """Return the names of `info` and columns that may be labels, which hold for these positions."""
    per_frame, per_atom = properties_of(atoms)
    possible = may_be_labels(per_frame, per_atom, len(atoms))
    found = {k for n, like in possible.items() for k in like if re.search(_WORDS[n], k.lower())}
    return {*found, *_results_of(atoms), *(_RESULTS & {*per_frame, *per_atom})}


_IS_VELOCITY = r"(atom(ic)?|initial)?(v|velo?|veloc\w*)[xyz]?"
_IS_HELD = (
    r"(is|to|atom)*(fix|fixed|freeze|frozen|movable|moving|mobile|immobile|movemask)(atom|mask)*"
)
HELD = "atoms that are held"
_OTHER_NAMES = {"velocities": _IS_VELOCITY, "masses": r"(atom(ic)?)?mass?e?", HELD: _IS_HELD}
_OTHER_NAMES["momenta"] = r"(atom(ic)?|initial)?moment(a|um)"


def unread_names(atoms: ase.Atoms, what: str) -> list[str]:
    """Return other spellings of "velocities", "momenta", "masses" or `HELD` that atoms have."""

    def fits(name: str, value) -> bool:
        key, shape = plain(name), shape_of(value)
        if not re.fullmatch(_OTHER_NAMES[what], key) or name in ("masses", "momenta", "move_mask"):
            return False
        is_column = shape == (len(atoms),) and (what == "masses" or key[-1] in "xyz")
        return what == HELD or is_column or (what != "masses" and shape == (len(atoms), 3))

    return [name for name, value in {**atoms.info, **atoms.arrays}.items() if fits(name, value)]


def as_atoms(structure: Structure) -> ase.Atoms:
    """Return ASE's atoms of a structure, without its labels."""
    cell, pbc = structure.cell, structure.pbc
    return ase.Atoms(structure.numbers, structure.positions, cell=cell, pbc=pbc)


def _is_no_word(value) -> bool:
    return not isinstance(value, str) or bool(re.search(r"\d", value))


def spelled(properties: dict, key: str, fits: Callable = _is_no_word) -> str:
    """Return a key of properties, or the only one that differs from it in case, - and _ alone.

    Others are those of values that fit.
    """
    if key in properties:
        return key
    like = [k for k, v in properties.items() if plain(k) == plain(key) and fits(v)]
    if len(like) > 1:
        raise DataError(f"{' and '.join(like)} may both be {key}; remove one, or name it {key}")
    return like[0] if like else key


@functools.lru_cache(1000)
def plain(key: str) -> str:
    """Return a key in small letters, without - and _ and the s of a plural."""
    return re.sub("[-_]", "", str(key).lower()).removesuffix("s")


def may_be_labels(per_frame: dict, per_atom: dict, count: int) -> dict[str, dict]:
    """Return the properties whose shapes are those of energy, forces and stress, by their names."""
    return {
        "energy": {k: v for k, v in per_frame.items() if is_number(v)},
        "forces": {k: v for k, v in per_atom.items() if shape_of(v) == (count, 3)},
        "stress": {k: v for k, v in per_frame.items() if shape_of(v) in ((3, 3), (9,), (6,))},
    }


_WORDS = {"energy": "energy", "forces": "force", "stress": "stress|virial"}
_SAME_ENERGY = 1e-3  # eV/atom


def _unread(per_frame: dict, per_atom: dict, keys: Keys, count: int) -> dict[str, str]:
    """Return the keys of what may be labels that are not under their own `keys`, by their names.

    An energy that differs from `free_energy` is one of them: forces are derivatives of the latter.
    """
    found, possible = {}, may_be_labels(per_frame, per_atom, count)
    for name, key in zip(LABELS, keys, strict=False):
        if key not in (per_atom if name == "forces" else per_frame):
            like = [k for k in possible[name] if re.search(_WORDS[name], k.lower())]
            like = [k for k in like if "weight" not in k]
            found |= {name: like[0]} if like else {}
    energies = possible["energy"]
    free = energies.get("free_energy") if keys.energy == "energy" else None
    if free is not None and abs(energies.get("energy", free) - free) > _SAME_ENERGY * count:
        found["free_energy"] = "free_energy"
    return found


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
    key = spelled(per_frame, key)
    if key == "stress" and key not in per_frame:
        virial = spelled(per_frame, "virial")
        return virial if virial in per_frame else key
    return key


def is_virial(key: str) -> bool:
    """Test whether a key is that of -volume * stress."""
    return "virial" in key.lower()


_SAME, _ROUNDED = 0.02, 1e-5  # of the largest component; eV/Å^3


def stress_of(per_frame: dict, key: str, volume: float) -> np.ndarray | None:
    """Return the stress [3, 3], eV/Å^3, of 6 or 9 numbers under a key, or of the virial.

    A virial is -volume * stress; volume 0 has no stress. A frame that has both must have the same
    stress in both.
    """
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
            f"the right one (data.stress_key={other}, or stress_key=), or remove {other}"
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
