"""Structures from extended XYZ files, read by ASE."""

import io
import itertools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator

import ase
import ase.io
import numpy as np
from ase.io.extxyz import key_val_str_to_dict

from eqfuse.data.readers.ase_files import NINE_NUMBERS, may_be_labels, plain, properties_of
from eqfuse.data.readers.format import PLAIN, USUAL_KEYS, Keys, lines_of
from eqfuse.data.structures import TRAINED, DataError

_FRAMES_SEARCHED = 10  # for candidates
_NO_LABELS = {
    "positions",
    "config_weight",
    *(f"config_{name}_weight" for name in (*TRAINED, "virials")),
}
_LONGEST_COMMENT = 2**20  # characters, which take ASE seconds; 6 million take a minute
# Text between quotes or brackets of any kind that ASE knows, which holds no keys. Without a closing
# one it extends to the end, as in ASE; to search for each end again would take quadratic time.
_DELIMITERS = ('""', "''", (r"\{", r"\}"), (r"\[", r"\]"))
_QUOTED = "|".join([r"\\.", *(rf"{a}(?:\\.|[^{b}\\])*(?:{b}|\\?\Z)" for a, b in _DELIMITERS)])
_NESTED_LIST = r"\[\s*\[[^]]*\](?:\s*(?:,\s*)?\[[^]]*\])*\s*\]"


def frames_of_extxyz(
    path: str | os.PathLike, keys: Keys = USUAL_KEYS
) -> Iterator[Callable[[], ase.Atoms]]:
    """Yield the frames of an extended XYZ file, which may be compressed (.gz, .bz2, .xz).

    A stress key whose name contains "virial" is read as the virial -V * stress, an energy; with the
    default key, a frame without `stress` but with `virial` or `virials` has its stress from that.
    Stress is 3x3 (9 numbers, or a list of lists) or xx yy zz yz xz xy (6 numbers), with ASE's sign.
    A frame may lack any label, and its forces those of some atoms, which are NaN; a column
    `forces_weight` has weights of atoms. Its weights are those that mace writes: `config_weight`
    times `config_energy_weight`, `config_forces_weight` and `config_stress_weight`, each 1 by
    default, or `config_virials_weight` for the stress of a virial, and `config_hessian_weight`.

    A column `hessian` has 9 n_atoms numbers for each atom, those of [3, n_atoms, 3] of
    `Structure.hessian` one after the other, or NaN: `atoms.arrays["hessian"] = H.reshape(n, -1)`.

    `Lattice`, `pbc` and `Properties` are read in any case; `pbc` may be `T T F`, `TTF`, `t,t,f` or
    `1 1 0`, and nine numbers of `cell` are a lattice where there is none. Other keys that look like
    a cell are refused, so that it is not lost.

    References: https://github.com/libAtoms/extxyz
    """
    for text in _texts(path):
        yield lambda text=text: _parse(text, keys.stress)


def label_candidates(path: str | os.PathLike, name: str, keys: Keys) -> set[str]:
    """Return the names under which the first frames of a file may have a label."""
    candidates: set[str] = set()
    for frame in itertools.islice(frames_of_extxyz(path, keys), _FRAMES_SEARCHED):
        per_frame, per_atom = properties_of(atoms := frame())
        possible = may_be_labels(per_frame, per_atom, len(atoms))
        candidates |= set(possible[name]) - (set(possible["forces"]) if name == "stress" else set())
    return candidates - _NO_LABELS


def _texts(path) -> Iterator[str]:
    # ASE stops silently at a blank line and does not name a broken frame, hence this loop.
    lines, frame = enumerate(lines_of(path), start=1), 0
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{path}, frame {frame} (line {number})"
        try:
            num_atoms = int(line)
        except ValueError as err:
            raise DataError(
                f"{where}: expected the number of atoms, got {line.strip()[:60]!r}; "
                "is this an extended XYZ file? Others are known by their names and contents, see "
                "docs/reference/data.md"
            ) from err
        if num_atoms < 1:
            raise DataError(f"{where}: there are no atoms in this frame; remove it")
        rest = [text for _, text in itertools.islice(lines, min(1 + num_atoms, sys.maxsize))]
        if len(rest) < 1 + num_atoms:
            raise DataError(
                f"{where}: the file ends after {max(len(rest) - 1, 0)} of "
                f"{num_atoms} atoms; it may have been cut off"
            )
        if len(rest[0]) > _LONGEST_COMMENT:
            raise DataError(
                f"{where}: a comment line of {len(rest[0])} characters, and at most "
                f"{_LONGEST_COMMENT} are read; shorten it to what is trained on"
            )
        yield "".join([line, *rest])
        frame += 1


def _parse(text: str, stress_key: str):
    def properties(comment: str) -> dict:
        return _spelled(key_val_str_to_dict(_with_plain_values(comment, stress_key)))

    _require_columns(text)
    try:
        with warnings.catch_warnings():
            # ASE 3.29 sets shapes in place, which NumPy 2.5 deprecates.
            warnings.filterwarnings("ignore", "Setting the shape", DeprecationWarning)
            return ase.io.read(
                io.StringIO(text), index=0, format="extxyz", properties_parser=properties
            )
    except KeyError as err:
        raise DataError(f"unknown element or property {err}; name a real element") from err
    except DataError:
        raise
    except Exception as err:  # ASE's parser raises many types on broken input
        raise DataError(f"not a frame of extended XYZ: {err}") from err


_COLUMNS = {"pos": {"pos", "positions"}, "species": {"species", "symbols", "Z", "numbers"}}


def _require_columns(text: str):
    """Refuse more columns than the first atom has, for which ASE would take the memory, or fewer.

    Without a column of the positions, it would put all atoms at the origin. A cell of i-PI is
    refused, which would be lost.
    """
    _, comment, atom, *_ = text.split("\n", 3)
    if cell := re.search(r"CELL\W(abcABC|H|GENH)\W:", comment):
        raise DataError(
            f"{cell[0]} is a cell of i-PI, which is not read, as its units; write Lattice= and "
            "positions in Å"
        )
    if claimed := re.search(r"(?i:Properties)\s*=\s*\"?([^\s\"]*)", comment):
        fields = claimed[1].split(":")
        numbers = [n for n in fields[2::3] if n.isdecimal()]
        columns, has = sum(map(int, numbers)), len(atom.split())
        if columns > has:
            raise DataError(f"Properties names {columns} columns, and the first atom has {has}")
        for name, known in _COLUMNS.items():
            if not known & set(fields[::3]):
                raise DataError(f"Properties names no column {name}, but {', '.join(fields[::3])}")


_MARK = "~"  # before what ASE would take for a number
_IS_CELL = r"(unit|simulation|sim)?(cell|lattice|box)(vector|parameter|par|matrix|length|size)?"
_FLAGS = {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}


def _with_plain_values(comment: str, stress_key: str) -> str:
    """Return a comment line from which ASE takes stress, virial, lattice and pbc as written.

    `NINE_NUMBERS` have other names here, and the values of pbc a mark. A list of lists is quoted.
    """
    keys = rf"(?i:stress|virials?|{re.escape(stress_key)}|lattice|cell|pbc)"
    entry = rf"(?<!\S)(?P<key>{keys})(?P<equals>\s*=\s*)(?P<list>{_NESTED_LIST})?"

    def replaced(match) -> str:
        key = match["key"]
        if key is None:
            return match[0]
        mark = _MARK if key.lower() == "pbc" else ""
        key = PLAIN + key if key in NINE_NUMBERS else key
        key = key.lower() if key == "Lattice" and match["list"] else key  # not of nine numbers
        return key + match["equals"] + mark + (f'"{match["list"]}"' if match["list"] else "")

    return re.sub(f"{_QUOTED}|{entry}", replaced, comment)


def _spelled(info: dict) -> dict:
    """Return the entries of a comment line with ASE's names for lattice, pbc and columns."""
    _take(info, "pbc", "pbc", _pbc)
    if "pbc" not in info:
        _take(info, "pbc", "periodic(ity|boundarycondition)?", _pbc)
    _take(info, "Properties", "propertie", lambda key, value: value)
    _take(info, "Lattice", "lattice", _lattice)
    if "Lattice" not in info:
        _take(info, "Lattice", "cell", _lattice)
    periodic = np.any(info.get("pbc", True))
    for key, value in info.items() if periodic and "Lattice" not in info else ():
        if re.fullmatch(_IS_CELL, plain(key)) and _numbers(value).size in (3, 6, 9):
            raise DataError(f'{key} is not read: name it Lattice="ax ay az bx by bz cx cy cz"')
    return info


def _take(info: dict, name: str, spelling: str, read: Callable) -> None:
    """Replace the keys of one spelling, which may be several of the same value, by one name."""
    given = {
        key: read(key, info.pop(key)) for key in list(info) if re.fullmatch(spelling, plain(key))
    }
    values = list(given.values())
    if any(not np.array_equal(value, values[0]) for value in values):
        raise DataError(f"{' and '.join(given)} disagree; keep {name}")
    if values and values[0] is not None:
        info[name] = values[0]


def _numbers(value) -> np.ndarray:
    if isinstance(value, str):
        words = re.sub(r"_JSON|[\[\](){},;]", " ", value).split()
        try:
            return np.array(words, np.float64)
        except ValueError:
            return np.zeros(0)
    return np.asarray(value)


def _lattice(key: str, value) -> np.ndarray | None:
    """Return the lattice vectors of nine numbers as the columns that ASE expects."""
    if key == "Lattice":
        return value
    numbers = _numbers(value)
    if numbers.size == 9 and numbers.dtype.kind in "if":
        return numbers.reshape(3, 3).T if numbers.any() else None
    if plain(key) == "cell" and numbers.size < 3:  # a word, or its number
        return None
    raise DataError(f'{key} must be nine numbers: Lattice="ax ay az bx by bz cx cy cz"')


def _pbc(key: str, value) -> list[bool]:
    text = value if isinstance(value, str) else " ".join(map(str, np.ravel(value)))
    words = re.sub(rf"_JSON|[{_MARK}\[\](){{}},;]", " ", text).split()
    if len(words) == 1 and len(words[0]) == 3:
        words = list(words[0])
    flags = [_FLAGS.get(word.lower()) for word in words]
    if None in flags or len(flags) not in (1, 3):
        text = text.removeprefix(_MARK)
        raise DataError(f'{key}="{text}" is not three of T and F; write {key}="T T F"')
    return flags if len(flags) == 3 else 3 * flags
