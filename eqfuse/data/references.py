"""Reference energies of the species, which a model does not have to learn.

All-electron total energies are of the order of -1e4 eV per molecule, where neighbouring float32
numbers are 1e-3 eV apart: references are subtracted in float64, before any cast.
"""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.lazy import selected
from eqfuse.data.neighbors import neighbor_list
from eqfuse.data.readers import Keys, read_structures
from eqfuse.data.structures import MAX_ATOMIC_NUMBER, DataError, Structure

_ROWS = 10_000  # of a fit; more of them take much memory
TOLERANCE = 1e-6
"""eV between two energies of the same atom: as many digits as files are written with."""


def isolated_atom_energies(
    path: str | os.PathLike, *, energy_key: str = "energy", cutoff: float | None = None
) -> dict[int, float]:
    """Return the energies of isolated atoms from a file of single atoms.

    Args:
      path: the file, one frame per element.
      energy_key: name of the energies in the file, eV.
      cutoff: Å; an atom that has images of itself within it is a warning.
    Returns:
      atomic number -> energy in eV, sorted by atomic number.
    Raises:
      DataError: as `read_structures`; a frame with several atoms or no energy; an element given
        twice with different energies.
    """
    atoms = read_structures(path, keys=Keys(energy=energy_key), require_labels=False)
    for atom in atoms:
        if atom.num_atoms != 1:
            raise DataError(
                f"{atom.origin} has {atom.num_atoms} atoms; a file of isolated-atom "
                "energies has one atom in each frame"
            )
        if atom.energy is None:
            raise DataError(f"{atom.origin} has no energy under the key {energy_key!r}")
    return energies_of_atoms(atoms, cutoff)


def energies_of_atoms(atoms: Iterable[Structure], cutoff: float | None = None) -> dict[int, float]:
    """Return the energy of each element from single atoms, of two equal ones the first."""
    energies: dict[int, float] = {}
    for atom in atoms:
        if atom.energy is None:
            raise DataError(f"{atom.origin}: an isolated atom without an energy")
        if cutoff and len(neighbor_list(atom.positions, atom.cell, atom.pbc, cutoff)[0]):
            warnings.warn(
                f"{atom.origin}: this isolated atom has periodic images of itself within the "
                f"cutoff of {cutoff} Å, and its energy is that of a crystal; give one of a larger "
                "cell, or without periodic boundaries",
                UserWarning,
                stacklevel=2,
            )
        number = int(atom.numbers[0])
        if abs(energies.setdefault(number, atom.energy) - atom.energy) > TOLERANCE:
            raise DataError(
                f"{atom.origin}: a second energy for {chemical_symbols[number]}, {atom.energy} eV "
                f"after {energies[number]} eV; keep one"
            )
    return dict(sorted(energies.items()))


def fit_reference_energies(structures: Sequence[Structure]) -> dict[int, float]:
    """Return the least-squares fit, in float64, of total energies by a sum of per-species energies.

    Compositions that do not determine the energies (a single molecule, say) give the solution of
    the smallest norm.

    Args:
      structures: with energies, eV.
    Returns:
      atomic number -> energy in eV, sorted by atomic number.
    Raises:
      DataError: no structures, or one without an energy.
    """
    if not structures:
        raise DataError("reference energies cannot be fitted to no structures")
    if any(structure.energy is None for structure in structures):
        raise DataError("reference energies can only be fitted to structures with energies")
    return fit_energies_of_atoms((s.numbers for s in structures), (s.energy for s in structures))


def fit_energies_of_atoms(
    numbers: Iterable[np.ndarray], energies: Iterable[float]
) -> dict[int, float]:
    """Return the fit of `fit_reference_energies` for the atomic numbers of each structure."""
    table, which = compositions(numbers)
    species = np.flatnonzero(table.any(axis=0))
    counts = table[:, species].astype(np.float64)
    energies = np.fromiter(energies, np.float64)
    if len(energies) <= _ROWS:
        counts = counts[which]
    else:  # the same fit, to the mean energy of each composition
        frames = np.bincount(which)
        weight = np.sqrt(frames)
        energies = weight * np.bincount(which, energies) / frames
        counts *= weight[:, None]
    # Counts are small integers: singular values below 1e-10 of the largest are rounding.
    fitted = np.linalg.lstsq(counts, energies, rcond=1e-10)[0]
    return {int(number): float(energy) for number, energy in zip(species, fitted, strict=True)}


def compositions(numbers: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the compositions that occur, [n, MAX_ATOMIC_NUMBER + 1] int32, and that of each.

    `numbers` are the atomic numbers of each structure.
    """
    size = MAX_ATOMIC_NUMBER + 1
    known: dict[bytes, int] = {}
    keys = (np.bincount(atoms, minlength=size).astype(np.int32).tobytes() for atoms in numbers)
    which = np.fromiter((known.setdefault(key, len(known)) for key in keys), np.int64)
    return np.frombuffer(b"".join(known), np.int32).reshape(-1, size), which


def subtract(structure: Structure, references: Mapping[int, float]) -> float | None:
    """Return the energy of a structure relative to its atoms' references, eV; None without one."""
    if missing := sorted(set(structure.numbers.tolist()) - set(references)):
        raise DataError(
            f"no reference energy for {', '.join(chemical_symbols[z] for z in missing)}; there are "
            f"energies for {', '.join(chemical_symbols[z] for z in sorted(references))}; give one "
            "for each element (data.reference_energies, or frames with config_type=IsolatedAtom), "
            "or none, and they are fitted to the training structures"
        )
    if structure.energy is None:
        return None
    per_atom = np.array([references[z] for z in structure.numbers.tolist()], np.float64)
    return structure.energy - float(per_atom.sum())


def fitted_references(train, val, species) -> dict[int, float]:
    """Return reference energies fitted to training structures with energies; zeros without any."""
    with_energy = selected(train, lambda s: s.energy is not None)
    if not with_energy:
        return dict.fromkeys(species, 0.0)
    references = fit_reference_energies(with_energy)
    for structures, does in ((train, "trains on"), (val, "validates with")):
        for s in structures:
            if unseen := sorted(set(s.numbers.tolist()) - set(references)):
                raise DataError(
                    f"{s.origin}: {does} {', '.join(chemical_symbols[z] for z in unseen)}, which "
                    "no training structure with an energy has, and reference energies are fitted "
                    "to these; train on such structures (another seed= may choose them), leave "
                    "them out, or give the energy of the isolated atom (data.reference_energies, "
                    "or a frame with config_type=IsolatedAtom)"
                )
    return references
