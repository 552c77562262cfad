"""Similar frames, near pairs of atoms and springs between them: what the checks of labels share."""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ase.geometry import complete_cell

from eqfuse.data.lazy import chosen, selected
from eqfuse.data.neighbors import BONDED, pairs_by_radii
from eqfuse.data.structures import Structure, has_all_forces

COMPARED = 100  # frames of a group that are compared with each other
_RUNS = 5  # pieces of the file that these are from
_LARGEST_MOLECULE = 60  # atoms, whose distances are compared
_NEAREST = 2  # frames that each is compared with
_LARGEST_GROUPS = 3
_FLAT = 1e-7  # of the trace of J^T J: what is stiffer counts


def consecutive(group: Sequence[int]) -> Sequence[int]:
    """Return numbers of pieces of consecutive frames, which are similar in a trajectory."""
    if len(group) <= COMPARED:
        return group
    length = COMPARED // _RUNS
    starts = np.linspace(0, len(group) - length, _RUNS).astype(int)
    return [group[k] for k in np.unique((starts[:, None] + np.arange(length)).ravel())]


class Steps(NamedTuple):
    """Steps between similar frames of the same atoms, each pair once; of energies, per atom."""

    ends: list[tuple[Structure, Structure]]
    work: np.ndarray  # [n] eV/atom, against the forces
    changes: np.ndarray  # [3, n] eV/atom, of the energies, and of those a frame late and early
    strains: np.ndarray  # [n, 3, 3] of the cells, over the number of atoms

    @classmethod
    def of(cls, structures: Sequence[Structure], same_cell=False, least_strain=0.0) -> "Steps":
        """Return the steps between frames of the same atoms, of at least a strain.

        Between frames a and b that are near, E_b - E_a is near (g_a + g_b) (q_b - q_a) / 2, exactly
        for a quadratic energy, where g is the gradient by the coordinates q. For molecules, q are
        the inverse distances of all pairs of atoms, so that rotations do not matter and stretched
        bonds are nearly quadratic; in a cell q are the positions.
        """
        groups = defaultdict(lambda: array("q"))  # a list has 40 bytes for each number
        for k, s in enumerate(structures):
            small = s.pbc.any() or 1 < s.num_atoms <= _LARGEST_MOLECULE
            if small and s.energy is not None and has_all_forces(s):
                cell = s.cell.round(5).tobytes() if same_cell else b""
                groups[s.numbers.tobytes(), s.charge, cell].append(k)
        ends, strains, steps = [], [np.zeros((0, 3, 3))], [np.zeros((4, 0))]
        for numbers in sorted(groups.values(), key=len, reverse=True)[:_LARGEST_GROUPS]:
            if len(numbers) < 3:
                break
            group = [structures[k] for k in consecutive(numbers)]
            a, b, work, strain = _near_pairs(group, least_strain)
            ends += [(group[i], group[j]) for i, j in zip(a, b, strict=True)]
            energies = np.array([s.energy for s in group])
            changes = [np.subtract(*np.roll(energies, late)[[b, a]]) for late in (0, 1, -1)]
            # the same weight for each atom, however large the structures are
            steps.append(np.array([work, *changes]) / group[0].num_atoms)
            strains.append(strain / group[0].num_atoms)
        work, *changes = np.concatenate(steps, axis=1)
        return cls(ends, work, np.array(changes), np.concatenate(strains))


def _near_pairs(group: list[Structure], least_strain: float) -> tuple[np.ndarray, ...]:
    """Return numbers of near frames, two of each pair, the work, eV, and strain between them."""
    if group[0].pbc.any():
        a, b, moves, strains = _near_cells(group, least_strain)
        gradients = -np.array([s.forces.ravel() for s in group])
    else:
        coordinates, gradients = _inverse_distances(group)
        distance = ((coordinates[:, None] - coordinates[None]) ** 2).sum(axis=-1)
        np.fill_diagonal(distance, np.inf)
        nearest = np.argsort(distance, axis=1)[:, :_NEAREST]
        a, b = np.repeat(np.arange(len(group)), nearest.shape[1]), nearest.ravel()
        moves, strains = coordinates[b] - coordinates[a], np.zeros((len(a), 3, 3))
    work = ((gradients[a] + gradients[b]) / 2 * moves).sum(axis=1)
    once = np.unique(np.sort(np.stack([a, b]), axis=0), axis=1, return_index=True)[1]
    return a[once], b[once], work[once], strains[once]


def _near_cells(group: list[Structure], least_strain: float) -> tuple[np.ndarray, ...]:
    """Return pairs of frames of the same atoms in cells that are near each other.

    The results are the numbers of both frames, [n], the moves of the atoms between them,
    [n, 3 n_atoms] Å, without those of the cell, and its strain, [n, 3, 3], of at least that size.
    """
    cells = np.array([complete_cell(s.cell) for s in group])
    fractions = np.array([s.positions for s in group]) @ np.linalg.inv(cells)
    ends, moves, strains = [], [], []
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
        ends += [(k, j) for j in nearest]
        moves.append(moved[nearest].reshape(len(nearest), fractions[0].size))
        strains.append(strain[nearest])
    a, b = np.array(ends, int).reshape(-1, 2).T
    return a, b, np.concatenate(moves), np.concatenate(strains)


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


def limited(structures: Sequence[Structure], most_atoms: int) -> list[Structure]:
    """Return the first structures that have at most so many atoms together, and at least one."""
    atoms = np.cumsum([s.num_atoms for s in structures])
    return [s for k, s in enumerate(structures) if k == 0 or atoms[k] <= most_atoms]


class Frames(NamedTuple):
    """Frames with forces and their near pairs of atoms, one frame after the other."""

    structures: Sequence[Structure]
    starts: np.ndarray  # of the atoms of each frame
    forces: np.ndarray  # [n_atoms, 3]
    kinds: np.ndarray  # pairs of elements, 1000 z_low + z_high
    # of each pair, which occurs in both directions, [n_pairs]:
    frame: np.ndarray
    atom: np.ndarray  # that it pulls
    kind: np.ndarray  # index into the kinds
    unit: np.ndarray  # [n_pairs, 3], away from the atom
    length: np.ndarray  # Å
    relative: np.ndarray  # length over the sum of covalent radii

    @classmethod
    def of(cls, structures: Sequence[Structure], reach: float, kinds=None) -> "Frames | None":
        """Return frames with pairs nearer than `reach` covalent lengths; None without any pair."""
        sizes = np.array([s.num_atoms for s in structures], int)
        starts = np.cumsum(sizes) - sizes
        parts = []
        for k, (s, start) in enumerate(zip(structures, starts, strict=True)):
            i, j, shifts, length, relative = pairs_by_radii(
                s.numbers, s.positions, s.cell, s.pbc, reach
            )
            low, high = np.sort(s.numbers[np.stack([i, j])], axis=0)
            unit = (s.positions[i] + shifts - s.positions[j]) / length[:, None]
            kind = low.astype(int) * 1000 + high
            parts.append((np.full(len(i), k), j + start, kind, unit, length, relative))
        if not sum(len(part[0]) for part in parts):
            return None
        frame, atom, kind, *others = map(np.concatenate, zip(*parts, strict=True))
        kinds = np.unique(kind) if kinds is None else kinds
        forces = np.concatenate([s.forces for s in structures])
        kind = np.searchsorted(kinds, kind)
        return cls(structures, starts, forces, kinds, frame, atom, kind, *others)

    def stretched(self, lengths: np.ndarray, some) -> np.ndarray:
        """Return lengths [n_pairs] less the mean of some pairs of the same kind."""
        count = np.bincount(self.kind[some], minlength=len(self.kinds))
        mean = np.bincount(self.kind[some], lengths[some], len(self.kinds)) / np.maximum(count, 1)
        return lengths - mean[self.kind]

    def pulls(self, pull: np.ndarray, function, count: int) -> np.ndarray:
        """Return forces, [count, 3 n_atoms], of pairs that pull, each in the function it is of."""
        columns = np.zeros((count, len(self.forces), 3))
        np.add.at(columns, (function, self.atom), self.unit * pull[:, None])
        return columns.reshape(count, -1)


_FRAMES, _MOST_ATOMS = 100, 20_000  # that springs are fitted to
_EXPLAINED = 0.1  # of the variance of the forces
_OUTLIER = 20.0  # times the usual largest force of a frame: one such would be most of the variance


class Springs(NamedTuple):
    """Springs between bonded atoms, fitted to forces; one stiffness for each pair of elements."""

    frames: Frames
    stretched: np.ndarray  # [n_pairs] Å
    stiffness: np.ndarray  # [n_kinds] eV/Å^2
    error: np.ndarray  # [n_kinds] standard errors

    @classmethod
    def fitted(cls, structures: Sequence[Structure]) -> "Springs | None":
        """Return springs that give the forces of a sample; None if they explain nothing."""
        known = selected(structures, lambda s: has_all_forces(s) and np.any(s.forces))
        steps = np.unique(np.linspace(0, max(len(known) - 1, 0), _FRAMES).astype(int))
        sample = limited(list(chosen(known, steps[: len(known)])), _MOST_ATOMS)
        largest = np.array([np.abs(s.forces).max() for s in sample])
        usual = largest <= _OUTLIER * np.median(largest) if sample else []
        sample = [s for s, is_usual in zip(sample, usual, strict=True) if is_usual]
        frames = Frames.of(sample, BONDED)
        if frames is None:
            return None
        stretched = frames.stretched(frames.length, slice(None))
        columns = frames.pulls(stretched, frames.kind, len(frames.kinds)).T
        forces = frames.forces.ravel()
        stiffness = np.linalg.lstsq(columns, forces, rcond=1e-8)[0]
        left = forces - columns @ stiffness
        if left @ left > (1 - _EXPLAINED) * (forces @ forces):
            return None
        variance = left @ left / max(1, len(forces) - len(frames.kinds))
        error = np.sqrt(variance * np.diag(np.linalg.pinv(columns.T @ columns)))
        return cls(frames, stretched, stiffness, np.maximum(error, 1e-30))

    def virials(self) -> np.ndarray:
        """Return the stress times the volume of each frame, [n, 3, 3] eV."""
        frames = self.frames
        tension = self.stiffness[frames.kind] * self.stretched * frames.length / 2  # occurs twice
        virials = np.zeros((len(frames.structures), 3, 3))
        outer = frames.unit[:, :, None] * frames.unit[:, None]
        np.add.at(virials, frames.frame, tension[:, None, None] * outer)
        return virials


def force_errors(structures: Sequence, predicted: Sequence) -> tuple[float, float] | None:
    """Return the RMS of known forces, and of the errors of predictions; None without any."""
    pairs = [(s.forces, p.forces) for s, p in zip(structures, predicted, strict=True)]
    pairs = [pair for pair in pairs if pair[0] is not None]
    if not pairs:
        return None
    given, found = map(np.concatenate, zip(*pairs, strict=True))
    return tuple(float(np.sqrt(np.nanmean(v**2))) for v in (given, found - given))
