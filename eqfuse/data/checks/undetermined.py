"""Reference energies that the data do not determine, and total energies in another unit."""

from collections.abc import Iterator, Sequence

import ase.units
import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.dataset import Dataset
from eqfuse.data.errors import counted
from eqfuse.data.lazy import chosen, selected
from eqfuse.data.references import compositions
from eqfuse.data.structures import Structure

_FEW_FRAMES = 3
_TOTALS = (0.99, 1.025)  # of all-electron energies, over those of Thomas-Fermi theory
_GIVE = "give the energies of isolated atoms (data.reference_energies, or config_type=IsolatedAtom)"


def undetermined_references(dataset: Dataset, structures: Sequence[Structure]) -> Iterator[str]:
    """Yield which fitted reference energies the training structures do not determine.

    Args:
      dataset: made of the structures.
      structures: all that were read.
    """
    train = selected(chosen(structures, dataset.train_indices), lambda s: s.energy is not None)
    if not (dataset.references_fitted and train):
        return
    species = np.array(dataset.species)
    table, which = compositions(s.numbers for s in train)
    table = table[:, species]
    loose = _loose(table.astype(np.float64))
    if loose.any():
        values = ", ".join(
            f"{chemical_symbols[z]} {dataset.references[int(z)]:.1f}" for z in species[loose]
        )
        yield (
            f"the fit does not determine the reference energies of {values} eV, since training "
            f"frames have too few compositions: energies of others will be wrong; {_GIVE}"
        )
    having = np.bincount(which) @ (table > 0)  # frames by element
    for k in np.flatnonzero(~loose & (having < min(_FEW_FRAMES, len(train)))):
        frames = np.flatnonzero(table[which, k])
        z = int(species[k])
        yield (
            f"{chemical_symbols[z]} is in {counted(len(frames), 'training frame')} only "
            f"({train[frames[0]].origin or 'a structure'}), whose errors are its reference energy, "
            f"{dataset.references[z]:.1f} eV; leave them out, or {_GIVE}"
        )


def _loose(counts: np.ndarray) -> np.ndarray:
    """Return for each element whether some change of its reference energy changes no total."""
    _, singular, rows = np.linalg.svd(counts, full_matrices=True)
    rank = int((singular > 1e-10 * singular.max()).sum())
    return (np.abs(rows[rank:]) > 1e-8).any(axis=0)


def total_energies_in_hartree(structures: Sequence[Structure]) -> Iterator[str]:
    """Yield that energies are, in their unit, what all-electron energies are in Hartree.

    References: Englert and Schwinger 1984, doi:10.1103/PhysRevA.29.2353 (energies of neutral atoms
      of Z electrons in Hartree, -0.768745 Z^(7/3) + Z^2 / 2 - 0.2699 Z^(5/3), 1% from Z = 6 on).
    """
    labelled = selected(structures, lambda s: s.energy is not None)
    if not labelled:
        return
    ratios = (s.energy / _atoms_in_hartree(s.numbers) for s in labelled)
    ratio = float(np.median(np.fromiter(ratios, np.float64)))
    if _TOTALS[0] < ratio < _TOTALS[1]:
        yield (
            f"energies are {ratio:.3f} times those of the atoms' electrons in Hartree "
            f"({labelled[0].origin or 'structure 0'}: {labelled[0].energy:.6g}): they are probably "
            f"in Hartree, and eV are needed (1 Hartree = {ase.units.Hartree:.6f} eV)"
        )


def _atoms_in_hartree(numbers) -> float:
    z = np.asarray(numbers, np.float64)
    return float(np.sum(-0.768745 * z ** (7 / 3) + z**2 / 2 - 0.2699 * z ** (5 / 3)))
