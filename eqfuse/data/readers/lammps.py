"""Structures from LAMMPS: text dumps, and the data files of read_data and write_data."""

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence

import ase
import ase.io
import numpy as np
from ase.calculators.lammps import convert
from ase.data import atomic_masses, atomic_numbers, chemical_symbols

from eqfuse.data.readers.format import lines_of, refused_as
from eqfuse.data.structures import DataError

_UNITS = ("metal", "real", "electron", "si", "cgs", "micro", "nano")
_WRONG_MASS, _APART = 0.01, 3  # of a mass; the next element is this many times as far
_ITEMS = ("TIMESTEP", "NUMBER OF ATOMS", "BOX BOUNDS", "ATOMS")
_PLACES = {f"{axis}{style}" for axis in "xyz" for style in ("", "s", "u", "su")}
_IN_UNITS = {f"{quantity}{axis}" for quantity in "vf" for axis in "xyz"}
_NAME_THEM = "name those of types 1, 2, ... (types=Si,O)"


def frames_of_lammps(
    path: str | os.PathLike, types: Sequence[str] = ()
) -> Iterator[Callable[[], ase.Atoms]]:
    """Yield the frames of a LAMMPS text dump, or the structure of a data file.

    Elements are those of `types`, the elements of LAMMPS's types 1, 2, ...; else the dump's column
    `element`, the data file's type labels, or masses. A file that has none of these is refused.
    Units are those that the file names, or metal; forces (fx fy fz) and velocities, whose units are
    others than in real, are read where it names them. Atoms are sorted by id, with the dump's
    `mass` and `q`; a data file is periodic in all directions.

    References: https://docs.lammps.org/dump.html, https://docs.lammps.org/read_data.html
    """
    types = [_number(f"the type {k}", name) for k, name in enumerate(types, start=1)]
    first = next((line for line in lines_of(path) if line.strip()), "")
    if not first.startswith("ITEM:"):
        yield lambda: _data(path, types)
        return
    for text in _texts(path):
        yield lambda text=text: _dump(text, types)


def _number(what: str, name: str) -> int:
    if name == "X" or name not in atomic_numbers:
        raise DataError(f"{what} is named {name!r}, which is no element; write Si, O, ...")
    return atomic_numbers[name]


def _known_units(name: str | None) -> str | None:
    if name is not None and name not in _UNITS:
        raise DataError(f"its units are {name}, which are no lengths in Å")
    return name


def _require_known(count: int, types: Sequence[int]) -> None:
    if types and count > len(types):
        raise DataError(f"there are {count} types and {len(types)} elements are named; name all")


def _of_masses(masses) -> np.ndarray:
    """Return the elements that masses, in u, determine."""
    numbers = np.zeros(len(masses), int)
    for mass in set(masses):
        away = np.abs(atomic_masses - mass)
        away[0] = np.inf  # X
        first, second = np.argsort(away)[:2]
        if not away[first] <= min(_WRONG_MASS * mass, away[second] / _APART):
            raise DataError(f"a mass of {mass:g} u is not that of one element; {_NAME_THEM}")
        numbers[np.asarray(masses) == mass] = first
    return numbers


def _texts(path) -> Iterator[list[str]]:
    """Yield the lines of each frame of a dump, with the units that the file names first."""
    text, begun = [], False
    for line in lines_of(path):
        if line.startswith("ITEM: TIMESTEP"):
            if begun:
                yield text
                text = text[:2] if text[0].startswith("ITEM: UNITS") else []
            begun = True
        if line.strip():
            text.append(line)
    yield text


def _dump(text: list[str], types: Sequence[int]) -> ase.Atoms:
    """Return a frame as ASE reads it, with checked rows and elements of which it guesses none."""
    items, rows = {}, []
    for line in text:
        if line.startswith("ITEM:"):
            items[line[5:].strip()] = rows = []
        else:
            rows.append(line)
    head = {name: next((k for k in items if k.startswith(name)), None) for name in _ITEMS}
    if None in head.values():
        raise DataError(f"not a frame of a LAMMPS dump, which has {', '.join(_ITEMS)}")
    columns, table = head["ATOMS"].split()[1:], [row.split() for row in items[head["ATOMS"]]]
    count = "".join(items[head["NUMBER OF ATOMS"]]).strip()
    if str(len(table)) != count or any(len(row) != len(columns) for row in table):
        raise DataError(
            f"there are {len(table)} rows of {count} atoms, or rows without {len(columns)} "
            "columns; the file may have been cut off"
        )
    units = _known_units("".join(items["UNITS"]).strip() if "UNITS" in items else None)
    bounds = head["BOX BOUNDS"]
    if sum(bool(re.fullmatch("[pfsm]{2}", word)) for word in bounds.split()) != 3:
        raise DataError(f"'ITEM: {bounds}' does not say which directions are periodic (pp or ff)")
    with refused_as("not a LAMMPS dump"):
        if "id" in columns:
            table.sort(key=lambda row: int(row[columns.index("id")]))
        values = dict(zip(columns, zip(*table, strict=True), strict=True))
        if "mass" in values:
            masses = np.array(values["mass"], float)
            values["mass"] = convert(masses, "mass", units or "metal", "ASE")
        symbols = [chemical_symbols[z] for z in _elements(values, types)]
        read = _PLACES | {"q"} | (_IN_UNITS if units else set())
        given, values = (
            values,
            {"element": symbols} | {k: v for k, v in values.items() if k in read},
        )
        parts = {name: items[head[name]] for name in _ITEMS[:2]} | {bounds: items[bounds]}
        atoms_of = [" ".join(row) + "\n" for row in zip(*values.values(), strict=True)]
        parts[f"ATOMS {' '.join(values)}"] = atoms_of
        lines = [line for name, rows in parts.items() for line in (f"ITEM: {name}\n", *rows)]
        how = {"format": "lammps-dump-text", "units": units or "metal"}
        atoms = ase.io.read(io.StringIO("".join(lines)), **how)
    if {"xs", "xsu"} & set(values) and "x" not in values:
        atoms.positions += atoms.get_celldisp().ravel()
    atoms.set_celldisp(np.zeros(3))
    atoms.info.clear()  # the step
    if "mass" in given:
        atoms.set_masses(given["mass"])
    if atoms.calc is not None:
        del atoms.calc.results["energy"]  # ASE's zero
        atoms.calc.atoms = atoms.copy()  # that were displaced
    for name in sorted(_IN_UNITS & set(given) - set(values)):  # of unknown units, as columns
        atoms.arrays[name] = np.array(given[name], float)
    return atoms


def _elements(values, types: Sequence[int]) -> np.ndarray:
    numbers = np.array(values.get("type", ()), int)
    if types and len(numbers):
        _require_known(int(numbers.max()), types)
        if numbers.min() < 1:
            raise DataError(f"an atom has the type {numbers.min()}")
        return np.array(types)[numbers - 1]
    names = values.get("element", ())
    # LAMMPS writes C for every type if nobody named the elements
    if names and not (set(names) == {"C"} and len(set(numbers.tolist())) > 1):
        return np.array([_number(f"atom {k}", name) for k, name in enumerate(names)])
    if "mass" in values:
        return _of_masses(values["mass"])
    raise DataError(
        f"a LAMMPS dump without elements: {_NAME_THEM}, or write them by dump_modify element"
    )


def _data(path, types: Sequence[int]) -> ase.Atoms:
    """Return the structure of a data file, of which one line says what its first line names."""
    lines = list(lines_of(path))
    named = re.search(r"units\s*=\s*(\w+)", lines[0]) if lines else None
    units = _known_units(named and named[1])
    text = "".join(line.partition("#")[0].rstrip() + "\n" for line in lines[1:])
    kinds = re.search(r"^\s*(\d+)\s+atom\s+types\s*$", text, re.M)
    if not kinds:
        raise DataError("neither a LAMMPS dump (ITEM: TIMESTEP) nor a data file (N atom types)")
    numbers, labels = list(types), _section(text, "Atom Type Labels")
    _require_known(int(kinds[1]), types)
    if not types and labels:
        numbers = [_number(f"the type {k}", name) for k, name in labels.items()]
    elif not types and (masses := _section(text, "Masses")):
        numbers = _of_masses(
            [convert(float(m), "mass", units or "metal", "ASE") for m in masses.values()]
        )
    elif not types:
        raise DataError(f"a LAMMPS data file without elements or masses: {_NAME_THEM}")
    of_type = {k: int(number) for k, number in enumerate(numbers, start=1)}
    if labels:  # ASE reads none before masses, and does not sort them with the atoms
        of_label = {label: str(k) for k, label in labels.items()}
        named = rf"^(\s*(?:\d+\s+){{0,2}})({'|'.join(map(re.escape, of_label))})(?=\s)"
        lines[1:] = (re.sub(named, lambda m: m[1] + of_label[m[2]], line) for line in lines[1:])
    with refused_as("not a data file of LAMMPS"):
        how = {"Z_of_type": of_type, "units": units or "metal"}
        atoms = ase.io.read(io.StringIO("".join(lines)), format="lammps-data", **how)
    if units is None and atoms.has("momenta"):
        velocities = convert(atoms.get_velocities(), "velocity", "ASE", "metal")
        del atoms.arrays["momenta"]
        atoms.arrays["velocities"] = velocities  # as written, of unknown units
    return atoms


def _section(text: str, name: str) -> dict[int, str]:
    """Return the second words of the rows of a section, by their numbers, in their order."""
    found = re.search(rf"^\s*{name}\s*\n+((?:\s*\d+\s+\S+[ \t]*\n+)+)", text, re.M)
    rows = [row.split() for row in found[1].split("\n") if row.strip()] if found else []
    return dict(sorted((int(row[0]), row[1]) for row in rows))
