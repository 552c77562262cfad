"""Energies and forces along the path of an atom: no jumps, from 0.2 Å to beyond the cutoff."""

from typing import NamedTuple

import ase
import numpy as np

from eqfuse.certify.questions import SIGMAS, Finding, Rounding, line, measure
from eqfuse.certify.subjects import Subject

NEAREST, FARTHEST, _STEP = 0.2, 12.0, 0.05  # Å
_CANDIDATES, _WINDOW = 3, 5
_FINEST, _FINEST_OF_FLOAT32 = 2e-6, 1e-4  # Å, between the points in which a jump is sought


class Path(NamedTuple):
    """An atom, the last one, that moves away from the first along a direction.

    Attributes:
      name: for reports.
      atoms: the structure; the position of its last atom is not read.
      direction: [3], of length 1.
    """

    name: str
    atoms: ase.Atoms
    direction: np.ndarray

    def at(self, distance: float) -> ase.Atoms:
        """Return the structure with the last atom at a distance of the first, Å."""
        copy = self.atoms.copy()
        copy.positions[-1] = copy.positions[0] + distance * self.direction
        return copy


class Walk(NamedTuple):
    """What was computed along a path.

    Attributes:
      name: of the path.
      distances: [n] Å.
      energies: [n] eV.
      forces: [n] eV/Å, of the last atom along the direction.
      findings: of the question "path".
      noise: the rounding at 2.5 Å.
    """

    name: str
    distances: np.ndarray
    energies: np.ndarray
    forces: np.ndarray
    findings: list[Finding]
    noise: Rounding


def paths_of(elements, cluster: ase.Atoms, rng) -> list[tuple[Path, float]]:
    """Return paths of pairs and of an atom that leaves a cluster, with the distances they begin at.

    Args:
      elements: atomic numbers; three pairs of them are taken.
      cluster: without periodic directions.
    """
    elements = rng.permutation(np.unique(elements))
    pairs = [(elements[0], elements[0]), (elements[0], elements[-1]), (elements[-1], elements[-1])]
    found = []
    for a, b in dict.fromkeys(pairs):
        atoms = ase.Atoms([a, b], np.zeros((2, 3)))
        found.append((Path(f"pair {atoms.symbols}", atoms, _direction(rng)), NEAREST))
    out = _direction(rng)
    outermost = int(np.argmax(cluster.positions @ out))
    order = np.argsort(np.linalg.norm(cluster.positions - cluster.positions[outermost], axis=1))
    atoms = ase.Atoms(cluster.numbers[order], cluster.positions[order])
    atoms += ase.Atoms([elements[0]], [[0.0, 0.0, 0.0]])
    name = f"{atoms.symbols[-1:]} leaves {cluster.symbols}"
    return [*found, (Path(name, atoms, out), 1.0)]


def _direction(rng) -> np.ndarray:
    direction = rng.normal(size=3)
    return direction / np.linalg.norm(direction)


def walk(subject: Subject, path: Path, begin: float, precision: str, rng) -> Walk:
    """Compute a path, and look for jumps where energies or forces change most abruptly.

    Between two points, the energy changes by the integral of the force, and a smooth force by
    little. The intervals in which that fits least are halved again and again: what is smooth
    becomes smaller, a jump does not.
    """
    distances = np.arange(begin, FARTHEST + _STEP / 2, _STEP)
    answers = subject.compute([path.at(r) for r in distances])
    middle = path.at(2.5)
    noise = measure(middle, subject.compute(line(middle, rng)), precision)

    def row(r, answer):
        return r, answer.energy, float(answer.forces[-1] @ path.direction)

    rows = np.array([row(r, a) for r, a in zip(distances, answers, strict=True)])
    findings = [
        Finding(np.nan, 0.0, "eV", f"{r:.2f} Å: {a.error or 'a number that is not finite'}")
        for r, a in zip(distances, answers, strict=True)
        if a.error or not a.is_finite
    ][:1]
    if not findings:
        opposite = max(
            np.abs(a.forces.sum(axis=0)).max() / max(np.abs(a.forces).max(), 1.0) for a in answers
        )
        findings.append(Finding(opposite, SIGMAS * noise.forces, "eV/Å", "sum of all forces"))
        findings += _jumps(subject, path, rows, noise, precision, row, rng)
    return Walk(path.name, *rows.T, findings, noise)


def _misfits(rows, slope):
    """Return how energy and force change between points beyond what is smooth, eV and eV/Å.

    Args:
      slope: eV/Å^2, at which the force changes around the points.
    """
    r, energy, force = np.transpose(rows)
    energies = np.diff(energy) + np.diff(r) * (force[1:] + force[:-1]) / 2
    return np.abs(energies), np.abs(np.diff(force) - slope * np.diff(r))


def _jumps(subject, path, rows, noise: Rounding, precision: str, row, rng) -> list[Finding]:
    """Return what is left of the most abrupt changes of energy and of force, in fine intervals."""
    finest = _FINEST if precision == "float64" else _FINEST_OF_FLOAT32
    sigmas = noise.energy, noise.forces
    slopes = np.pad(np.diff(rows[:, 2]) / np.diff(rows[:, 0]), 1, mode="edge")
    slopes = (slopes[:-2] + slopes[2:]) / 2  # on both sides of each interval
    kinds, places = [], []
    for kind, misfits in enumerate(_misfits(rows, slopes)):
        # what grows steeply has larger misfits on one side, a jump on none
        around = np.log(misfits + sigmas[kind])
        around = np.pad(around, _WINDOW, mode="reflect", reflect_type="odd")
        around = np.lib.stride_tricks.sliding_window_view(around, 2 * _WINDOW + 1)
        sides = np.median(around[:, :_WINDOW], 1), np.median(around[:, _WINDOW + 1 :], 1)
        usual = np.exp(np.maximum(*sides)) + SIGMAS * sigmas[kind]
        places += np.argsort(-misfits / usual)[:_CANDIDATES].tolist()
        kinds += [kind] * _CANDIDATES
    intervals, left = [rows[k : k + 2] for k in places], [[] for _ in places]
    while intervals[0][1, 0] - intervals[0][0, 0] > finest:
        middles = [(ends[0, 0] + ends[1, 0]) / 2 for ends in intervals]
        answers = subject.compute([path.at(r) for r in middles])
        for k, (kind, r, answer) in enumerate(zip(kinds, middles, answers, strict=True)):
            three = np.vstack([intervals[k][:1], [row(r, answer)], intervals[k][1:]])
            halves = _misfits(three, slopes[places[k]])[kind]
            worse = int(np.argmax(halves))
            # a smooth force changes alike in both halves
            left[k].append(abs(np.diff(three[:, 2], 2)[0]) if kind else halves[worse])
            intervals[k] = three[worse : worse + 2]
    usual = np.maximum(np.abs(np.median(rows[:, 1:], axis=0)), 1.0)
    findings = []
    for kind, ends, last in zip(kinds, intervals, left, strict=True):
        unit, order = (("eV", 3), ("eV/Å", 2))[kind]
        larger = max(1.0, *(np.abs(ends[:, 1:]).max(axis=0) / usual))
        smooth = 4 * last[-3] / 4**order  # of two halvings
        limit = SIGMAS * sigmas[kind] * larger + smooth
        if last[-1] > limit:  # a short distance may have more rounding than its numbers say
            here = path.at(ends[0, 0])
            there = measure(here, subject.compute(line(here, rng)), precision)
            limit = max(limit, SIGMAS * there[kind] + smooth)
        findings.append(Finding(last[-1], limit, unit, f"{path.name}, {ends[0, 0]:.3f} Å"))
    return findings
