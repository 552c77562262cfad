"""Certify a potential on this machine: all questions, and the command `eqfuse check`."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import ase
import ase.data
import ase.units
import numpy as np

from eqfuse import ops
from eqfuse.certify import questions as asked
from eqfuse.certify.paths import paths_of, walk
from eqfuse.certify.questions import SIGMAS, Finding, Rounding
from eqfuse.certify.report import Report, check_paths
from eqfuse.certify.rows import CHECKS, REPEATS, Row, worst_of
from eqfuse.certify.steps import small_steps
from eqfuse.certify.structures import made_structures, rattled
from eqfuse.certify.subjects import Run, Subject, open_subject
from eqfuse.data import DataError, read_structures
from eqfuse.data.neighbors import require_apart
from eqfuse.inference.commands import require_backend
from eqfuse.inference.lists import naming
from eqfuse.runs import command
from eqfuse.runs.schema import BACKEND, POSITIVE, TYPES, setting, word

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
      others: potentials that must agree: (name of the check, note, subject, precision).

    Attributes:
      precision: "float64", "float32" or "less than float32", as found.
      walks: what was computed along paths of atoms.
      energies: [n] (times in ps, energies in meV/atom) of dynamics.
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
        given = [rattled(atoms, RATTLE, self._rng) for atoms in structures]
        if elements is None:
            elements = sorted({int(z) for atoms in given for z in atoms.numbers}) or (
                subject.elements
            )
        if not elements:
            raise DataError("name the elements, such as elements=Cu,O, or give a file")
        if len(elements) > 4:
            elements = sorted(self._rng.choice(elements, 4, replace=False).tolist())
        self.subject, self.elements = subject, elements
        self._made = made_structures(elements)
        self._structures = given + self._made
        self._given, self._duration, self._temperature = given, duration, temperature
        self._others = others
        self.precision, self.walks, self.energies = "", [], []
        self._noise: list[Rounding] = []

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all checks, in the order of `CHECKS` where they are cheap."""
        yield from self._of_rounding()
        yield from self._of_questions()
        yield from self._of_paths()
        yield from self._of_calls()
        for name, note, other in self._others:
            yield self._against(name, note, other)
        yield self._of_dynamics()

    def _name(self, k: int) -> str:
        return self._structures[k].info["name"]

    def _of_rounding(self) -> Iterator[Row]:
        lines = [asked.line(atoms, self._rng) for atoms in self._structures]
        answers = iter(self.subject.compute([atoms for line in lines for atoms in line]))
        groups = [[next(answers) for _ in line] for line in lines]
        broken = {
            self._name(k): next((a.error for a in group if a.error), "a number is not finite")
            for k, group in enumerate(groups)
            if not all(a.is_finite for a in group)
        }
        remark = "; ".join(f"{name}: {why}" for name, why in broken.items())
        yield Row("finite", np.nan if broken else 0.0, 0.0, "", remark)
        kept = [k for k in range(len(groups)) if self._name(k) not in broken]
        if not kept:
            raise DataError(f"{self.subject.name} computes none of the structures: {remark}")
        self._structures = [self._structures[k] for k in kept]
        groups = [groups[k] for k in kept]
        self.precision = asked.precision_of(groups)
        findings = []
        for atoms, group in zip(self._structures, groups, strict=True):
            self._noise.append(asked.measure(atoms, group, self.precision))
            rough, size = asked.rounding(group), asked.scales(group[0])
            limit = min(100 * asked.EPS[self.precision], asked.ROUGHEST) * size.energy
            name = f"{self.precision} by its forces; {atoms.info['name']}"
            findings += [
                (name, Finding(rough.energy, limit, "eV")),
                (name, Finding(rough.forces, asked.ROUGHEST * size.forces, "eV/Å")),
                (name, Finding(rough.stress, asked.ROUGHEST * size.stress, "eV/Å³")),
            ]
        yield worst_of("rounding", findings)

    def _of_questions(self) -> Iterator[Row]:
        listed = []
        for k, (atoms, noise) in enumerate(zip(self._structures, self._noise, strict=True)):
            own = [
                *asked.slopes(atoms, noise, self._rng),
                *asked.stresses(atoms, noise),
                *asked.invariances(atoms, noise, self._rng),
            ]
            listed += [(self._name(k), question) for question in own]
        noise = max(self._noise, key=lambda n: n.forces)
        isolated = [ase.Atoms([z], [[0.0, 0.0, 0.0]]) for z in self.elements]

        def free(answers):
            return [
                Finding(np.abs(a.forces).max(), asked.SIGMAS * noise.forces, "eV/Å", a.error or "")
                for a in answers
            ]

        listed.append(("", asked.Question("isolated", isolated, free)))
        if self.subject.has_inversion is False:
            listed = [(name, q) for name, q in listed if q.name != "inversion"]
        found: dict[str, list] = {}
        findings = asked.ask(self.subject, [question for _, question in listed])
        for (name, question), own in zip(listed, findings, strict=True):
            found.setdefault(question.name, []).extend((name, finding) for finding in own)
        names = list(CHECKS)
        for check in names[names.index("forces") : names.index("path")]:
            unknown = check == "inversion" and self.subject.has_inversion is None
            yield worst_of(check, found.get(check, []), np.inf if unknown else 0.0)

    def _of_paths(self) -> Iterator[Row]:
        cluster = next(atoms for atoms in self._made if atoms.info["name"] == "molecule")
        self._other = cluster[:3]
        self._paths = paths_of(self.elements, cluster, self._rng)
        for path, begin in self._paths:
            self.walks.append(walk(self.subject, path, begin, self.precision, self._rng))
        yield worst_of("path", [("", f) for one in self.walks for f in one.findings])

    def _of_calls(self) -> Iterator[Row]:
        yield self._of_repeats()
        atoms, noise = self._structures[0], self._noise[0]
        squeezed = asked.strained(atoms, -0.03 * np.eye(3))
        squeezed.info["name"] = "itself, squeezed"
        reversed_ = atoms[::-1]
        reversed_.info["name"] = "itself in another order"
        first, findings = self.subject.in_turn([atoms, atoms])[1], []
        for other in (squeezed, *self._structures[1:4], reversed_):
            after = self.subject.in_turn([other, atoms])[1]
            where = f"after {other.info['name']}"
            findings += [(where, finding) for finding in asked.apart(after, first, noise)]
        yield worst_of("history", findings + self._of_small_steps())
        batched = self.subject.compute(self._structures)
        alone = self.subject.in_turn(self._structures)
        together = zip(batched, alone, self._noise, strict=True)
        findings = [
            (self._name(k), f) for k, each in enumerate(together) for f in asked.apart(*each)
        ]
        yield worst_of("batch", findings)

    def _of_small_steps(self) -> list[tuple[str, asked.Finding]]:
        measured = zip(self._structures, self._noise, strict=True)
        cells = [pair for pair in measured if pair[0].info["name"] == "skewed cell"]
        pairs = [(self._paths[0][0], self.walks[0])]
        return small_steps(self.subject, pairs, cells, self._other, self.precision, self._rng)

    def _of_repeats(self) -> Row:
        """Ask for the same bits, of each quantity; those of sums in another order are noted."""
        atoms = next((a for a in self._structures if len(a) > 4), self._structures[0])
        again = self.subject.ask("repeat", atoms, count=REPEATS)
        if "error" in again:
            return Row("repeat", np.nan, remark=str(again["error"]))
        first = asked.Answer(again["energy"][0], again["forces"][0], None)
        rows = []
        least = asked.least_rounding(atoms, first, self.precision)
        for name, unit, noise in zip(
            ("energy", "forces", "stress"), ("eV", "eV/Å", "eV/Å³"), least, strict=True
        ):
            if name in again:
                change = float(np.ptp(again[name], axis=0).max())
                remark = f"{name} of {atoms.info['name']}"
                rows.append(Row("repeat", change, 0.0, unit, remark, SIGMAS * noise))
        return max(rows, key=lambda row: row.error / row.harmless)

    def _against(self, name: str, note: str, other: Subject) -> Row:
        """Compare with another potential that must agree."""
        own, theirs = (s.compute(self._structures) for s in (self.subject, other))
        findings = []
        for a, b, noise in zip(own, theirs, self._noise, strict=True):
            if name == "precision":
                size = asked.scales(a)
                noise = Rounding(*(part * s / SIGMAS for part, s in zip(_LOST, size, strict=True)))
            findings += [(note, f) for f in asked.apart(b, a, noise)]
        return worst_of(name, findings)

    def _of_dynamics(self) -> Row:
        """Halve the time step until the energy does not drift, twice at most."""
        several = [atoms for atoms in self._given if len(atoms) > 1]
        if not self._duration:
            return Row("nve", None, remark="no dynamics were asked for")
        if several:
            atoms = several[0].copy()
        else:
            atoms = next(a for a in self._made if a.info["name"] == "skewed cell").copy()
            relaxed = self.subject.ask("relax", atoms, steps=300)
            if "error" in relaxed:
                return Row("nve", np.nan, remark=str(relaxed["error"]))
            atoms.positions = relaxed["positions"]
        line = self.subject.compute(asked.line(atoms, self._rng))
        noise = asked.measure(atoms, line, self.precision)
        rough = 1000 * SIGMAS * noise.energy / len(atoms) / self._duration
        limit, longest = _MOST_DRIFT + rough, 2 * timestep_of(atoms.numbers)
        of_steps = []
        for timestep in (longest, longest / 2, longest / 4, longest / 8):
            steps = round(1000 * self._duration / timestep)
            done = self.subject.ask(
                "dynamics", atoms, timestep=timestep, steps=steps, temperature=self._temperature
            )
            if "error" in done or len(done["energies"]) < steps:
                said = str(done.get("error", "dynamics ended before their last step"))
                return Row("nve", np.nan, limit, "", f"{said}, {timestep:g} fs")
            times, energies, slope = drift(atoms, timestep, **done)
            self.energies.append((timestep, times, energies))
            of_steps.append(f"{slope:.1e} with {timestep:g} fs")
            if slope <= limit and timestep < longest:
                break
        remark = f"{atoms.info['name']}, {self._duration:g} ps from {self._temperature:g} K"
        return Row("nve", slope, limit, "", f"{remark}: {', '.join(of_steps)}")


def timestep_of(numbers) -> float:
    """Return a time step of dynamics, fs, by the lightest atoms."""
    return 0.25 if 1 in numbers else 1.0


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
    python: Path | None = setting(None, "Python of the calculator's environment, with ase, numpy")
    elements: tuple[str, ...] | None = setting(None, "of the structures that are made, as Cu,O")
    frames: int = setting(3, "frames of the file, evenly spaced", POSITIVE)
    picoseconds: float = setting(2.0, "of dynamics; 0 for none")
    temperature: float = setting(300.0, "K, of dynamics")
    report: Path | None = setting(None, "file to write: .html, or .md")
    json: Path | None = setting(None, "file to write all numbers to")
    which: Literal["best", "last"] | None = setting(None, "checkpoint; null: the best there is")
    dtype: Literal["float64", "float32"] | None = setting(None, "null: float64, and both compared")
    backend: str | None = setting(None, BACKEND)
    backends: tuple[str, ...] | None = setting(None, "to compare with; null: all that run here")


def frames_of(file: Path | None, frames: int, types=None) -> list[ase.Atoms]:
    """Return frames of a file, evenly spaced, with their places as names; none without a file.

    Raises:
      DataError: no structures of several atoms in the file, or two atoms nearer than 0.3 Å.
    """
    if file is None:
        return []
    structures = read_structures(file, types=types, require_labels=False)
    structures = [s for s in structures if not s.is_isolated_atom]
    if not structures:
        raise DataError(f"{file} has isolated atoms only; give one with structures")
    chosen = np.linspace(0, len(structures) - 1, min(frames, len(structures)))
    structures = [structures[k] for k in chosen.round().astype(int)]
    for s in structures:
        with naming(s.origin):
            require_apart(s)
    return [
        ase.Atoms(s.numbers, s.positions, cell=s.cell, pbc=s.pbc, info={"name": s.origin})
        for s in structures
    ]


@command.of(Check)
def main(options: Check) -> int:
    require_backend(options.backend)
    check_paths(options.report, options.json)
    elements = None
    if options.elements:
        unknown = [e for e in options.elements if e not in ase.data.atomic_numbers]
        if unknown:
            raise DataError(f"elements={unknown[0]} is no element; write them as Cu,O")
        elements = [ase.data.atomic_numbers[e] for e in options.elements]
    frames = frames_of(options.file, options.frames, options.types)
    kinds = {k: getattr(options, k) for k in ("python", "which", "backend", "dtype")}
    subject = open_subject(options.calculator, **kinds)
    try:
        others = []
        if isinstance(subject, Run) and options.dtype != "float32":
            own = (options.calculator,), {"which": options.which}
            used = ops.resolve_here(options.backend)
            names = [n for n, (runs, _) in ops.availability().items() if runs and n != used]
            for name in names if options.backends is None else options.backends:
                other = Run(*own[0], dtype="float64", backend=name, **own[1])
                others.append(("backend", name, other))
            others.append(("precision", "float32", Run(*own[0], dtype="float32", **own[1])))
        certificate = Certificate(
            subject,
            frames,
            elements=elements,
            duration=options.picoseconds,
            temperature=options.temperature,
            others=others,
        )
        report = Report(certificate, options)
        print(f"{subject.name}: {', '.join(f'{k} {v}' for k, v in report.versions.items())}")
        print(f"{'check':<36}{'error':>9}{'limit':>9}")
        for row in certificate.rows():
            print(row, flush=True)
            report.rows.append(row)
    except ValueError as error:
        raise DataError(str(error)) from error
    finally:
        subject.close()
    for path in report.write(options.report, options.json):
        print(f"report: {path}")
    failed = [row for row in report.rows if row.verdict == "FAILED"]
    for row in failed:
        print(f"{CHECKS[row.name][0]}: {row.meaning}")
    print(report.verdict)
    return 1 if failed else 0
