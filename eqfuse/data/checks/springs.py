"""Forces against the springs of bonds: their sign and their unit can be seen from single frames."""

from collections.abc import Iterator, Sequence

import numpy as np
from ase.data import chemical_symbols, covalent_radii

from eqfuse.data.errors import counted
from eqfuse.data.lazy import chosen, selected
from eqfuse.data.neighbors import neighbor_list
from eqfuse.data.structures import Structure

_FRAMES = 100  # that are looked at
_MOST_ATOMS = 20_000  # of these together
_BONDED = 1.25  # times the sum of covalent radii
_CERTAIN = 10  # standard errors
_EXPLAINED = 0.1  # of the variance of the forces

_COVALENT = {5, 6, 7, 8, 9, 14, 15, 16, 17, 32, 33, 34, 35}
_D_METALS = {*range(21, 30), *range(39, 48), *range(72, 80)}


def _usual(z1: int, z2: int) -> tuple[float, float] | None:
    """Return the usual range of the stiffness of a bond, eV/Å^2; None where it is not known.

    X-H bonds have 26 to 46 in data of molecules, others of light elements 4 to 25 (multiple bonds
    beside single ones are averaged), silicon 5, copper and platinum 2 to 3.
    """
    low, high = sorted((z1, z2))
    if low == 1 and high in (6, 7, 8, 9):
        return 8.0, 120.0
    if {low, high} <= _COVALENT:
        return 0.8, 150.0
    return (0.25, 25.0) if {low, high} <= _D_METALS else None


def _is_usual(stiffness: float, z1: int, z2: int) -> bool:
    low, high = _usual(z1, z2)
    return low < stiffness < high


def springs(structures: Sequence[Structure]) -> Iterator[str]:
    """Yield that forces push where bonds are stretched, or are of another size than bonds have.

    Forces are fitted by springs between bonded atoms, one stiffness for each pair of elements. A
    bond that is longer than usual pulls, whatever the method that gave the forces.
    """
    sample = _sample(structures)
    bonds = [_bonds(structure) for structure in sample]
    kinds = np.unique(np.concatenate([kind for *_, kind in bonds])) if bonds else np.array([])
    if not len(kinds):
        return
    fitted = _fit(sample, bonds, kinds)
    if fitted is None:
        return
    stiffness, error = fitted
    certain = np.abs(stiffness) > _CERTAIN * error
    if not certain.any():
        return
    names = {k: _elements(kind) for k, kind in enumerate(kinds.tolist())}
    best = int(np.argmax(np.where(certain, np.abs(stiffness) / error, 0)))
    where = counted(len(sample), "frame")
    if (stiffness[certain] < 0).all():
        yield (
            f"forces push atoms together where bonds are short (stiffness of "
            f"{_named(names[best])} {stiffness[best]:.3g} eV/Å^2 in {where}): their sign is "
            "probably wrong; forces are minus the gradient of the energy"
        )
    # Bonds of hydrogen vary least; others are averaged over single and multiple ones.
    known = [k for k in np.flatnonzero(certain) if _usual(*names[k])]
    known = [k for k in known if 1 in names[k]] or known
    odd = [k for k in known if not _is_usual(abs(stiffness[k]), *names[k])]
    if len(odd) > len(known) / 2:
        k = max(odd, key=lambda k: abs(stiffness[k]) / error[k])
        low, high = _usual(*names[k])
        few = abs(stiffness[k]) < low
        unit = "Hartree/Å or Hartree/Bohr" if few else "kcal/mol/Å, kJ/mol/Å or kJ/mol/nm"
        yield (
            f"bonds {_named(names[k])} have a stiffness of {abs(stiffness[k]):.3g} eV/Å^2 in "
            f"{where}, and usually {low:g} to {high:g}: forces are probably in {unit}, and eV/Å is "
            "needed"
        )


def _named(elements) -> str:
    return "-".join(chemical_symbols[z] for z in elements)


def _elements(kind: int) -> tuple[int, int]:
    return divmod(kind, 1000)


def _sample(structures: Sequence[Structure]) -> list[Structure]:
    """Return structures with forces, evenly spaced."""
    forces = selected(structures, lambda s: s.forces is not None and np.any(s.forces))
    steps = np.unique(np.linspace(0, len(forces) - 1, _FRAMES).astype(int)) if forces else []
    sample, atoms = [], 0
    for structure in chosen(forces, steps):
        if sample and atoms + structure.num_atoms > _MOST_ATOMS:
            break
        sample.append(structure)
        atoms += structure.num_atoms
    return sample


def _bonds(structure: Structure):
    """Return the atoms, unit vectors, lengths (Å) and pairs of elements of the bonds."""
    radii = covalent_radii[structure.numbers]
    reach = 2 * _BONDED * radii.max()
    senders, receivers, shifts = neighbor_list(
        structure.positions, structure.cell, structure.pbc, reach
    )
    vector = structure.positions[senders] + shifts - structure.positions[receivers]
    length = np.linalg.norm(vector, axis=1)
    bonded = length < _BONDED * (radii[senders] + radii[receivers])
    pairs = np.sort(np.stack([structure.numbers[senders], structure.numbers[receivers]]), axis=0)
    kind = pairs[0] * 1000 + pairs[1]
    unit = vector[bonded] / length[bonded, None]
    return receivers[bonded], unit, length[bonded], kind[bonded]


def _fit(structures, bonds, kinds) -> tuple[np.ndarray, np.ndarray] | None:
    """Return stiffness and standard error of each kind of bond; None if springs explain nothing."""
    lengths = np.concatenate([length for _, _, length, _ in bonds])
    which = np.searchsorted(kinds, np.concatenate([kind for *_, kind in bonds]))
    mean = np.bincount(which, lengths) / np.bincount(which)
    columns, forces = [], []
    for structure, (atoms, unit, length, kind) in zip(structures, bonds, strict=True):
        k = np.searchsorted(kinds, kind)
        pulls = np.zeros((len(kinds), structure.num_atoms, 3))
        np.add.at(pulls, (k, atoms), unit * (length - mean[k])[:, None])
        columns.append(pulls.reshape(len(kinds), -1))
        forces.append(structure.forces.ravel())
    columns, forces = np.concatenate(columns, axis=1).T, np.concatenate(forces)
    stiffness = np.linalg.lstsq(columns, forces, rcond=1e-8)[0]
    left = forces - columns @ stiffness
    if left @ left > (1 - _EXPLAINED) * (forces @ forces):
        return None
    variance = left @ left / max(1, len(forces) - len(kinds))
    error = np.sqrt(variance * np.diag(np.linalg.pinv(columns.T @ columns)))
    return stiffness, np.maximum(error, 1e-30)
