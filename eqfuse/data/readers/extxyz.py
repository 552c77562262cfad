"""Structures from extended XYZ files, read by ASE."""

import io
import itertools
import lzma
import os
import re
import sys
import warnings
import zlib
from collections.abc import Iterator

import ase.io
import numpy as np
from ase.io.extxyz import key_val_str_to_dict
from ase.io.formats import open_with_compression

from eqfuse.data.readers.ase_files import NINE_NUMBERS, PLAIN, is_number, of_atoms, properties_of
from eqfuse.data.readers.format import USUAL_KEYS, Keys, Units, named, require_file
from eqfuse.data.structures import TRAINED, DataError, Structure

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


def iterate_extxyz(
    path: str | os.PathLike, *, keys: Keys = USUAL_KEYS, units: Units | None = None
) -> Iterator[Structure]:
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

    References: https://github.com/libAtoms/extxyz
    """

    def structure(text: str, origin: str) -> Structure:
        return of_atoms(_parse(text, keys.stress), keys, units, origin)

    return named(_frames(path), path, structure)


def label_candidates(path: str | os.PathLike, name: str, stress_key: str) -> set[str]:
    """Return the names under which the first frames of a file may have a label."""
    candidates: set[str] = set()
    for text in itertools.islice(_frames(path), _FRAMES_SEARCHED):
        per_frame, per_atom = properties_of(atoms := _parse(text, stress_key))
        vectors = {key for key, v in per_atom.items() if np.shape(v) == (len(atoms), 3)}
        candidates |= {
            "energy": {key for key, value in per_frame.items() if is_number(value)},
            "forces": vectors,
            "stress": {key for key, v in per_frame.items() if np.size(v) in (6, 9)} - vectors,
        }[name]
    return candidates - _NO_LABELS


def _lines(path) -> Iterator[str]:
    require_file(path)
    try:
        with (
            open_with_compression(os.fspath(path), "rb") as file,
            io.TextIOWrapper(file, encoding="utf-8-sig") as text,  # without a byte-order mark
        ):
            yield from text
    except IsADirectoryError as err:
        files = os.path.join(path, "*.xyz")
        raise DataError(f"{path} is a folder; give a file or a pattern: '{files}'") from err
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as err:
        raise DataError(f"{path} cannot be read as text: {err}") from err


def _frames(path) -> Iterator[str]:
    # ASE stops silently at a blank line and does not name a broken frame, hence this loop.
    lines, frame = enumerate(_lines(path), start=1), 0
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{path}, frame {frame} (line {number})"
        try:
            num_atoms = int(line)
        except ValueError as err:
            raise DataError(
                f"{where}: expected the number of atoms, got {line.strip()[:60]!r}; "
                "is this an extended XYZ file?"
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
        return key_val_str_to_dict(_with_plain_stress(comment, stress_key))

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
    except Exception as err:  # ASE's parser raises many types on broken input
        raise DataError(f"not a frame of extended XYZ: {err}") from err


def _require_columns(text: str):
    """Refuse more columns than the first atom has, for which ASE would take the memory."""
    _, comment, atom, *_ = text.split("\n", 3)
    if claimed := re.search(r"Properties\s*=\s*\"?([^\s\"]*)", comment):
        numbers = [n for n in claimed[1].split(":")[2::3] if n.isdecimal()]
        columns, has = sum(map(int, numbers)), len(atom.split())
        if columns > has:
            raise DataError(f"Properties names {columns} columns, and the first atom has {has}")


def _with_plain_stress(comment: str, stress_key: str) -> str:
    """Return a comment line from which ASE takes stress and virial as they are written.

    `NINE_NUMBERS` have other names here. A list of lists is quoted.
    """
    keys = rf"stress|virials?|{re.escape(stress_key)}"
    entry = rf"(?<!\S)(?P<key>{keys})(?P<equals>\s*=\s*)(?P<list>{_NESTED_LIST})?"

    def replaced(match) -> str:
        key = match["key"]
        if key is None:
            return match[0]
        key = PLAIN + key if key in NINE_NUMBERS else key
        return key + match["equals"] + (f'"{match["list"]}"' if match["list"] else "")

    return re.sub(f"{_QUOTED}|{entry}", replaced, comment)
