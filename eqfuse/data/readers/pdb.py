"""Structures from files of the Protein Data Bank."""

import itertools
import os
from collections.abc import Iterator

import ase
import numpy as np
from ase.cell import Cell
from ase.data import atomic_numbers

from eqfuse.data.readers.format import lines_of
from eqfuse.data.structures import DataError

_NO_CELL = ((1, 1, 1, 90, 90, 90), (0, 0, 0, 0, 0, 0), (0, 0, 0, 90, 90, 90))
"""What CRYST1 has where there is no crystal."""


def frames_of_pdb(path: str | os.PathLike) -> Iterator[ase.Atoms]:
    """Yield the models of a file, whose atoms name their elements in columns 77 and 78.

    Without these, CA may be a carbon or calcium, and the file is refused; so is one that has atoms
    in alternate places. CRYST1 before the models is the cell of all; 1 1 1 is no cell.

    References: https://www.wwpdb.org/documentation/file-format (version 3.3).
    """
    cell, numbers, positions = None, [], []
    for number, line in enumerate(lines_of(path), start=1):
        record = line[:6].strip()
        try:
            if record == "CRYST1":
                starts = (6, 15, 24, 33, 40, 47, 54)
                given = [float(line[a:b]) for a, b in itertools.pairwise(starts)]
                cell = None if tuple(given) in _NO_CELL else Cell.new(given)
            elif record in ("ATOM", "HETATM"):
                numbers.append(_element(line))
                positions.append([float(line[k : k + 8]) for k in (30, 38, 46)])
        except (AssertionError, ArithmeticError, ValueError) as err:
            raise DataError(
                f"{path}, line {number}: {str(err) or 'no cell has these angles'}"
            ) from err
        if record in ("END", "ENDMDL", "MODEL") and numbers:
            yield _crystal(numbers, positions, cell)
            numbers, positions = [], []
    if numbers:
        yield _crystal(numbers, positions, cell)


def _element(line: str) -> int:
    name = line[76:78].strip().capitalize()
    if not name or name == "X" or name not in atomic_numbers:
        raise DataError(
            f"no element in columns 77 and 78, and the name {line[12:16]!r} does not tell it (CA "
            "may be a carbon or calcium); write the elements, as Open Babel or PDBFixer do"
        )
    if line[16] not in " ":
        raise DataError(
            f"{line[12:16].strip()} is in the alternate place {line[16]!r}; keep one place of each "
            "atom, and blank that column"
        )
    return atomic_numbers[name]


def _crystal(numbers, positions, cell) -> ase.Atoms:
    return ase.Atoms(numbers, np.array(positions), cell=cell, pbc=cell is not None)
