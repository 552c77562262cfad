"""Questions about a potential: structures to compute, and how far the answers may be apart.

Limits follow from the rounding that the potential itself shows (`rounding`): what passes in float32
and what passes in float64 differ by many orders, and a limit of one hides the faults of the other.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import ase
import numpy as np
from ase.stress import full_3x3_to_voigt_6_stress, voigt_6_to_full_3x3_stress

from eqfuse.certify.subjects import Answer, Subject

SIGMAS = 40
"""Largest error that passes, in standard deviations of the rounding; and of slopes, which sum six
energies with weights below 1."""
_OF_SLOPES = 12
_POINTS, _APART = 21, 3e-6  # of a line along which rounding is measured, Å
_MEDIAN_OF_SQUARES = 0.455  # of a normal distribution
_DIRECTIONS = 3
_LEAST_STEP, _MOST_STEP = 2e-3, 3e-2  # Å, of finite differences
_REACH = 5.0  # Å, by which a strain moves neighbours
_FINER, _LEVELS = 4, 3  # times shorter are differences that are taken again, so often at most
_EXACT, _LEVELS_OF_EXACT = 1e-9, 6  # where energies are rounded by less, eV, they can be so short
_STENCIL = (-3, -2, -1, 1, 2, 3)
_AXES = ("xx", "yy", "zz", "yz", "xz", "xy")
STRAINS = [voigt_6_to_full_3x3_stress(one) for one in np.diag([1, 1, 1, 0.5, 0.5, 0.5])]
"""In this order, Voigt's; a shear is twice its element."""
UNITS = ("eV", "eV/Å", "eV/Å³")
"""Of energy, forces and stress."""
_KBAR = 1602.1766
ROUGH = "less than float32"
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, ROUGH: 2.0**-23}
"""Of each precision that `precision_of` returns; what is rougher is allowed as much."""
ROUGHEST = 1e-4
"""Largest rounding relative to energies (of 1 eV an atom at least), forces (1 eV/Å) and stress
(0.01 eV/Å³): one that is larger is a fault, and does not widen the limits of the other checks."""
_LEAST_FORCE, _LEAST_STRESS = 1.0, 0.01  # eV/Å, eV/Å^3


class Rounding(NamedTuple):
    """Standard deviations of the rounding: eV, eV/Å and eV/Å^3."""

    energy: float
    forces: float
    stress: float

    @property
    def step(self) -> float:
        """Return the step of finite differences, Å: rounding against their own error."""
        return float(np.clip(self.energy**0.2, _LEAST_STEP, _MOST_STEP))


class Finding(NamedTuple):
    """The answer to a question: an error, the largest that passes, both in `unit`, and a remark."""

    error: float
    limit: float
    unit: str
    remark: str = ""


class Question(NamedTuple):
    """Structures to compute, and the function from their answers to findings."""

    name: str
    structures: list[ase.Atoms]
    judge: Callable[[list[Answer]], list[Finding]]
    # The same with shorter differences, asked where one fails: the error of the differences
    # becomes smaller, that of a wrong force does not.
    finer: "Callable[[], Question] | None" = None


def ask(subject: Subject, questions: Sequence[Question]) -> list[list[Finding]]:
    """Return the findings of each question, of finer ones where their errors are far smaller."""
    found, asked = _judged(subject, questions), dict(enumerate(questions))
    while asked := {k: q.finer() for k, q in asked.items() if q.finer and _has_failed(found[k])}:
        for k, finer in zip(asked, _judged(subject, asked.values()), strict=True):
            pairs = zip(found[k], finer, strict=True)
            found[k] = [new if new.error < old.error / _FINER else old for old, new in pairs]
    return found


def _judged(subject: Subject, questions) -> list[list[Finding]]:
    answers = iter(subject.compute([atoms for q in questions for atoms in q.structures]))
    return [q.judge([next(answers) for _ in q.structures]) for q in questions]


def _has_failed(findings: list[Finding]) -> bool:
    return any(f.error > f.limit for f in findings)


def moved(atoms: ase.Atoms, change) -> ase.Atoms:
    """Return a copy whose positions are changed by [n_atoms, 3], Å."""
    copy = atoms.copy()
    copy.positions += change
    return copy


def line(atoms: ase.Atoms, rng) -> list[ase.Atoms]:
    """Return structures along a short line, of which `rounding` is measured.

    Cells are deformed too: to a single atom all displacements are translations.
    """
    direction = rng.choice([-1.0, 1.0], (len(atoms), 3))
    strain = rng.choice([-1.0, 1.0], (3, 3)) / _REACH
    strain = _APART * (strain + strain.T) / 2 * np.outer(atoms.pbc, atoms.pbc)
    numbers, is_periodic = range(_POINTS), atoms.pbc.any()
    points = [strained(atoms, k * strain) if is_periodic else atoms for k in numbers]
    return [moved(point, k * _APART * direction) for k, point in zip(numbers, points, strict=True)]


def rounding(answers: list[Answer]) -> Rounding:
    """Measure the rounding of answers along a line, where what is smooth has no fourth difference.

    A fourth difference of independent errors has 70 times their variance. The median of its squares
    does not see a single answer that is off by more: that is a fault, and no rounding.
    """

    def deviation(values):
        values = np.array(values, float)
        least = np.finfo(float).eps * max(np.abs(values).max(), 1.0)
        if len(values) < 5 or not np.isfinite(values).all():
            return least
        squares = np.median(np.diff(values, 4, axis=0) ** 2, axis=0).max() / _MEDIAN_OF_SQUARES
        return max(float(np.sqrt(squares / 70)), least)

    stresses = [a.stress for a in answers if a.stress is not None] or [[0.0]]
    parts = [a.energy for a in answers], [a.forces for a in answers], stresses
    return Rounding(*map(deviation, parts))


def scales(answer: Answer) -> Rounding:
    """Return what a rounding is relative to: the sizes of an answer, or the least that matter."""
    stress = 0.0 if answer.stress is None else np.abs(answer.stress).max()
    return Rounding(
        abs(answer.energy) + len(answer.forces),
        max(float(np.abs(answer.forces).max()), _LEAST_FORCE),
        max(float(stress), _LEAST_STRESS),
    )


def precision_of(lines: Sequence[list[Answer]]) -> str:
    """Return the key of `EPS` that fits the rounding of forces along lines of structures."""
    relative = np.median([rounding(line).forces / scales(line[0]).forces for line in lines])
    known = ("float64", 1e-10), ("float32", ROUGHEST)
    return next((name for name, most in known if relative < most), ROUGH)


def least_rounding(atoms: ase.Atoms, answer: Answer, precision: str) -> Rounding:
    """Return the rounding that a precision has at least.

    A line of one atom is a translation, in which less of it shows.
    """
    eps, size = EPS[precision], scales(answer)
    stress = eps * size.forces * _REACH * len(atoms) / max(atoms.cell.volume, 1.0)
    return Rounding(eps * size.energy / 2, 4 * eps * size.forces, stress)


def measure(atoms: ase.Atoms, answers: list[Answer], precision: str) -> Rounding:
    """Return the rounding along a line, between what the precision has and `ROUGHEST`."""
    measured, size = rounding(answers), scales(answers[0])
    least = least_rounding(atoms, answers[0], precision)
    bounded = (min(m, ROUGHEST * s) for m, s in zip(measured, size, strict=True))
    return Rounding(*map(max, bounded, least))


def _slope(energies, step: float) -> tuple[float, float]:
    """Return the derivative by differences of sixth order, and a bound of their own error.

    The bound is by the differences of lower orders: neighbours cross the cutoff within the steps,
    where derivatives of the force jump. Wherever one such jump is, the error is below 0.62 of it.
    """
    d3, d2, d1 = (energies[-1 - k] - energies[k] for k in range(3))
    sixth = (45 * d1 - 9 * d2 + d3) / (60 * step)
    fourth = (8 * d1 - d2) / (12 * step)
    second = d1 / (2 * step)
    return sixth, 10 * abs(sixth - fourth) + 0.05 * abs(fourth - second)


def _is_slope(name, atoms, changes, exact, noise, which, remark, per=1.0, level=0) -> Question:
    """Ask whether what is `exact` in an answer is the slope of the energy by each of some changes.

    Args:
      changes: functions that apply a length, Å, to a structure.
      which: of `UNITS` and `noise` that of exact is; slopes are divided by `per`.
      remark: function of what is exact, slopes and limits of them, and the number of the worst.
    """
    step = noise.step / _FINER**level
    has_finer = level < (_LEVELS_OF_EXACT if noise.energy < _EXACT else _LEVELS)

    def judge(answers):
        first, *others = answers
        if (given := exact(first)) is None:
            return []
        groups = np.reshape([a.energy for a in others], (len(changes), -1))
        slopes, apart = np.transpose([_slope(group, step) for group in groups]) / per
        limits = apart + _OF_SLOPES * (noise.energy / (step * per) + noise[which])
        errors = np.abs(given - slopes)
        k = int(np.argmax(errors / limits))
        return [Finding(errors[k], limits[k], UNITS[which], remark(given, slopes, limits, k))]

    lines = [atoms, *(change(k * step) for change in changes for k in _STENCIL)]
    given = name, atoms, changes, exact, noise, which, remark, per, level + 1
    return Question(name, lines, judge, (lambda: _is_slope(*given)) if has_finer else None)


def slopes(atoms: ase.Atoms, noise: Rounding, rng) -> list[Question]:
    """Ask whether forces are the slope of the energy, all atoms at once and each atom alone."""

    def along(name, direction, remark):
        def exact(answer):
            return -(answer.forces * direction).sum()

        changes = [lambda length: moved(atoms, length * direction)]
        return _is_slope(name, atoms, changes, exact, noise, 1, lambda *_: remark)

    everywhere = [rng.choice([-1.0, 1.0], (len(atoms), 3)) for _ in range(_DIRECTIONS)]
    questions = [along("forces", direction, "") for direction in everywhere]
    for atom in range(len(atoms) if len(atoms) <= 12 else 0):
        direction = np.zeros((len(atoms), 3))
        direction[atom] = rng.choice([-1.0, 1.0], 3)
        questions.append(along("atoms", direction, f"atom {atom} ({atoms.symbols[atom]})"))
    return questions


def strained(atoms: ase.Atoms, strain) -> ase.Atoms:
    """Return a copy whose cell and atoms are deformed by a strain, [3, 3]."""
    copy = atoms.copy()
    copy.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    return copy


def stresses(atoms: ase.Atoms, noise: Rounding) -> list[Question]:
    """Ask whether each component of the stress is the slope of the energy by that strain."""
    if not (atoms.pbc.all() and atoms.cell.rank == 3):
        return []
    changes = [lambda length, s=s: strained(atoms, length / _REACH * s) for s in STRAINS]
    given = changes, lambda answer: answer.stress, noise, 2, _likely_stress
    return [_is_slope("stress", atoms, *given, atoms.get_volume() / _REACH)]


def _likely_stress(stress, slopes, limits, worst: int) -> str:
    """Return what a wrong stress is, if a usual mistake makes it right; or its worst component."""
    if (np.abs(stress - slopes) <= limits).all():
        return _AXES[worst]
    mistakes = {
        "the sign is opposite": -stress,
        "it is in kbar": stress / _KBAR,
        "it is in GPa": stress / (_KBAR / 10),
        "xx yy zz xy yz xz, the order of VASP": stress[[0, 1, 2, 4, 5, 3]],
        "yz and xy are exchanged": stress[[0, 1, 2, 5, 4, 3]],
    }
    most = max(limits.max(), 1e-3 * np.abs(slopes).max())
    right = (name for name, s in mistakes.items() if np.abs(s - slopes).max() <= most)
    return next(right, _AXES[worst])


def apart(found: Answer, expected: Answer, noise: Rounding, factor: int = 1) -> list[Finding]:
    """Compare two answers that must be the same but for rounding.

    Args:
      factor: how many times larger the energy is that was found.
    """
    if found.error or expected.error:
        return [Finding(np.nan, 0.0, "eV/Å", found.error or expected.error)]
    forces = np.linalg.norm(found.forces - expected.forces, axis=1)
    worst = int(np.argmax(forces))
    findings = [
        Finding(abs(found.energy - factor * expected.energy) / factor, SIGMAS * noise.energy, "eV"),
        Finding(forces[worst], SIGMAS * noise.forces, "eV/Å", f"atom {worst}"),
    ]
    if found.stress is not None and expected.stress is not None:
        change = np.abs(found.stress - expected.stress).max()
        findings.append(Finding(change, SIGMAS * noise.stress, "eV/Å³"))
    return findings


def invariances(atoms: ase.Atoms, noise: Rounding, rng) -> list[Question]:
    """Ask whether answers follow a structure that is described in another way."""
    count = len(atoms)
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))
    order = rng.permutation(count)
    images = rng.integers(-2, 3, (count, 3)) * atoms.pbc

    def turned(matrix):
        copy = atoms.copy()
        copy.set_cell(atoms.cell.array @ matrix)
        copy.positions = atoms.positions @ matrix

        def follow(answer):
            stress = answer.stress
            if stress is not None:
                whole = matrix.T @ voigt_6_to_full_3x3_stress(stress) @ matrix
                stress = full_3x3_to_voigt_6_stress(whole)
            return answer._replace(forces=answer.forces @ matrix, stress=stress)

        return copy, follow

    changes = {
        "translation": (moved(atoms, rng.uniform(-3, 3, 3)), lambda a: a),
        "rotation": turned(rotation),
        "inversion": turned(-np.eye(3)),
        "permutation": (atoms[order], lambda a: a._replace(forces=a.forces[order])),
    }
    if atoms.pbc.any():
        changes["images"] = moved(atoms, images @ atoms.cell.array), lambda a: a
    questions = [
        Question(name, [atoms, other], lambda a, f=follow: apart(a[1], f(a[0]), noise))
        for name, (other, follow) in changes.items()
    ]
    if atoms.pbc.any() and count <= 32:
        axis = int(np.argmin(np.where(atoms.pbc, atoms.cell.lengths(), np.inf)))
        larger = atoms.repeat([2 if k == axis else 1 for k in range(3)])
        charges = atoms.info.keys() - {"name", "spin"}
        larger.info |= {key: 2 * atoms.info[key] for key in charges}

        def twice(answers):
            cell, double = answers
            expected = cell._replace(forces=np.tile(cell.forces, (2, 1)))
            return apart(double, expected, noise, 2)

        questions.append(Question("supercell", [atoms, larger], twice))
    if not atoms.pbc.any() and count > 1 and atoms.info.keys() <= {"name"}:  # parts have a charge
        first, second = atoms[: count // 2], moved(atoms[count // 2 :], [100.0, 0, 0])

        def added(answers):
            one, other, both = answers
            forces = np.concatenate([one.forces, other.forces])
            return apart(both, one._replace(energy=one.energy + other.energy, forces=forces), noise)

        questions.append(Question("separated", [first, second, first + second], added))
    return questions


def isolated(elements, noise: float) -> Question:
    """Ask whether an atom of each element alone is free of force, to a rounding in eV/Å."""

    def free(answers):
        limit = SIGMAS * noise
        return [Finding(np.abs(a.forces).max(), limit, UNITS[1], a.error or "") for a in answers]

    return Question("isolated", [ase.Atoms([z], [[0.0, 0.0, 0.0]]) for z in elements], free)
