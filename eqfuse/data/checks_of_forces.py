"""Check that forces belong to the positions beside them, see `eqfuse.data.checks`.

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
from scipy.optimize import linear_sum_assignment

from eqfuse.data.lazy import chosen, selected
from eqfuse.data.neighbors import BONDED
from eqfuse.data.remarks import APERIODIC
from eqfuse.data.samples import species_table
from eqfuse.data.similar import COMPARED, Frames, consecutive, force_errors, limited
from eqfuse.data.structures import DataError, Structure, counted, has_all_forces

_MOST_ATOMS, _MOST_FUNCTIONS = 6000, 250
_FIRST, _WIDTH, _CENTERS = 0.7, 0.1625, 8  # of functions of distance / sum of covalent radii
_TO_JUDGE, _TO_NAME, _MANY = (8, 10), (4, 2), (20, 20)  # frames, numbers a function
_ITERATIONS, _RIDGE = 8, 1e-2  # with less of it, few frames are fitted too closely
_FITS = 0.4  # of the forces is explained once a fault is undone; 0.4 to 1.0 in right data
_LITTLE, _WELL = 0.3, 0.9  # is explained while it is there; to 0.25, of close frames to 0.86
_CHANGED = 60  # numbers, at least, that undoing a fault changes
_NOTHING, _LEAST_FORCE = 0.05, 0.1  # eV/Å; relaxed structures have small forces that do not fit
_ROUNDING = 1e-4  # eV/Å
_TORQUE, _LEAST_TORQUE, _APART = 0.1, 0.02, 8.0  # of the RMS (right: to 0.002); eV/Å; Å to images


class _Sample(NamedTuple):
    """Frames with forces, and what pairs of atoms can explain of them; n atoms in all frames."""

    frames: Frames
    springs: np.ndarray  # [n, 3], pulls of bonds that differ from their mean: a first guess
    columns: np.ndarray  # [n_functions, 3 n]
    half: np.ndarray  # [3 n] bool
    inverses: list[np.ndarray]  # of the normal equations of either half

    @classmethod
    def of(cls, structures: Sequence[Structure]) -> "_Sample | None":
        elements = species_table(structures)
        kinds = np.array([a * 1000 + b for a in elements for b in elements if a <= b])
        frames = Frames.of(structures, _FIRST + _CENTERS * _WIDTH, kinds)
        if frames is None:
            return None
        bonded = frames.relative < BONDED
        bonded |= not bonded.any()
        stretched = frames.stretched(frames.relative, bonded)
        springs = frames.pulls(bonded * stretched, 0, 1).reshape(-1, 3)
        # a distance is between the centers of two functions, which are 1 at their own; past the
        # last one there is another, of zero
        place = np.maximum((frames.relative - _FIRST) / _WIDTH, 0)
        function = place.astype(int)
        part, of_kind = place - function, frames.kind * (_CENTERS + 1) + function
        count = len(kinds) * (_CENTERS + 1)
        columns = frames.pulls(1 - part, of_kind, count) + frames.pulls(part, of_kind + 1, count)
        columns = columns.reshape(len(kinds), _CENTERS + 1, -1)[:, :-1]
        columns = columns.reshape(len(kinds) * _CENTERS, -1)
        columns = columns[columns.any(axis=1)]
        sizes = np.array([s.num_atoms for s in structures])
        half = np.repeat(np.arange(len(sizes)) // 2 % 2 == 1, 3 * sizes)
        grams = [columns[:, of] @ columns[:, of].T for of in (half, ~half)]
        ridge, one = _RIDGE / len(columns), np.eye(len(columns))
        inverses = [np.linalg.inv(g + (ridge * np.trace(g) + 1e-30) * one) for g in grams]
        return cls(frames, springs, columns, half, inverses)

    @classmethod
    def among(cls, structures: Sequence[Structure], fewest=0, numbers=0) -> "_Sample | None":
        """Return pieces of consecutive frames; None if there are too few for what is fitted."""
        known = selected(structures, lambda s: has_all_forces(s) and s.num_atoms > 1)
        some = limited(list(chosen(known, consecutive(range(len(known))))), _MOST_ATOMS)
        elements = len(species_table(some))
        if not some or elements * (elements + 1) // 2 * _CENTERS > _MOST_FUNCTIONS:
            return None
        sample = cls.of(some)
        is_large = sample and sample.size > _ROUNDING
        return sample if is_large and len(some) >= sample.enough(fewest, numbers) else None

    @property
    def size(self) -> float:
        """Return the root mean square of the forces, eV/Å."""
        return float(np.sqrt(np.mean(self.frames.forces**2)))

    def enough(self, fewest: int, numbers: int) -> int:
        """Return how many frames like these have so many numbers, not zero, for each function."""
        large = np.abs(self.frames.forces) > 1e-2 * self.size
        each = large.sum() / len(self.frames.structures)
        return max(fewest, int(numbers * len(self.columns) / each) + 1)

    def predicted(self, forces: np.ndarray) -> np.ndarray:
        """Return the forces [n, 3] of each half of the frames, by a fit to the other half."""
        flat, found = forces.ravel(), np.zeros(forces.size)
        for of, inverse in zip((self.half, ~self.half), self.inverses, strict=True):
            weights = inverse @ (self.columns[:, of] @ flat[of])
            found[~of] = weights @ self.columns[:, ~of]
        return found.reshape(-1, 3)

    def known(self) -> float:
        """Return the share of the forces that pairs of atoms explain."""
        return explained(self.frames.forces, self.predicted(self.frames.forces))

    def each(self, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the parts of arrays, [n, 3], of each frame."""
        return zip(*[np.split(a, self.frames.starts[1:]) for a in arrays], strict=True)


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
    keys = [s.numbers.tobytes() for s in sample.frames.structures]
    most = max(keys, key=keys.count)
    if keys.count(most) < _TO_JUDGE[0]:
        return forces, ""
    parts = list(zip(keys, sample.each(forces, predicted), strict=True))
    alike = sum(p @ f.T for key, (f, p) in parts if key == most)
    order = linear_sum_assignment(-alike)[1]
    wrong = np.flatnonzero(order != np.arange(len(order)))
    named = ", ".join(f"atom {k} has those of atom {np.argsort(order)[k]}" for k in wrong[:3])
    moved = [f[order] if key == most else f for key, (f, _) in parts]
    return np.concatenate(moved), f" ({named}{', ...' * (len(wrong) > 3)})"


def _signed(sample: _Sample, forces, predicted):
    signs = [-1 if np.sum(f * p) < 0 else 1 for f, p in sample.each(forces, predicted)]
    moved = [f * sign for sign, (f,) in zip(signs, sample.each(forces), strict=True)]
    name = sample.frames.structures[int(np.argmin(signs))].origin
    of = f"{signs.count(-1)} of {counted(len(signs), 'frame')}"
    return np.concatenate(moved), f" in {of}, as in {name}"


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


PAIRS = 12  # of similar frames, to judge energies
NEXT, BEFORE, MOVE = "of the next frame", "of the frame before", "move them by a frame"
_KINDS = [
    _Kind(_shifted(1), NEXT, MOVE, _WELL),
    _Kind(_shifted(-1), BEFORE, MOVE, _WELL),
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
_TURNING = _reordered, _turned_alike, _turned


def forces_elsewhere(structures: Sequence[Structure]) -> Iterator[str]:
    """Find forces that turn molecules, or that pairs do not explain, and the fault that does so."""
    turned = list(_torques(structures))
    yield from list(_by_pairs(structures, bool(turned))) or turned


def unjudged(structures: Sequence[Structure]) -> Iterator[str]:
    """Yield whether labels are too few to be judged, and how many frames would do."""
    sample = _Sample.among(structures)
    if sample is None or any(_torques(structures)):
        return
    count, enough = len(sample.frames.structures), max(sample.enough(*_TO_JUDGE), PAIRS)
    if count < enough:
        would = f"about {enough} frames like these" if enough <= COMPARED else "larger frames"
        yield (
            f"labels could not be judged: {counted(count, 'frame')} with forces are too few to see "
            f"whether these, their signs and energies belong to the positions; {would} would do"
        )


def _by_pairs(structures: Sequence[Structure], turned: bool) -> Iterator[str]:
    sample = _Sample.among(structures, *(_TO_NAME if turned else _TO_JUDGE))
    if sample is None:
        return
    known, frames = sample.known(), sample.frames.structures
    of = counted(len(frames), "frame")
    if known < _WELL and (other := _transposed(frames)):
        after = other.known()
        if after > _FITS and 1 - after < (1 - known) / 2:
            yield (
                f"lattice vectors are columns of the cells: {_share(known, after)} with rows and "
                f"columns exchanged ({of}); a cell has its lattice vectors as rows"
            )
            return
    turning = turned or not all(map(_is_alone, frames))
    undone = _undone(sample, known, [k for k in _KINDS if turning or k.undo not in _TURNING])
    found = [(gain - 0.03 * k, text) for k, (gain, text) in enumerate(undone)]
    if found:
        yield f"{max(found)[1]} ({of})"
    elif known < _NOTHING and len(frames) >= sample.enough(*_MANY) and _is_nothing(sample):
        yield (
            f"forces do not fit the positions: pairs of atoms explain {max(known, 0):.0%} of them "
            f"({of}), and 40 to 100% in right data; are they of other frames, atoms or axes?"
        )


def _undone(sample: _Sample, known: float, kinds: Sequence[_Kind]) -> Iterator[tuple[float, str]]:
    """Yield how much more is explained, and the text, for each fault that may be there."""
    forces = sample.frames.forces
    predicted = sample.predicted(forces)
    for kind in kinds:
        for start in (sample.springs, predicted):
            fit = start
            for _ in range(_ITERATIONS):
                undone, details = kind.undo(sample, forces, fit)
                fit = sample.predicted(undone)
            changed = np.abs(undone - forces) > 1e-3 * sample.size
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


def _torques(structures: Sequence[Structure]) -> Iterator[str]:
    """Find isolated molecules which their forces turn, and do not move."""
    alone = selected(structures, lambda s: s.num_atoms > 1 and has_all_forces(s) and _is_alone(s))
    if not alone:
        return
    errors, sizes = np.array([_turning(s) for s in alone]).T
    bad = errors > np.maximum(_TORQUE * np.maximum(sizes, np.median(sizes)), _LEAST_TORQUE)
    if bad.any():
        k = int(np.argmax(np.where(bad, errors, 0)))
        yield (
            f"forces would turn isolated molecules in {bad.sum()} of {counted(len(bad), 'frame')}, "
            f"as errors of {errors[k]:.2g} eV/Å do in {alone[k].origin}, and those between atoms "
            "cannot: are they of other frames, atoms or axes, in a field, or of a cell left out?"
        )


def _is_alone(s: Structure) -> bool:
    """Test whether no image of the atoms is near enough to turn them."""
    if not s.pbc.all():
        return not s.pbc.any() and APERIODIC not in s.remarks
    inverse = np.linalg.inv(s.cell)
    gaps = (1 - np.ptp(s.positions @ inverse, axis=0)) / np.linalg.norm(inverse, axis=0)
    return bool(gaps.min() > _APART)


def _turning(s: Structure) -> tuple[float, float]:
    """Return errors of forces that would give the torque, 0 for a net force, and the RMS; eV/Å."""
    size, net = np.sqrt(np.mean(s.forces**2)), np.abs(s.forces.sum(axis=0)).max()
    arms = s.positions - s.positions.mean(axis=0)
    error = np.linalg.norm(np.cross(arms, s.forces).sum(axis=0)) / np.sqrt(2 * np.sum(arms**2))
    return error * (net < _TORQUE * size * np.sqrt(s.num_atoms)), size


def _share(before: float, after: float) -> str:
    share = f"{max(before, 0):.0%} of the forces as they are, and {after:.0%}"
    return f"pairs of atoms explain {share}"


def _is_nothing(sample: _Sample) -> bool:
    """Test whether even a fit to all frames explains nothing of forces that are large and many."""
    if sample.size < _LEAST_FORCE:
        return False
    columns, forces = sample.columns.T, sample.frames.forces.ravel()
    reached = np.any(columns, axis=1)  # by another atom within the reach of the functions
    if np.sum(forces[~reached] ** 2) > 0.1 * np.sum(forces**2):
        return False
    fit = columns @ np.linalg.lstsq(columns, forces, rcond=1e-6)[0]
    return explained(forces, fit) < 3 * _NOTHING


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


_UNLEARNED = 0.9  # of the forces is the error of a network that has learned no more than their size


def nothing_learned(structures: Sequence, predicted: Sequence) -> str | None:
    """Return a warning of predictions whose error is as large as the forces; None if it is not."""
    size, error = force_errors(structures, predicted) or (0, 0)
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
