"""What atoms or a file say besides positions, and no network reads."""

from collections.abc import Mapping

import ase
import numpy as np
from ase.data import covalent_radii

from eqfuse.data.neighbors import BONDED, pairs_by_radii
from eqfuse.data.structures import DataError

CHARGES = "charge", "total_charge"
_SPINS = "spin", "multiplicity", "spin_multiplicity"  # 0 or 1 is a singlet, in either convention
_ARRAYS = {"initial_charges": "initial charges", "initial_magmoms": "initial magnetic moments"}
APERIODIC = "a lattice and pbc F F F"
_OVERLAP = 0.7  # of the sum of covalent radii
_LARGEST = 1e6  # Å


def remarks_of(atoms: ase.Atoms) -> tuple[str, ...]:
    """Return the names of what atoms have and no network reads; none for neutral singlets.

    `APERIODIC` is of atoms that are not periodic, though their lattice bonds them to their images.
    """
    found = []
    for name, keys, none in (("charge", CHARGES, (0,)), ("spin", _SPINS, (0, 1))):
        values = [atoms.info[key] for key in keys if key in atoms.info]
        if any(np.isscalar(v) and not isinstance(v, str) and v not in none for v in values):
            found.append(name)
    arrays = ((text, atoms.arrays.get(key)) for key, text in _ARRAYS.items())
    found += [text for text, a in arrays if a is not None and a.dtype.kind in "iuf" and np.any(a)]
    return (*found, APERIODIC) if _fills_its_lattice(atoms) else tuple(found)


def total_charge(info: Mapping, key: str | None) -> float:
    """Return the total charge of atoms of this `info`, e; 0 without a key.

    Raises:
      DataError: no number under the key.
    """
    value = 0.0 if key is None else info.get(key)
    if isinstance(value, str | bool) or not np.isscalar(value):
        got = "there is none" if value is None else f"it is {value!r}"
        raise DataError(
            f"the total charge is read from {key!r} (of atoms.info, or of the line before the "
            f"atoms), and {got}: give a number, 0 for what is neutral"
        )
    return float(value)


def unread(remarks, charge_key: str | None = None) -> str:
    """Return a warning of remarks, without `APERIODIC`; "" for none.

    With a `charge_key`, charges are read.
    """
    known = (APERIODIC,) if charge_key is None else (APERIODIC, "charge")
    names = [name for name in dict.fromkeys(remarks) if name not in known]
    if not names:
        return ""
    are, them = ("is", "it") if names in (["charge"], ["spin"]) else ("are", "them")
    return (
        f"{', '.join(names)} of the atoms {are} not read: no network here depends on {them}, and "
        "structures that differ in nothing else have the same energy"
    )


def _fills_its_lattice(atoms: ase.Atoms) -> bool:
    """Test for bonds across the lattice of atoms without pbc, in two directions, and no overlap."""
    cell, positions = atoms.cell.array, atoms.positions
    if atoms.pbc.any() or not len(atoms) or atoms.numbers.max() >= len(covalent_radii):
        return False  # what cannot be is refused elsewhere
    large = np.abs(cell).max(initial=np.abs(positions).max())
    if not large < _LARGEST or abs(np.linalg.det(cell)) < 1e-3:
        return False
    reach = 2 * BONDED * covalent_radii[atoms.numbers].max()
    inverse = np.linalg.inv(cell)
    heights = 1 / np.linalg.norm(inverse, axis=0)
    gaps = (1 - np.ptp(positions @ inverse, axis=0)) * heights
    if (gaps > reach).sum() > 1:  # most molecules, without a list
        return False
    try:
        _, _, shifts, _, relative = pairs_by_radii(
            atoms.numbers, positions, cell, np.ones(3, bool), BONDED
        )
    except DataError:
        return False
    across = np.rint(shifts @ inverse) != 0
    if not across.any() or relative[across.any(axis=1)].min() < _OVERLAP:
        return False
    bonds = across.sum(axis=0)
    return bool((bonds >= max(2, len(atoms) ** (2 / 3))).sum() >= 2)
