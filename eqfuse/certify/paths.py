"""Energies and forces along paths: no jumps, and no lists of neighbours that are too old.

An atom moves from 0.2 Å to beyond the cutoff, along which nothing jumps. Other structures are
reached in steps that a list of neighbours may seem to survive: two atoms come near each other, a
cell shrinks about atoms that stay or with them, and all atoms move. Their results must be those of
the same structures computed afresh.
"""

from collections.abc import Sequence
from typing import NamedTuple

import ase
import numpy as np

from eqfuse.certify.questions import (
    SIGMAS,
    Finding,
    Rounding,
    apart,
    line,
    measure,
    moved,
    strained,
)
from eqfuse.certify.subjects import Subject

NEAREST, FARTHEST, _STEP = 0.2, 12.0, 0.05  # Å
_CANDIDATES, _WINDOW = 3, 5
_FINEST, _FINEST_OF_FLOAT32 = 2e-6, 1e-4  # Å, between the points in which a jump is sought
_BEYOND, _WITHIN = 0.13 * 1.2 ** np.arange(18), 1.0
"""Å, of the length at which two atoms begin to act: where they begin, and how far they go."""
_COMING = 0.125  # Å, of their distance; lists are often made anew where an atom has moved by 0.3 Å
_COMPARED = 8  # structures of a chain


class Path(NamedTuple):
    """An atom, the last one, that moves away from the first along a direction."""

    name: str  # for reports
    atoms: ase.Atoms  # the position of its last atom is not read
    direction: np.ndarray  # [3], of length 1
    begin: float  # Å, the least distance

    def at(self, distance: float) -> ase.Atoms:
        """Return the structure with the last atom at a distance of the first, Å."""
        copy = self.atoms.copy()
        copy.positions[-1] = copy.positions[0] + distance * self.direction
        return copy


class Walk(NamedTuple):
    """What was computed along a path."""

    distances: np.ndarray  # [n] Å
    energies: np.ndarray  # [n] eV
    forces: np.ndarray  # [n] eV/Å, of the last atom along the direction
    findings: list[Finding]  # of the question "path"
    noise: Rounding  # at 2.5 Å
    path: Path


def paths_of(elements, cluster: ase.Atoms, rng) -> list[Path]:
    """Return paths of pairs of atoms, and of an atom that leaves a cluster.

    Args:
      elements: atomic numbers; three pairs of them are taken.
      cluster: without periodic directions.
    """
    elements = rng.permutation(np.unique(elements))
    first, last, found = elements[0], elements[-1], []
    for pair in dict.fromkeys([(first, first), (first, last), (last, last)]):
        atoms = ase.Atoms(pair, np.zeros((2, 3)))
        found.append(Path(f"pair {atoms.symbols}", atoms, _direction(rng), NEAREST))
    out = _direction(rng)
    outermost = int(np.argmax(cluster.positions @ out))
    order = np.argsort(np.linalg.norm(cluster.positions - cluster.positions[outermost], axis=1))
    atoms = ase.Atoms(cluster.numbers[order], cluster.positions[order])
    atoms += ase.Atoms([first], [[0.0, 0.0, 0.0]])
    return [*found, Path(f"{atoms.symbols[-1:]} leaves {cluster.symbols}", atoms, out, 1.0)]


def _direction(rng) -> np.ndarray:
    direction = rng.normal(size=3)
    return direction / np.linalg.norm(direction)


def walk(subject: Subject, path: Path, precision: str, rng) -> Walk:
    """Compute a path, and look for jumps where energies or forces change most abruptly."""

    def noise_at(distance: float) -> Rounding:
        atoms = path.at(distance)
        return measure(atoms, subject.compute(line(atoms, rng)), precision)

    def rows_at(distances):
        answers = subject.compute([path.at(r) for r in distances])
        rows = [(a.energy, a.forces[-1] @ path.direction) for a in answers]
        return answers, np.column_stack([distances, rows])

    answers, rows = rows_at(np.arange(path.begin, FARTHEST + _STEP / 2, _STEP))
    noise = noise_at(2.5)
    broken = next((k for k, answer in enumerate(answers) if not answer.is_finite), None)
    if broken is not None:
        why = answers[broken].error or "a number that is not finite"
        findings = [Finding(np.nan, 0.0, "eV", f"{rows[broken, 0]:.2f} Å: {why}")]
    else:
        opposite = max(
            np.abs(a.forces.sum(0)).max() / max(np.abs(a.forces).max(), 1) for a in answers
        )
        findings = [Finding(opposite, SIGMAS * noise.forces, "eV/Å", "sum of all forces")]
        finest = _FINEST if precision == "float64" else _FINEST_OF_FLOAT32
        findings += _jumps(path.name, rows, noise, finest, rows_at, noise_at)
    return Walk(*rows.T, findings, noise, path)


def _jumps(name: str, rows, noise: Rounding, finest: float, rows_at, noise_at) -> list[Finding]:
    """Halve the most abrupt intervals until they are fine, and compare what is left with rounding.

    What is smooth becomes smaller, a jump does not. The rows are (Å, eV, eV/Å).
    """
    slopes = np.pad(np.diff(rows[:, 2]) / np.diff(rows[:, 0]), 1, mode="edge")
    slopes = (slopes[:-2] + slopes[2:]) / 2  # of the force, on both sides of each interval
    misfits = _misfits(rows, slopes)
    sought = [(kind, k) for kind in (0, 1) for k in _most_abrupt(misfits[kind], noise[kind])]
    intervals, left = [rows[k : k + 2] for _, k in sought], [[] for _ in sought]
    while np.ptp(intervals[0][:, 0]) > finest:
        _, middles = rows_at([ends[:, 0].mean() for ends in intervals])
        for n, (kind, k) in enumerate(sought):
            three = np.insert(intervals[n], 1, middles[n], axis=0)
            halves = _misfits(three, slopes[k])[kind]
            worse = int(np.argmax(halves))
            # a smooth force changes alike in both halves
            left[n].append(abs(np.diff(three[:, 2], 2)[0]) if kind else halves[worse])
            intervals[n] = three[worse : worse + 2]
    usual, findings = np.maximum(np.abs(np.median(rows[:, 1:], axis=0)), 1.0), []
    for (kind, _), ends, last in zip(sought, intervals, left, strict=True):
        unit, order = (("eV", 3), ("eV/Å", 2))[kind]
        smooth = 4 * last[-3] / 4**order  # of two halvings
        larger = max(1.0, *(np.abs(ends[:, 1:]).max(axis=0) / usual))
        limit = SIGMAS * noise[kind] * larger + smooth
        if last[-1] > limit:  # a short distance may have more rounding than its numbers say
            limit = max(limit, SIGMAS * noise_at(ends[0, 0])[kind] + smooth)
        findings.append(Finding(last[-1], limit, unit, f"{name}, {ends[0, 0]:.3f} Å"))
    return findings


def _misfits(rows, slope):
    """Return how energy and force change between points beyond what is smooth, eV and eV/Å.

    The energy changes by the integral of the force, and the force by a slope, eV/Å^2.
    """
    r, energy, force = np.transpose(rows)
    energies = np.diff(energy) + np.diff(r) * (force[1:] + force[:-1]) / 2
    return np.abs(energies), np.abs(np.diff(force) - slope * np.diff(r))


def _most_abrupt(misfits, sigma: float) -> list[int]:
    """Return the intervals whose misfits are largest beside those of their neighbours.

    What grows steeply has larger misfits on one side, a jump on none.
    """
    around = np.pad(np.log(misfits + sigma), _WINDOW, mode="reflect", reflect_type="odd")
    around = np.lib.stride_tricks.sliding_window_view(around, 2 * _WINDOW + 1)
    sides = np.median(around[:, :_WINDOW], 1), np.median(around[:, _WINDOW + 1 :], 1)
    usual = np.exp(np.maximum(*sides)) + SIGMAS * sigma
    return np.argsort(-misfits / usual)[:_CANDIDATES].tolist()


def small_steps(
    subject: Subject, walks: Sequence[Walk], cells, other: ase.Atoms, precision: str, rng
) -> list[tuple[str, Finding]]:
    """Return findings of the question "history", with how the structure was reached.

    Args:
      walks: along paths of two atoms, outwards.
      cells: pairs of a periodic structure of some atoms and its `Rounding`.
      other: a structure with another number of atoms, after which no list can be kept.
      precision: see `eqfuse.certify.questions.precision_of`.
    """
    chains = [chain for walk in walks for chain in _inwards(walk)]
    chains += [chain for cell in cells for chain in _chains(*cell, rng)]
    findings, known = [], {}
    for how, chain, wanted, noise in chains:
        found = subject.in_turn([other, *chain])[1:]
        keys = {k: (chain[k].positions.tobytes(), chain[k].cell.array.tobytes()) for k in wanted}
        new = {key: chain[k] for k, key in keys.items() if key not in known}
        known |= zip(new, subject.fresh(list(new.values()), other), strict=True)
        for k, key in keys.items():
            if found[k].error and known[key].error:  # of another question
                continue
            own = apart(found[k], known[key], noise)
            if any(f.error > f.limit for f in own):  # a short distance may have more rounding
                there = measure(chain[k], subject.compute(line(chain[k], rng)), precision)
                own = apart(found[k], known[key], Rounding(*map(max, noise, there)))
            findings += [(how, finding) for finding in own]
    return findings


def _inwards(walk: Walk):
    """Yield two atoms that both move, from beyond the length at which they begin to act.

    A list with too small a skin lacks a pair that was a little farther away and comes nearer by
    almost twice that, so that they begin at several distances.
    """
    r, energy, force, _, noise, path = walk
    acts = np.abs(energy - energy[-1]) > SIGMAS * noise.energy
    acts |= np.abs(force) > SIGMAS * noise.forces
    if not (np.isfinite(energy).all() and acts.any() and (last := r[acts].max()) > 2 * _WITHIN):
        return

    def at(distances):
        return [moved(path.at(x), -x / 2 * path.direction) for x in distances]

    chain = at(last + np.arange(_BEYOND[-1], -_WITHIN - _COMING / 2, -_COMING))
    wanted = range(len(chain) - 8, len(chain))
    yield f"{path.name} coming nearer by {_COMING:g} Å", chain, wanted, noise
    for x in _BEYOND:
        how = f"{path.name} coming nearer by {1.4 * x:.2g} Å"
        yield how, at([last + x, last - 0.4 * x]), [1], noise
    jumps = at(last + np.array([_BEYOND[-1], -_WITHIN, -_WITHIN / 2] * 3))
    yield f"{path.name} coming and going", jumps, [1, 2, 4, 5, 7, 8], noise


def _chains(atoms: ase.Atoms, noise: Rounding, rng):
    """Yield how a chain of structures goes, the chain, the numbers compared, and the rounding.

    Steps are shorter than the 0.3 Å or so after which a list is made anew. Those compared are
    spaced evenly, with the last and without the first.
    """

    def shrunk(factor: float) -> ase.Atoms:
        copy = atoms.copy()
        copy.set_cell(factor * atoms.cell.array)
        return copy

    directions = rng.normal(size=(len(atoms), 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sizes = np.arange(6, -15, -1) / 100
    for how, chain in (
        ("its cell alone shrinking by 3 %", [shrunk(1 + 3 * x) for x in sizes[2:]]),
        ("shrinking by 1 %", [strained(atoms, x * np.eye(3)) for x in sizes]),
        ("atoms moving by 0.05 Å", [moved(atoms, 0.05 * k * directions) for k in range(21)]),
    ):
        wanted = np.linspace(0, len(chain) - 1, _COMPARED + 1)[1:].round().astype(int).tolist()
        yield f"{atoms.info['name']}, {how}", chain, wanted, noise
