"""Check that labels belong to the positions beside them, see `eqfuse.data.checks`.

Forces between pairs of atoms, functions of the distance for each pair of elements, are fitted to
half of the frames and predict the other half. They explain 0.4 to 1.0 of right forces, in crystals,
liquids, surfaces and molecules alike, and -0.2 to 0.05 of those of other positions. Each kind of
fault is then undone in turn, and one that makes the forces fit is named. The numbers beside the
limits are of the data of `tests/fuzz/labels.py`.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from ase.data import covalent_radii
from scipy.optimize import linear_sum_assignment

from eqfuse.data.checks_of_forces import BONDED, atoms_and_cell, consecutive, groups_of, near_pairs
from eqfuse.data.lazy import chosen, evenly, selected
from eqfuse.data.neighbors import neighbor_list
from eqfuse.data.structures import DataError, Structure, counted, has_all_forces

_MOST_ATOMS, _MOST_FUNCTIONS = 6000, 250
_CENTERS = np.linspace(0.7, 1.8375, 8)  # of functions of distance / sum of covalent radii
_WIDTH = _CENTERS[1] - _CENTERS[0]
_FEWEST, _MANY, _LOOKED_AT = 8, 20, 50  # frames: for a named fault, for none; for lengths
_NUMBERS = 10  # of forces for each function; with 6 of them, 1 of 800 right samples was named
_ITERATIONS = 8
_FITS = 0.4  # of the forces is explained once a fault is undone; 0.4 to 1.0 in right data
_LITTLE, _WELL = 0.3, 0.9  # is explained while it is there; to 0.25, of close frames to 0.86
_CHANGED = 60  # numbers, at least, that undoing a fault changes
_NOTHING, _LEAST_FORCE = 0.05, 0.1  # eV/Å; relaxed structures have small forces that do not fit
_ROUNDING = 1e-4  # eV/Å


class _Sample(NamedTuple):
    """Frames with forces, and what pairs of atoms can explain of them; n atoms in all frames."""

    structures: Sequence[Structure]
    starts: np.ndarray  # of the atoms of each frame
    forces: np.ndarray  # [n, 3]
    springs: np.ndarray  # [n, 3], pulls of bonds that differ from their mean: a first guess
    columns: np.ndarray  # [n_functions, 3 n]
    half: np.ndarray  # [3 n] bool
    inverses: list[np.ndarray]  # of the normal equations of either half

    @classmethod
    def of(cls, structures: Sequence[Structure]) -> "_Sample":
        sizes = np.array([s.num_atoms for s in structures])
        starts = np.cumsum(sizes) - sizes
        elements = np.unique(np.concatenate([s.numbers for s in structures])).tolist()
        kinds = np.array([a * 1000 + b for a in elements for b in elements if a <= b])
        pairs = [_pairs(s, kinds) for s in structures]
        atoms = np.concatenate([p[0] + start for p, start in zip(pairs, starts, strict=True)])
        unit, kind, length = (np.concatenate([p[k] for p in pairs]) for k in (1, 2, 3))
        bonded = length < BONDED
        if not bonded.any():
            bonded[:] = True
        count = np.bincount(kind[bonded], minlength=len(kinds))
        mean = np.bincount(kind[bonded], length[bonded], len(kinds)) / np.maximum(count, 1)
        springs = np.zeros((sizes.sum(), 3))
        np.add.at(springs, atoms, unit * (bonded * (length - mean[kind]))[:, None])
        columns = np.zeros((len(kinds), len(_CENTERS), sizes.sum(), 3))
        for n, center in enumerate(_CENTERS):
            near = np.maximum(1 - np.abs(length - center) / _WIDTH, 0)
            near[(length < center) & (n == 0)] = 1
            some = near > 0
            np.add.at(columns, (kind[some], n, atoms[some]), unit[some] * near[some, None])
        columns = columns.reshape(len(kinds) * len(_CENTERS), -1)
        half = np.repeat(np.arange(len(sizes)) // 2 % 2 == 1, 3 * sizes)
        inverses = []
        for of in (half, ~half):
            gram = columns[:, of] @ columns[:, of].T
            ridge = 1e-4 * np.trace(gram) / len(gram) + 1e-30
            inverses.append(np.linalg.inv(gram + ridge * np.eye(len(gram))))
        forces = np.concatenate([s.forces for s in structures])
        return cls(structures, starts, forces, springs, columns, half, inverses)

    def predicted(self, forces: np.ndarray) -> np.ndarray:
        """Return the forces [n, 3] of each half of the frames, by a fit to the other half."""
        flat, found = forces.ravel(), np.zeros(forces.size)
        for of, inverse in zip((self.half, ~self.half), self.inverses, strict=True):
            weights = inverse @ (self.columns[:, of] @ flat[of])
            found[~of] = weights @ self.columns[:, ~of]
        return found.reshape(-1, 3)

    def each(self, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the parts of arrays, [n, 3], of each frame."""
        return zip(*[np.split(a, self.starts[1:]) for a in arrays], strict=True)


def _pairs(structure: Structure, kinds: np.ndarray, reach: float = _CENTERS[-1] + _WIDTH):
    """Return atoms, unit vectors, numbers of kinds and lengths, in covalent ones, of all pairs."""
    radii = covalent_radii[structure.numbers]
    positions, most = structure.positions, 2 * reach * radii.max()
    senders, receivers, shifts = neighbor_list(positions, structure.cell, structure.pbc, most)
    vector = positions[senders] + shifts - positions[receivers]
    length = np.maximum(np.linalg.norm(vector, axis=1), 1e-10)
    relative = length / (radii[senders] + radii[receivers])
    near = relative < reach
    pair = np.sort(structure.numbers[np.stack([senders, receivers])], axis=0)[:, near]
    kind = np.searchsorted(kinds, pair[0] * 1000 + pair[1])
    return receivers[near], vector[near] / length[near, None], kind, relative[near]


def explained(forces: np.ndarray, predicted: np.ndarray) -> float:
    """Return the share of the squares of forces that predictions explain; below zero for none."""
    return float(1 - np.sum((forces - predicted) ** 2) / max(np.sum(forces**2), 1e-300))


class _Kind(NamedTuple):
    """A kind of fault: how it is undone, and what it is called."""

    undo: Callable  # sample, forces and predicted forces, [n, 3] -> forces, and details
    text: str
    advice: str
    before: float = _LITTLE  # at most is explained of the forces that it concerns


def _shifted(step: int) -> Callable:
    def undo(sample: _Sample, forces, predicted):
        parts = [part for (part,) in sample.each(forces)]
        pairs = [(part, parts[(k - step) % len(parts)]) for k, part in enumerate(parts)]
        return np.concatenate([b if a.shape == b.shape else a for a, b in pairs]), ""

    return undo


def _reordered(sample: _Sample, forces, predicted):
    """Match atoms in the largest group of frames of the same elements in the same order."""
    keys = [s.numbers.tobytes() for s in sample.structures]
    most = max(keys, key=keys.count)
    if keys.count(most) < _FEWEST:
        return forces, ""
    parts = list(zip(keys, sample.each(forces, predicted), strict=True))
    alike = sum(p @ f.T for key, (f, p) in parts if key == most)
    order = linear_sum_assignment(-alike)[1]
    wrong = np.flatnonzero(order != np.arange(len(order)))
    named = ", ".join(f"atom {k} has those of atom {np.argsort(order)[k]}" for k in wrong[:3])
    moved = [f[order] if key == most else f for key, (f, _) in parts]
    return np.concatenate(moved), f" ({named}{', ...' * (len(wrong) > 3)})"


def _signed(sample: _Sample, forces, predicted):
    signs = np.array([np.sum(f * p) < 0 for f, p in sample.each(forces, predicted)])
    name = sample.structures[int(np.argmax(signs))].origin
    sizes = np.diff([*sample.starts, len(forces)])
    details = f" in {signs.sum()} of {counted(len(signs), 'frame')}, as in {name}"
    return np.where(np.repeat(signs, sizes)[:, None], -forces, forces), details


def _turned_alike(sample: _Sample, forces, predicted):
    u, _, v = np.linalg.svd(forces.T @ predicted)
    turn = u @ v
    axes = np.abs(turn).argmax(axis=0)
    if np.abs(turn).max(axis=0).min() < 0.99:
        return forces @ turn, " (rotated in the same way in all frames)"
    names = ", ".join("-" * bool(turn[k, j] < 0) + "xyz"[k] for j, k in enumerate(axes))
    return forces @ turn, f" (x, y, z of the positions are {names} of the forces)"


def _turned(sample: _Sample, forces, predicted):
    moved = []
    for f, p in sample.each(forces, predicted):
        u, _, v = np.linalg.svd(f.T @ p)
        u[:, -1] *= np.sign(np.linalg.det(u @ v))
        moved.append(f @ u @ v)
    return np.concatenate(moved), ""


_NEXT, _BEFORE, _MOVE = "of the next frame", "of the frame before", "move them by a frame"
_KINDS = [
    _Kind(_shifted(1), _NEXT, _MOVE, _WELL),
    _Kind(_shifted(-1), _BEFORE, _MOVE, _WELL),
    _Kind(_reordered, "of other atoms", "write both in one order"),
    _Kind(_signed, "of the opposite sign", "forces are minus the gradient of the energy"),
    _Kind(_turned_alike, "along other axes", "take both in one frame of reference", _WELL),
    _Kind(
        _turned,
        "along axes that differ from frame to frame",
        "take both in one frame of reference (Gaussian: nosymm, or all of its input orientation)",
    ),
]
"""Where two fit as well, the first is named; the last one has three numbers for each frame."""


def forces_elsewhere(structures: Sequence[Structure]) -> Iterator[str]:
    """Find forces that pairs of atoms do not explain, and the fault that makes them do so."""
    sample = _sample(structures)
    if sample is None:
        return
    known = explained(sample.forces, sample.predicted(sample.forces))
    of = counted(len(sample.structures), "frame")
    if known < _WELL and (other := _transposed(sample.structures)):
        after = explained(other.forces, other.predicted(other.forces))
        if after > _FITS and 1 - after < (1 - known) / 2:
            yield (
                f"lattice vectors are columns of the cells: {_share(known, after)} with rows and "
                f"columns exchanged ({of}); a cell has its lattice vectors as rows"
            )
            return
    found = [(gain - 0.03 * k, text) for k, (gain, text) in enumerate(_undone(sample, known))]
    if found:
        yield f"{max(found)[1]} ({of})"
    elif known < _NOTHING and _is_nothing(sample):
        yield (
            f"forces do not fit the positions: pairs of atoms explain {max(known, 0):.0%} of them "
            f"({of}), and 40 to 100% in right data; are they of other frames, atoms or axes?"
        )


def _undone(sample: _Sample, known: float) -> Iterator[tuple[float, str]]:
    """Yield how much more is explained, and the text, for each fault that may be there."""
    forces = sample.forces
    predicted, size = sample.predicted(forces), np.sqrt(np.mean(forces**2))
    for kind in _KINDS:
        for start in (sample.springs, predicted):
            fit = start
            for _ in range(_ITERATIONS):
                undone, details = kind.undo(sample, forces, fit)
                fit = sample.predicted(undone)
            changed = np.abs(undone - forces) > 1e-3 * size
            if changed.sum() < _CHANGED:
                continue
            before = explained(forces[changed], predicted[changed])
            after = explained(undone[changed], fit[changed])
            left = 0.5 if before < _LITTLE else 0.25
            if before < kind.before and after > _FITS and 1 - after < left * (1 - before):
                text = (
                    f"forces are {kind.text}{details}: {_share(before, after)} without this fault"
                )
                yield explained(undone, fit) - known, f"{text}; {kind.advice}"


def _share(before: float, after: float) -> str:
    explain = f"pairs of atoms explain {max(before, 0):.0%} of the forces"
    return f"{explain} as they are, and {after:.0%}"


def _is_nothing(sample: _Sample) -> bool:
    """Test whether even a fit to all frames explains nothing of forces that are large and many."""
    size = np.sqrt(np.mean(sample.forces**2))
    if size < _LEAST_FORCE or len(sample.structures) < _MANY or not _decided(sample, 20):
        return False
    columns, forces = sample.columns.T, sample.forces.ravel()
    reached = np.any(columns, axis=1)  # by another atom within the reach of the functions
    if np.sum(forces[~reached] ** 2) > 0.1 * np.sum(forces**2):
        return False
    fit = columns @ np.linalg.lstsq(columns, forces, rcond=1e-6)[0]
    return explained(forces, fit) < 3 * _NOTHING


_PAIRS = 12
_CORRELATED, _OFF = 0.8, 0.6  # 0.83 to 1.0 and 0.0 to 0.54 in right data
_TIGHT, _BETWEEN, _OFTEN = 0.15, 0.05, 0.2  # of the pairs; 0.29 and more are between in right data


def energies_elsewhere(structures: Sequence[Structure]) -> Iterator[str]:
    """Find energies that are those of other frames, or of two levels of theory.

    Energies of similar frames differ by the work of the forces between them, see
    `energy_differences`. With two levels, what is left of the differences is zero or one number.
    """
    work, changes = [], {0: [], 1: [], -1: []}
    for group in groups_of(structures, lambda s: (atoms_and_cell(s) or [None])[0]):
        a, b, of_group = near_pairs(group)
        energies = np.array([s.energy for s in group]) / group[0].num_atoms
        work.append(of_group / group[0].num_atoms)
        for step, own in changes.items():
            own.append(np.subtract(*np.roll(energies, step)[[b, a]]))
    work = np.concatenate(work or [[]])
    changes = {step: np.concatenate(own or [[]]) for step, own in changes.items()}
    left = {step: np.abs(change - work) for step, change in changes.items()}
    if len(work) < _PAIRS or not np.any(work):
        return
    for step, text in ((1, _NEXT), (-1, _BEFORE)):
        change, usual = changes[step], np.median(np.abs(changes[step]))
        correlation = change @ work / (np.linalg.norm(change) * np.linalg.norm(work) + 1e-300)
        better = np.median(left[step]) < min(np.median(left[0]) / 2, _OFF * usual)
        if correlation > _CORRELATED and better:
            yield (
                f"energies are {text}: then they change by the work of the forces "
                f"({len(work)} pairs of similar frames, correlation {correlation:.2f}); {_MOVE}"
            )
            return
    large = np.quantile(left[0], 0.8, method="nearest")
    level = np.median(left[0][np.abs(left[0] - large) <= _TIGHT * large])
    same, other = left[0] < _TIGHT * level, np.abs(left[0] - level) < _TIGHT * level
    if other.mean() >= _OFTEN and (same | other).mean() > 1 - _BETWEEN:
        yield (
            f"energies are of two levels, {level:.3g} eV/atom apart: in {other.sum()} of "
            f"{len(work)} pairs of similar frames they change by so much more or less than the "
            "work of the forces; take all from one method, code and settings"
        )


_NOBLE = {2, 10, 18, 36, 54, 86}
_LENGTHS = {  # range of the nearest distances over covalent ones; 0.75 to 1.35 in right data
    (1.5, 2.35): "positions and cells are probably in Bohr; multiply them by 0.529177",
    (0.35, 0.62): "positions and cells were probably multiplied by 0.529177 though they were in Å",
}


def lengths(structures: Sequence[Structure]) -> Iterator[str]:
    """Find structures whose bonds have lengths in Bohr, or converted from it twice."""
    some = selected(structures, lambda s: s.num_atoms > 2 and not _NOBLE & set(s.numbers.tolist()))
    found = []
    for s in evenly(some, _LOOKED_AT):
        atoms, _, _, length = _pairs(s, np.zeros(1), 2.4)
        nearest = np.full(s.num_atoms, 9.0)
        np.minimum.at(nearest, atoms, length)
        found.append(np.quantile(nearest, [0.1, 0.5]))
    if not found:
        return
    shortest, usual = np.median(found, axis=0)
    for (low, high), text in _LENGTHS.items():
        if low < usual < high and shortest > 0.9 * low:
            yield (
                f"neighbours are {usual:.2f} times as far apart as bonded atoms "
                f"({counted(len(found), 'frame')}): {text}, and forces are needed in eV/Å"
            )


def _transposed(structures: Sequence[Structure]) -> _Sample | None:
    """Return frames with the columns of their cells as lattice vectors; None where they cannot be.

    Cells that are symmetric are the same, and atoms may be at one place in those of columns.
    """
    if all(np.allclose(s.cell, s.cell.T, atol=1e-3) for s in structures):
        return None
    try:
        return _Sample.of([dataclasses.replace(s, cell=s.cell.T) for s in structures])
    except DataError:
        return None


def _sample(structures: Sequence[Structure]) -> _Sample | None:
    """Return pieces of consecutive frames; None if there are too few for what is fitted."""
    known = selected(structures, lambda s: has_all_forces(s) and s.num_atoms > 1)
    frames = list(chosen(known, consecutive(range(len(known)))))
    atoms = np.cumsum([s.num_atoms for s in frames])
    frames = [s for s, n in zip(frames, atoms, strict=True) if n <= _MOST_ATOMS]
    elements = len(np.unique(np.concatenate([s.numbers for s in frames] or [[]])))
    functions = elements * (elements + 1) // 2 * len(_CENTERS)
    if len(frames) < _FEWEST or functions > _MOST_FUNCTIONS:
        return None
    sample = _Sample.of(frames)
    large = np.sqrt(np.mean(sample.forces**2)) > _ROUNDING
    return sample if large and _decided(sample, _NUMBERS) else None


def _decided(sample: _Sample, numbers: float) -> bool:
    """Test whether there are that many numbers of forces, that are not zero, for each function."""
    size = np.abs(sample.forces)
    return (size > 1e-2 * np.sqrt(np.mean(size**2))).sum() > numbers * len(sample.columns)


_UNLEARNED = 0.9  # of the forces is the error of a network that has learned no more than their size


def nothing_learned(structures: Sequence, predicted: Sequence) -> str | None:
    """Return a warning of predictions whose error is as large as the forces; None if it is not."""
    pairs = [(s.forces, p.forces) for s, p in zip(structures, predicted, strict=True)]
    pairs = [(given, found) for given, found in pairs if given is not None]
    if not pairs:
        return None
    given, found = map(np.concatenate, zip(*pairs, strict=True))
    size, error = (float(np.sqrt(np.nanmean(v**2))) for v in (given, found - given))
    if not size or error < _UNLEARNED * size:
        return None
    kinds = ", ".join(kind.text for kind in _KINDS)
    return (
        f"nothing was learned of the forces: their error on validation frames, {1e3 * error:.4g} "
        f"meV/Å, is as large as the forces, {1e3 * size:.4g}. Either the training was too short, "
        "or its learning rate wrong (see learning.png), or labels do not belong to the positions: "
        f"forces {kinds}, or of another unit than the energies; energies of two levels; positions "
        "in Bohr; lattice vectors as columns"
    )
