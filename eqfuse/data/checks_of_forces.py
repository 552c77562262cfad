"""Checks of signs and units of forces and energies, see `eqfuse.data.checks`."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import ase.units
import numpy as np
from ase.data import chemical_symbols, covalent_radii
from ase.geometry import complete_cell

from eqfuse.data.lazy import chosen, selected
from eqfuse.data.neighbors import neighbor_list
from eqfuse.data.structures import Structure, counted, has_all_forces

_COMPARED = 100  # frames of a group that are compared with each other
_RUNS = 5  # pieces of the file that these are from
_LARGEST_MOLECULE = 60  # atoms, whose distances are compared
_NEAREST = 2  # frames that each is compared with
_LARGEST_GROUPS = 3
_CORRELATED = 0.85
_FLAT = 1e-7  # of the trace of J^T J: what is stiffer counts
_AGREE = 1.5  # factor; clean data have 0.96 to 1.06, and the nearest unit is 1.89

_EV_PER_KCAL = ase.units.kcal / ase.units.mol
_FACTORS = {
    1 / ase.units.Bohr: "forces are in eV/Bohr, or all is in atomic units",
    ase.units.Bohr: "forces were divided by Bohr instead of multiplied, or positions are in Bohr",
    ase.units.Hartree: "forces are in Hartree/Å, and energies in eV",
    ase.units.Hartree / ase.units.Bohr: "forces are in Hartree/Bohr, and energies in eV",
    1 / ase.units.Hartree: "energies are in Hartree, and forces in eV/Å",
    1 / _EV_PER_KCAL: "energies are in kcal/mol, and forces in eV/Å",
    _EV_PER_KCAL: "forces are in kcal/mol/Å, and energies in eV",
}


def energy_differences(structures: Sequence[Structure]) -> Iterator[str]:
    """Find forces and differences of energies that disagree in sign or scale.

    Between similar frames a and b of the same atoms, E_b - E_a is near (g_a + g_b) (q_b - q_a) / 2,
    exactly for a quadratic energy, where g is the gradient by the coordinates q. For molecules, q
    are the inverse distances of all pairs of atoms, so that rotations do not matter and stretched
    bonds are nearly quadratic; in a cell q are the positions. Nothing is concluded where the two
    are not correlated, as for frames that are far apart.
    """
    work, change, atoms = [np.zeros(0)], [np.zeros(0)], []
    for group in groups_of(structures, atoms_and_cell):
        a, b, of_group = near_pairs(group)
        energies = np.array([s.energy for s in group])
        # the same weight for each atom, however large the structures are
        work.append(of_group / group[0].num_atoms)
        change.append((energies[b] - energies[a]) / group[0].num_atoms)
        atoms.append(group[0].num_atoms)
    work, change = np.concatenate(work), np.concatenate(change)
    size = np.sqrt((work @ work) * (change @ change))
    if len(work) < 5 or not size or abs(correlation := work @ change / size) < _CORRELATED:
        return
    ratio = np.sqrt((change @ change) / (work @ work))
    seen = f"{len(work)} pairs of similar frames, correlation {correlation:.2f}"
    if correlation < 0:
        yield (
            f"energies rise where forces pull ({seen}): the sign of the forces is probably wrong; "
            "forces are minus the gradient of the energy"
        )
    if not 1 / _AGREE < ratio < _AGREE:
        yield (
            f"energies change by {ratio:.3g} times what the forces say ({seen}); "
            f"{_explained(ratio, atoms)}; eV and eV/Å are needed"
        )


def _explained(ratio: float, atoms: list[int]) -> str:
    per_atom = {1 / n: "energies are per atom, and totals are needed" for n in atoms}
    near = sorted((abs(np.log(ratio / f)), text) for f, text in (_FACTORS | per_atom).items())
    texts = [text for distance, text in near if distance < 0.25]
    if not texts:
        return "they are in different units, or of different methods"
    return f"probably {' (or: '.join(texts[:2])}{')' if len(texts) > 1 else ''}"


def atoms_and_cell(s: Structure):
    """Return the key of frames whose energies are compared."""
    small = s.pbc.any() or 1 < s.num_atoms <= _LARGEST_MOLECULE
    if small and s.energy is not None and has_all_forces(s):
        return s.numbers.tobytes(), s.cell.round(5).tobytes()
    return None


def groups_of(structures: Sequence[Structure], key: Callable) -> list[list[Structure]]:
    """Return the largest groups of frames of equal keys, sampled; None is in no group."""
    groups = defaultdict(lambda: array("q"))  # a list has 40 bytes for each number
    for k, s in enumerate(structures):
        if (own := key(s)) is not None:
            groups[own].append(k)
    largest = sorted(groups.values(), key=len, reverse=True)[:_LARGEST_GROUPS]
    return [[structures[k] for k in consecutive(group)] for group in largest if len(group) >= 3]


def consecutive(group: Sequence[int]) -> Sequence[int]:
    """Return numbers of pieces of consecutive frames, which are similar in a trajectory."""
    if len(group) <= _COMPARED:
        return group
    length = _COMPARED // _RUNS
    starts = np.linspace(0, len(group) - length, _RUNS).astype(int)
    return [group[k] for k in np.unique((starts[:, None] + np.arange(length)).ravel())]


def near_pairs(group: list[Structure]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers of near frames, two of each pair, and the work against the forces, eV."""
    if group[0].pbc.any():
        a, b, moves, _ = map(np.array, zip(*near_cells(group), strict=True))
        gradients = -np.array([s.forces for s in group])
        moves = moves.reshape(len(moves), -1)
    else:
        coordinates, gradients = _inverse_distances(group)
        distance = ((coordinates[:, None] - coordinates[None]) ** 2).sum(axis=-1)
        np.fill_diagonal(distance, np.inf)
        nearest = np.argsort(distance, axis=1)[:, :_NEAREST]
        a, b = np.repeat(np.arange(len(group)), nearest.shape[1]), nearest.ravel()
        moves = coordinates[b] - coordinates[a]
    gradients = gradients.reshape(len(group), -1)
    work = ((gradients[a] + gradients[b]) / 2 * moves).sum(axis=1)
    once = np.unique(np.sort(np.stack([a, b]), axis=0), axis=1, return_index=True)[1]
    return a[once], b[once], work[once]


def near_cells(group: list[Structure], least_strain: float = 0.0) -> list[tuple]:
    """Return pairs of frames of the same atoms in cells that are near each other.

    Each has the numbers of two frames, the moves of the atoms between them, [n_atoms, 3] Å, without
    those of the cell, and its strain, [3, 3], of at least the given size.
    """
    cells = np.array([complete_cell(s.cell) for s in group])
    fractions = np.array([s.positions for s in group]) @ np.linalg.inv(cells)
    pairs = []
    for k in range(len(group)):
        middle = (cells + cells[k]) / 2
        strain = np.linalg.solve(middle, cells - cells[k])
        strain = (strain + strain.transpose(0, 2, 1)) / 2
        moved = fractions - fractions[k]
        moved -= moved[:, :1] * group[0].pbc
        moved = (moved - np.rint(moved) * group[0].pbc) @ middle
        moved -= moved.mean(axis=1, keepdims=True)
        size, extent = (strain**2).sum(axis=(1, 2)), (middle[:, 0] ** 2).sum(axis=1)
        far = np.where(size < least_strain**2, np.inf, (moved**2).mean(axis=(1, 2)))
        far += size * extent
        far[k] = np.inf
        nearest = [j for j in np.argsort(far)[:_NEAREST] if np.isfinite(far[j])]
        pairs += [(k, j, moved[j], strain[j]) for j in nearest]
    return pairs


def _inverse_distances(group: list[Structure]) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 / distance of all pairs of atoms, [n_frames, n_pairs], and the gradient by them.

    The pairs are more than the coordinates: the gradient g is the shortest that gives the forces,

        g = J (J^T J + e)^-1 (-forces),    J_pa = dq_p / dx_a,

    where e is small and is for what changes no distance: rotations, and moves out of a plane.
    """
    num_atoms = group[0].num_atoms
    i, j = np.triu_indices(num_atoms, 1)
    atoms = np.arange(num_atoms)
    inverse, gradients = [], []
    for s in group:
        vector = s.positions[i] - s.positions[j]
        q = 1 / np.linalg.norm(vector, axis=1)
        slope = -vector * q[:, None] ** 3  # dq / dx_i, and that by x_j is its negative
        blocks = np.zeros((num_atoms, num_atoms, 3, 3))
        blocks[i, j] = blocks[j, i] = -slope[:, :, None] * slope[:, None]
        blocks[atoms, atoms] = -blocks.sum(axis=1)
        matrix = blocks.transpose(0, 2, 1, 3).reshape(3 * num_atoms, -1)
        matrix[np.diag_indices_from(matrix)] += _FLAT * np.trace(matrix)
        # Threads of LAPACK's eigenvalues wait for each other where other programs run.
        moves = np.linalg.solve(matrix, -s.forces.ravel()).reshape(-1, 3)
        inverse.append(q)
        gradients.append((slope * (moves[i] - moves[j])).sum(axis=1))
    return np.array(inverse), np.array(gradients)


_FRAMES = 100  # that are looked at
_MOST_ATOMS = 20_000  # of these together
BONDED = 1.25
"""Times the sum of covalent radii; atoms that are nearer are bonded."""
_CERTAIN = 10  # standard errors
_EXPLAINED = 0.1  # of the variance of the forces

_COVALENT = {5, 6, 7, 8, 9, 14, 15, 16, 17, 32, 33, 34, 35}
_D_METALS = {*range(21, 30), *range(39, 48), *range(72, 80)}


def usual_stiffness(z1: int, z2: int) -> tuple[float, float] | None:
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


def springs(structures: Sequence[Structure]) -> Iterator[str]:
    """Find forces that push where bonds are stretched, or of a size that bonds do not have.

    Forces are fitted by springs between bonded atoms, one stiffness for each pair of elements. A
    bond that is longer than usual pulls, whatever the method that gave the forces.
    """
    fitted = fitted_springs(structures)
    if fitted is None:
        return
    sample, _, kinds, stiffness, error = fitted
    certain = np.abs(stiffness) > _CERTAIN * error
    if not certain.any():
        return
    pairs = [divmod(kind, 1000) for kind in kinds.tolist()]
    where = counted(len(sample), "frame")

    def name(k: int) -> str:
        return "-".join(chemical_symbols[z] for z in pairs[k])

    if (stiffness[certain] < 0).all():
        best = int(np.argmax(np.where(certain, np.abs(stiffness) / error, 0)))
        yield (
            f"forces push atoms together where bonds are short (stiffness of "
            f"{name(best)} {stiffness[best]:.3g} eV/Å^2 in {where}): their sign is "
            "probably wrong; forces are minus the gradient of the energy"
        )
    # Bonds of hydrogen vary least; others are averaged over single and multiple ones.
    known = [k for k in np.flatnonzero(certain) if usual_stiffness(*pairs[k])]
    known = [k for k in known if 1 in pairs[k]] or known
    usual = {k: usual_stiffness(*pairs[k]) for k in known}
    odd = [k for k, (low, high) in usual.items() if not low < abs(stiffness[k]) < high]
    if len(odd) > len(known) / 2:
        k = max(odd, key=lambda k: abs(stiffness[k]) / error[k])
        low, high = usual[k]
        few = abs(stiffness[k]) < low
        unit = "Hartree/Å or Hartree/Bohr" if few else "kcal/mol/Å, kJ/mol/Å or kJ/mol/nm"
        yield (
            f"bonds {name(k)} have a stiffness of {abs(stiffness[k]):.3g} eV/Å^2 in "
            f"{where}, and usually {low:g} to {high:g}: forces are probably in {unit}, and eV/Å is "
            "needed"
        )


def _sample(structures: Sequence[Structure]) -> list[Structure]:
    """Return structures with forces, evenly spaced."""
    forces = selected(structures, lambda s: has_all_forces(s) and np.any(s.forces))
    steps = np.unique(np.linspace(0, max(len(forces) - 1, 0), _FRAMES).astype(int))
    sample = list(chosen(forces, steps[: len(forces)]))
    atoms = np.cumsum([s.num_atoms for s in sample])
    return [s for k, s in enumerate(sample) if k == 0 or atoms[k] <= _MOST_ATOMS]


def _bonds(structure: Structure):
    """Return the atoms, unit vectors, lengths (Å) and pairs of elements of the bonds."""
    radii = covalent_radii[structure.numbers]
    reach = 2 * BONDED * radii.max()
    senders, receivers, shifts = neighbor_list(
        structure.positions, structure.cell, structure.pbc, reach
    )
    vector = structure.positions[senders] + shifts - structure.positions[receivers]
    length = np.linalg.norm(vector, axis=1)
    bonded = length < BONDED * (radii[senders] + radii[receivers])
    pairs = np.sort(np.stack([structure.numbers[senders], structure.numbers[receivers]]), axis=0)
    kind = pairs[0] * 1000 + pairs[1]
    unit = vector[bonded] / length[bonded, None]
    return receivers[bonded], unit, length[bonded], kind[bonded]


class Springs(NamedTuple):
    """Springs between bonded atoms, fitted to forces."""

    structures: list[Structure]
    bonds: list[tuple]  # of each structure: atoms, directions, lengths less mean, lengths, kinds
    kinds: np.ndarray  # [n_kinds] pairs of elements
    stiffness: np.ndarray  # [n_kinds] eV/Å^2
    error: np.ndarray  # [n_kinds] standard errors

    def virials(self) -> np.ndarray:
        """Return the stress times the volume of each structure, [n, 3, 3] eV; bonds occur twice."""
        virials = []
        for _, unit, stretched, length, k in self.bonds:
            tension = self.stiffness[k] * stretched * length / 2
            virials.append(np.einsum("n,ni,nj->ij", tension, unit, unit))
        return np.array(virials)


def fitted_springs(structures: Sequence[Structure]) -> Springs | None:
    """Return springs that give the forces of a sample; None if they explain nothing."""
    sample, columns, forces, bonds = _sample(structures), [], [], []
    found = [_bonds(structure) for structure in sample]
    if not sum(len(length) for _, _, length, _ in found):
        return None
    lengths = np.concatenate([length for _, _, length, _ in found])
    kinds, which = np.unique(np.concatenate([kind for *_, kind in found]), return_inverse=True)
    mean = np.bincount(which, lengths) / np.bincount(which)
    for structure, (atoms, unit, length, kind) in zip(sample, found, strict=True):
        k = np.searchsorted(kinds, kind)
        stretched = length - mean[k]
        pulls = np.zeros((len(kinds), structure.num_atoms, 3))
        np.add.at(pulls, (k, atoms), unit * stretched[:, None])
        columns.append(pulls.reshape(len(kinds), -1))
        forces.append(structure.forces.ravel())
        bonds.append((atoms, unit, stretched, length, k))
    columns, forces = np.concatenate(columns, axis=1).T, np.concatenate(forces)
    stiffness = np.linalg.lstsq(columns, forces, rcond=1e-8)[0]
    left = forces - columns @ stiffness
    if left @ left > (1 - _EXPLAINED) * (forces @ forces):
        return None
    variance = left @ left / max(1, len(forces) - len(kinds))
    error = np.sqrt(variance * np.diag(np.linalg.pinv(columns.T @ columns)))
    return Springs(sample, bonds, kinds, stiffness, np.maximum(error, 1e-30))
