"""Certify a potential on this machine: all questions, and the command `eqfuse check`."""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import ase
import ase.data
import ase.units
import numpy as np

from eqfuse import ops
from eqfuse.certify import questions as asked
from eqfuse.certify.checks import CHECKS, QUESTIONS, REPEATS, Row, worst_of
from eqfuse.certify.paths import Walk, paths_of, small_steps, walk
from eqfuse.certify.questions import SIGMAS, Finding, Rounding
from eqfuse.certify.report import Report, check_paths
from eqfuse.certify.structures import made_structures
from eqfuse.certify.subjects import Run, Subject, open_subject
from eqfuse.data import DataError, Keys, read_with_atoms, require_apart
from eqfuse.inference import require_backend
from eqfuse.runs import BACKEND, NOT_NEGATIVE, POSITIVE, TYPES, command, naming, setting, word

RATTLE = 0.03
"""Å, by which atoms of a file are moved at random, so that forces do not vanish by symmetry."""
SHORTEST = 0.1
"""ps of dynamics at least: an oscillation in fewer steps looks like a drift."""
_MOST_DRIFT = 0.01  # meV/atom/ps
_LOST = Rounding(1e-5, 1e-4, 1e-4)  # in float32 against float64, relative to `questions.scales`


class Certificate:
    """The checks of a potential, as they are made.

    Args:
      subject: the potential.
      structures: of the user, may be none; their atoms are moved at random by 0.03 Å.
      elements: atomic numbers of the structures that are made; None for those of the subject or of
        the structures.
      duration: of dynamics, ps, 0.1 or more; 0 for none.
      temperature: K, of dynamics.
      others: potentials that must agree: (name of the check, note, subject).

    Attributes:
      precision: "float64", "float32" or "less than float32", as found.
      walks: what was computed along paths of atoms.
      energies: of dynamics with each time step: (fs, times in ps, energies in meV/atom).
    Raises:
      DataError: nothing says of which elements structures are to be made.
      ValueError: dynamics that are too short.
    """

    def __init__(
        self,
        subject: Subject,
        structures: Sequence[ase.Atoms] = (),
        *,
        elements=None,
        duration: float = 2.0,
        temperature: float = 300.0,
        others: Sequence[tuple[str, str, Subject]] = (),
    ):
        if duration and not duration >= SHORTEST:
            raise ValueError(f"a drift needs dynamics of {SHORTEST} ps, or 0, got {duration:g}")
        self._rng = np.random.default_rng(0)
        self._given = []
        for atoms in structures:
            moved = atoms.positions + self._rng.normal(scale=RATTLE, size=atoms.positions.shape)
            kept = {"name": atoms.info.get("name", atoms.get_chemical_formula())}
            kept |= subject.info_of(atoms)
            unlabelled = ase.Atoms(atoms.numbers, moved, cell=atoms.cell, pbc=atoms.pbc, info=kept)
            self._given.append(unlabelled)
        of_structures = sorted({int(z) for atoms in self._given for z in atoms.numbers})
        elements = elements or of_structures or subject.elements
        if not elements:
            raise DataError("name the elements, such as elements=Cu,O, or give a file")
        if len(elements) > 4:
            elements = sorted(self._rng.choice(elements, 4, replace=False).tolist())
        self.subject, self.elements, self._others = subject, elements, others
        self._made = {atoms.info["name"]: atoms for atoms in made_structures(elements)}
        self._duration, self._temperature = duration, temperature
        self.precision, self.walks, self.energies = "", [], []
        self._measured: list[tuple[ase.Atoms, Rounding]] = []
        self._paths = paths_of(elements, self._made["molecule"], self._rng)

    def rows(self, *names: str) -> Iterator[Row]:
        """Yield the rows of all checks, in the order of `CHECKS`, or of those that are named."""
        if unknown := ", ".join(name for name in names if name not in CHECKS):
            raise ValueError(f"no check is called {unknown}; there are {', '.join(CHECKS)}")
        names = names or tuple(CHECKS)
        yield from (row for row in self._of_rounding() if row.name in names)
        yield from self._of_questions([name for name in QUESTIONS if name in names])
        checks = [("path", self._of_paths), ("repeat", self._of_repeats)]
        checks += [("history", self._of_history), ("batch", self._of_batches)]
        checks += [(one[0], functools.partial(self._against, *one)) for one in self._others]
        checks += [("nve", self._of_dynamics)]
        yield from (check() for name, check in checks if name in names)

    def _of_rounding(self) -> list[Row]:
        """Measure the rounding, by which the limits of the other checks are."""
        structures = [*self._given, *self._made.values()]
        lines = [asked.line(atoms, self._rng) for atoms in structures]
        answers = iter(self.subject.compute([atoms for line in lines for atoms in line]))
        pairs = [
            (atoms, [next(answers) for _ in line])
            for atoms, line in zip(structures, lines, strict=True)
        ]
        broken = {
            atoms.info["name"]: next((a.error for a in line if a.error), "a number is not finite")
            for atoms, line in pairs
            if not all(a.is_finite for a in line)
        }
        remark = "; ".join(f"{name}: {why}" for name, why in broken.items())
        rows = [Row("finite", np.nan if broken else 0.0, 0.0, "", remark)]
        pairs = [(atoms, line) for atoms, line in pairs if all(a.is_finite for a in line)]
        if not pairs:
            raise DataError(f"{self.subject.name} computes none of the structures: {remark}")
        self.precision, self._measured = asked.precision_of([line for _, line in pairs]), []
        findings = []
        for atoms, line in pairs:
            self._measured.append((atoms, asked.measure(atoms, line, self.precision)))
            rough, size = asked.rounding(line), asked.scales(line[0])
            limit = min(100 * asked.EPS[self.precision], asked.ROUGHEST) * size.energy
            limits = limit, asked.ROUGHEST * size.forces, asked.ROUGHEST * size.stress
            name = f"{self.precision} by its forces; {atoms.info['name']}"
            findings += [
                (name, Finding(*one)) for one in zip(rough, limits, asked.UNITS, strict=True)
            ]
        return [*rows, worst_of("rounding", findings)]

    def _of_questions(self, names: Sequence[str]) -> Iterator[Row]:
        listed, has_inversion = [], self.subject.has_inversion
        for atoms, noise in self._measured if names else ():
            questions = asked.slopes(atoms, noise, self._rng) + asked.stresses(atoms, noise)
            questions += asked.invariances(atoms, noise, self._rng)
            listed += [(atoms.info["name"], question) for question in questions]
        roughest = max(noise.forces for _, noise in self._measured)
        listed.append(("", asked.isolated(self.elements, roughest)))
        wanted = {*names} - ({"inversion"} if has_inversion is False else set())
        wanted -= set() if self.subject.is_local else {"separated"}
        listed = [(where, question) for where, question in listed if question.name in wanted]
        found = {name: [] for name in names}
        findings = asked.ask(self.subject, [question for _, question in listed])
        for (where, question), own in zip(listed, findings, strict=True):
            found[question.name] += [(where, finding) for finding in own]
        for name, own in found.items():
            unknown = name == "inversion" and has_inversion is None
            yield worst_of(name, own, np.inf if unknown else 0.0)

    def _walk(self, number: int) -> Walk:
        """Return what is computed along a path, after those before it."""
        for path in self._paths[len(self.walks) : number + 1]:
            self.walks.append(walk(self.subject, path, self.precision, self._rng))
        return self.walks[number]

    def _of_paths(self) -> Row:
        self._walk(len(self._paths) - 1)
        return worst_of("path", [("", f) for one in self.walks for f in one.findings])

    def _of_repeats(self) -> Row:
        """Ask for the same bits, of each quantity; those of sums in another order are noted."""
        structures = [atoms for atoms, _ in self._measured]
        atoms = next((a for a in structures if len(a) > 4), structures[0])
        again = self.subject.ask("repeat", atoms, count=REPEATS)
        if "error" in again:
            return Row("repeat", np.nan, remark=again["error"])
        first = asked.Answer(again["energy"][0], np.array(again["forces"][0]), None)
        rows, least = [], asked.least_rounding(atoms, first, self.precision)
        for name, unit, noise in zip(again, asked.UNITS, least, strict=False):
            change = float(np.ptp(again[name], axis=0).max())
            remark = f"{name} of {atoms.info['name']}"
            rows.append(Row("repeat", change, 0.0, unit, remark, SIGMAS * noise))
        return max(rows, key=lambda row: row.error / row.harmless)

    def _of_history(self) -> Row:
        atoms, noise = self._measured[0]
        squeezed, reversed_ = asked.strained(atoms, -0.03 * np.eye(3)), atoms[::-1]
        squeezed.info["name"] = "itself, squeezed"
        reversed_.info["name"] = "itself in another order"
        first, findings = self.subject.in_turn([atoms, atoms])[1], []
        for other in (squeezed, *[a for a, _ in self._measured[1:4]], reversed_):
            after = self.subject.in_turn([other, atoms])[1]
            where = f"after {other.info['name']}"
            findings += [(where, finding) for finding in asked.apart(after, first, noise)]
        return worst_of("history", findings + self._of_small_steps())

    def _of_small_steps(self) -> list[tuple[str, Finding]]:
        cells = [pair for pair in self._measured if pair[0].info["name"] == "skewed cell"]
        given = [self._walk(0)], cells, self._made["molecule"][:3]
        return small_steps(self.subject, *given, self.precision, self._rng)

    def _of_batches(self) -> Row:
        structures = [atoms for atoms, _ in self._measured]
        together, alone = self.subject.compute(structures), self.subject.in_turn(structures)
        return self._compared("batch", "", together, alone)

    def _against(self, name: str, note: str, other: Subject) -> Row:
        """Compare with another potential that must agree."""
        structures = [atoms for atoms, _ in self._measured]
        theirs, own = other.compute(structures), self.subject.compute(structures)
        return self._compared(name, note, theirs, own)

    def _compared(self, name: str, note: str, found, expected) -> Row:
        findings = []
        for a, b, (atoms, noise) in zip(found, expected, self._measured, strict=True):
            if name == "precision":
                parts = zip(_LOST, asked.scales(b), strict=True)
                noise = Rounding(*(part * size / SIGMAS for part, size in parts))
            findings += [(note or atoms.info["name"], f) for f in asked.apart(a, b, noise)]
        return worst_of(name, findings)

    def _of_dynamics(self) -> Row:
        """Halve the time step until the energy does not drift, twice at most."""
        if not self._duration:
            return Row("nve", None, remark="no dynamics were asked for")
        atoms = next((a for a in self._given if len(a) > 1), None)
        if atoms is None:
            atoms = self._made["skewed cell"].copy()
            relaxed = self.subject.ask("relax", atoms, steps=300)
            if "error" in relaxed:
                return Row("nve", np.nan, remark=relaxed["error"])
            atoms.positions = relaxed["positions"]
        line = self.subject.compute(asked.line(atoms, self._rng))
        noise = asked.measure(atoms, line, self.precision)
        limit = _MOST_DRIFT + 1000 * SIGMAS * noise.energy / len(atoms) / self._duration
        longest, of_steps = 0.5 if 1 in atoms.numbers else 2.0, []
        for timestep in (longest, longest / 2, longest / 4, longest / 8):
            steps = round(1000 * self._duration / timestep)
            options = {"timestep": timestep, "steps": steps, "temperature": self._temperature}
            done = self.subject.ask("dynamics", atoms, **options)
            if "error" in done or len(done["energies"]) < steps:
                said = done.get("error", "dynamics ended before their last step")
                return Row("nve", np.nan, limit, "", f"{said}, {timestep:g} fs")
            times, energies, slope = drift(atoms, timestep, **done)
            self.energies.append((timestep, times, energies))
            of_steps.append(f"{slope:.1e} with {timestep:g} fs")
            if slope <= limit and timestep < longest:
                break
        remark = f"{atoms.info['name']}, {self._duration:g} ps from {self._temperature:g} K"
        return Row("nve", slope, limit, "", f"{remark}: {', '.join(of_steps)}")


def drift(atoms: ase.Atoms, timestep: float, energies, velocities, forces):
    """Return times (ps), energies and the drift of the energy (meV/atom, meV/atom/ps) of dynamics.

    Velocity Verlet has an error of its own, which is not the potential's: it conserves

        H + dt^2 (v V'' v / 12 - F^2 / (24 m))

    better than H by two orders of dt, so that this is the energy. A Hann window over the time
    keeps what oscillates from being taken for a slope.

    Args:
      atoms: whose dynamics they were.
      timestep: fs.
      energies, velocities, forces: see `worker.dynamics`.
    References: Hairer, Lubich and Wanner 2003, Acta Numerica 12, 399 (modified energy).
    """
    dt = timestep * ase.units.fs
    velocities, forces = np.array(velocities), np.array(forces)
    curvature = -(forces[2:] - forces[:-2]) / (2 * dt)  # V'' v
    modified = (velocities[1:-1] * curvature).sum((1, 2)) / 12
    modified -= (forces[1:-1] ** 2 / atoms.get_masses()[:, None]).sum((1, 2)) / 24
    energies = 1000 * (np.array(energies)[1:-1] + dt**2 * modified) / len(atoms)
    count = len(energies)
    times = np.arange(count) * timestep / 1000
    if not np.isfinite(energies).all():
        return times, energies, np.inf
    window = np.sin(np.pi * (np.arange(count) + 0.5) / count)  # squared by polyfit
    return times, energies, float(abs(np.polyfit(times, energies, 1, w=window)[0]))


@dataclasses.dataclass
class Check:
    """Certify a potential on this machine.

    It asks for forces, stress, symmetries, smoothness, history, precision and the energy in
    dynamics. CALCULATOR is the folder of a run, a file of its network, or any calculator of ASE as
    'module:function(arguments)', such as 'ase.calculators.emt:EMT()'. The exit code is 0 if all
    checks pass, 1 if not. The last four settings are those of a run.
    """

    calculator: str = word("what is checked")
    file: Path | None = word("structures besides those that are made, without labels too", None)
    types: tuple[str, ...] | None = setting(None, TYPES)
    python: str | None = setting(None, "its Python, with ase and numpy", convert=os.path.expanduser)
    elements: tuple[str, ...] | None = setting(None, "of the structures that are made, as Cu,O")
    frames: int = setting(3, "frames of the file, evenly spaced", POSITIVE)
    picoseconds: float = setting(2.0, "of dynamics; 0 for none", NOT_NEGATIVE)
    temperature: float = setting(300.0, "K, of dynamics", NOT_NEGATIVE)
    report: Path | None = setting(None, "page to write, .html")
    json: Path | None = setting(None, "file to write all numbers to")
    which: Literal["best", "last"] | None = setting(None, "checkpoint; null: the best there is")
    dtype: Literal["float64", "float32"] | None = setting(None, "null: float64, and both compared")
    backend: str | None = setting(None, BACKEND)
    backends: tuple[str, ...] | None = setting(None, "to compare with; null: all that run here")


def frames_of(file: Path | None, frames: int, types=None) -> list[ase.Atoms]:
    """Return frames of a file, evenly spaced, with their places as names; none without a file.

    They have the `info` of the file, in which total charges are.

    Raises:
      DataError: no structures of several atoms in the file, or two atoms nearer than 0.3 Å.
    """
    if file is None:
        return []
    read = read_with_atoms(file, Keys(), types)
    structures = [(s, atoms.info) for s, atoms in read if not s.is_isolated_atom]
    if not structures:
        raise DataError(f"{file} has isolated atoms only; give one with structures")
    chosen = np.linspace(0, len(structures) - 1, min(frames, len(structures)))
    structures = [structures[k] for k in chosen.round().astype(int)]
    for s, _ in structures:
        with naming(s.origin):
            require_apart(s)
    return [
        ase.Atoms(s.numbers, s.positions, cell=s.cell, pbc=s.pbc, info=info | {"name": s.origin})
        for s, info in structures
    ]


@command.of(Check)
def main(options: Check) -> int:
    require_backend(options.backend)
    check_paths(options.report, options.json, options.file)
    unknown = [e for e in options.elements or () if e not in ase.data.atomic_numbers]
    if unknown:
        raise DataError(f"elements={unknown[0]} is no element; write them as Cu,O")
    elements = [ase.data.atomic_numbers[e] for e in options.elements or ()]
    frames = frames_of(options.file, options.frames, options.types)
    kinds = {k: getattr(options, k) for k in ("python", "which", "backend", "dtype")}
    subject = open_subject(options.calculator, **kinds)
    try:
        how = {"elements": elements, "others": _others_of(subject, options)}
        how |= {"duration": options.picoseconds, "temperature": options.temperature}
        report = Report(Certificate(subject, frames, **how), options)
        print(f"{subject.name}: {', '.join(f'{k} {v}' for k, v in report.versions.items())}")
        print(f"{'check':<36}{'error':>9}{'limit':>9}")
        for row in report.certificate.rows():
            print(row, flush=True)
            report.rows.append(row)
    except ValueError as error:
        raise DataError(str(error)) from error
    finally:
        subject.close()
    for path in report.write(options.report, options.json):
        print(f"report: {path}")
    for row in report.failed:
        print(f"{CHECKS[row.name][0]}: {row.meaning}")
    print(report.verdict)
    return 1 if report.failed else 0


def _others_of(subject: Subject, options: Check) -> list[tuple[str, str, Subject]]:
    """Return the other backends and float32 of a run that is checked in float64."""
    if not isinstance(subject, Run) or options.dtype == "float32":
        if options.backends:
            raise DataError("backends=: of a run only, which is checked in float64")
        return []
    used, which = ops.resolve_here(options.backend), options.which
    names = [n for n, (runs, _) in ops.availability().items() if runs and n != used]
    names = names if options.backends is None else options.backends
    of_run = options.calculator
    others = [("backend", n, Run(of_run, dtype="float64", backend=n, which=which)) for n in names]
    single = Run(of_run, dtype="float32", backend=options.backend, which=which)
    return [*others, ("precision", "float32", single)]
