"""Forces against differences of energies between similar frames."""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

import ase.units
import numpy as np

from eqfuse.data.structures import Structure

_FRAMES = 100  # of a group that are compared with each other
_RUNS = 5  # pieces of the file that these are from
_MOST_ATOMS = 60  # of a molecule, whose distances are compared
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
    """Yield that forces and differences of energies disagree in sign or scale.

    Between similar frames a and b of the same atoms, E_b - E_a is near (g_a + g_b) (q_b - q_a) / 2,
    exactly for a quadratic energy, where g is the gradient by the coordinates q. For molecules, q
    are the inverse distances of all pairs of atoms, so that rotations do not matter and stretched
    bonds are nearly quadratic; in a cell q are the positions. Nothing is concluded where the two
    are not correlated, as for frames that are far apart.
    """
    work, change, atoms = [np.zeros(0)], [np.zeros(0)], []
    for group in _groups(structures):
        group_work, group_change = _pairs(group)
        # the same weight for each atom, however large the structures are
        work.append(group_work / group[0].num_atoms)
        change.append(group_change / group[0].num_atoms)
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
    return (
        f"probably {' (or: '.join(texts[:2])}{')' if len(texts) > 1 else ''}"
        if texts
        else ("they are in different units, or of different methods")
    )


def _groups(structures: Sequence[Structure]) -> list[list[Structure]]:
    """Return the largest groups of frames of the same atoms in the same cell, sampled."""
    groups = defaultdict(lambda: array("q"))  # a list has 40 bytes for each number
    for k, s in enumerate(structures):
        small = s.pbc.any() or 1 < s.num_atoms <= _MOST_ATOMS
        if small and s.energy is not None and s.forces is not None:
            groups[s.numbers.tobytes(), s.cell.round(5).tobytes()].append(k)
    largest = sorted(groups.values(), key=len, reverse=True)[:_LARGEST_GROUPS]
    return [[structures[k] for k in _sampled(group)] for group in largest if len(group) >= 3]


def _sampled(group: Sequence[int]) -> Sequence[int]:
    """Return numbers of pieces of consecutive frames, which are similar in a trajectory."""
    if len(group) <= _FRAMES:
        return group
    length = _FRAMES // _RUNS
    starts = np.linspace(0, len(group) - length, _RUNS).astype(int)
    return [group[k] for k in np.unique((starts[:, None] + np.arange(length)).ravel())]


def _pairs(group: list[Structure]) -> tuple[np.ndarray, np.ndarray]:
    """Return the work against the forces and the change of the energy, of pairs of near frames."""
    if group[0].pbc.any():
        coordinates, gradients = _wrapped(group), [-s.forces.ravel() for s in group]
    else:
        coordinates, gradients = _inverse_distances(group)
    gradients, energies = np.array(gradients), np.array([s.energy for s in group])
    distance = ((coordinates[:, None] - coordinates[None]) ** 2).sum(axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1)[:, :_NEAREST]
    a = np.repeat(np.arange(len(group)), nearest.shape[1])
    a, b = np.unique(np.sort(np.stack([a, nearest.ravel()]), axis=0), axis=1)
    work = ((gradients[a] + gradients[b]) / 2 * (coordinates[b] - coordinates[a])).sum(axis=1)
    return work, energies[b] - energies[a]


def _wrapped(group: list[Structure]) -> np.ndarray:
    """Return positions [n_frames, 3 n_atoms], of the images nearest to those of the first frame."""
    first = group[0]
    lattice = first.cell[first.pbc]
    moved = np.array([s.positions - first.positions for s in group])
    moved -= np.round(moved @ np.linalg.pinv(lattice)) @ lattice
    moved -= moved.mean(axis=1, keepdims=True)
    return moved.reshape(len(group), -1)


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
