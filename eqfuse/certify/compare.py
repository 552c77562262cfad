"""Compare two potentials on the same structures: the command `eqfuse compare`."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import ase
import numpy as np
from ase.neighborlist import neighbor_list

from eqfuse.certify import questions as asked
from eqfuse.certify.check import frames_of
from eqfuse.certify.checks import worst_of
from eqfuse.certify.questions import SIGMAS
from eqfuse.certify.subjects import Subject, open_subject
from eqfuse.inference import require_backend
from eqfuse.runs import POSITIVE, TYPES, command, setting, word

_BINS = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, np.inf)  # Å, of the nearest neighbour
_FARTHEST = 4.0


def compare(a: Subject, b: Subject, structures: Sequence[ase.Atoms]) -> tuple[list[str], bool]:
    """Compare energies, forces and stress of two potentials.

    Args:
      a, b: the potentials.
      structures: at least one, see `frames_of`.
    Returns:
      Lines of a table, and whether the two agree within the rounding of both.
    """
    rng = np.random.default_rng(0)
    found = [subject.compute(structures) for subject in (a, b)]
    lines, agree = [f"A: {a.name}", f"B: {b.name}", f"{len(structures)} structures"], True
    for label, answers in zip("AB", found, strict=True):
        for atoms, answer in zip(structures, answers, strict=True):
            if not answer.is_finite:
                why = answer.error or "a number is not finite"
                return [*lines, f"{label} does not compute {atoms.info['name']}: {why}"], False
    noise = SIGMAS * np.hypot(*[_noise(subject, structures, rng) for subject in (a, b)])
    lines.append(f"{'':<34}{'rms':>10}{'largest':>10}{'rounding':>10}")

    def row(name, values, unit, allowed):
        nonlocal agree
        if not len(values):
            return
        worst = int(np.argmax(values / allowed))
        within = bool(values[worst] <= allowed[worst])
        agree &= within
        rms = np.sqrt((values**2).mean())
        text = f"{name:<34}{rms:>10.2e}{values.max():>10.2e}{allowed[worst]:>10.1e} {unit}"
        lines.append(text + ("" if within else "  differs"))

    pairs, counts = list(zip(*found, strict=True)), np.array([len(s) for s in structures])
    energy = np.abs([x.energy - y.energy for x, y in pairs])
    row("energy per atom", energy / counts, "eV", noise[:, 0] / counts)
    of_forces = np.repeat(noise[:, 1], counts)
    forces = np.concatenate([np.linalg.norm(x.forces - y.forces, axis=1) for x, y in pairs])
    row("forces", forces, "eV/Å", of_forces)
    both = [k for k, pair in enumerate(pairs) if all(x.stress is not None for x in pair)]
    stress = np.abs([pairs[k][0].stress - pairs[k][1].stress for k in both]).ravel()
    row("stress", stress, "eV/Å³", np.repeat(noise[both, 2], 6))
    if not agree:
        numbers = np.concatenate([atoms.numbers for atoms in structures])
        nearest = np.concatenate([_nearest(atoms) for atoms in structures])
        for z in np.unique(numbers):
            own, name = numbers == z, f"forces of {ase.data.chemical_symbols[z]}"
            row(name, forces[own], "eV/Å", of_forces[own])
        for low, high in itertools.pairwise(_BINS):
            own = (nearest >= low) & (nearest < high)
            name = f"forces, neighbour at {low:g} to {high:g} Å"
            row(name, forces[own], "eV/Å", of_forces[own])
        worst = np.repeat(np.arange(len(structures)), counts)[np.argmax(forces)]
        lines += _which_is_wrong((a, b), structures[worst], rng)
    return lines, agree


def _noise(subject: Subject, structures, rng) -> np.ndarray:
    """Return the rounding of each structure, [n_structures, 3], as the precision has it."""
    lines = [subject.compute(asked.line(atoms, rng)) for atoms in structures]
    precision = asked.precision_of(lines)
    pairs = zip(structures, lines, strict=True)

    def measured(atoms, line):
        line = [one._replace(energy=one.energy - subject.offset(atoms)) for one in line]
        return asked.measure(atoms, line, precision)

    return np.array([measured(*pair) for pair in pairs])


def _nearest(atoms: ase.Atoms) -> np.ndarray:
    """Return the distance of each atom to its nearest neighbour, Å, at most 4."""
    nearest = np.full(len(atoms), _FARTHEST)
    np.minimum.at(nearest, *neighbor_list("id", atoms, _FARTHEST))
    return nearest


def _which_is_wrong(subjects, atoms, rng) -> list[str]:
    """Ask both whether forces and stress are slopes of their own energy, where they differ most."""
    lines = [f"where they differ most, {atoms.info['name']}:"]
    for label, subject in zip("AB", subjects, strict=True):
        noise = asked.Rounding(*_noise(subject, [atoms], rng)[0])
        questions = {"forces": asked.slopes(atoms, noise, rng)}
        questions["stress"] = asked.stresses(atoms, noise)
        for name, listed in questions.items():
            findings = [("", f) for found in asked.ask(subject, listed) for f in found]
            row = worst_of(name, findings)
            if row.error is not None:
                verdict = "are" if row.passed else "are NOT"
                numbers = f"({row.error:.1e}, limit {row.limit:.1e} {row.unit}) {row.remark}"
                text = f"{label}: {name} {verdict} the slope of its own energy {numbers}"
                lines.append(text.rstrip())
    return lines


@dataclasses.dataclass
class Compare:
    """Compare energies, forces and stress of two potentials on the frames of a file.

    It says which of them is inconsistent with itself. The exit code is 0 if they agree within
    rounding, 1 if not. Settings that end with _a are of A, those that end with _b of B.
    """

    a: str = word("a run, or module:function(arguments)")
    b: str = word("another one")
    file: Path = word("structures, without labels too")
    types: tuple[str, ...] | None = setting(None, TYPES)
    frames: int = setting(10, "of the file", POSITIVE)
    python_a: str | None = setting(None, "Python of its environment", convert=os.path.expanduser)
    dtype_a: Literal["float32", "float64"] | None = setting(None, "of a run")
    backend_a: str | None = setting(None, "of the ops of a run")
    python_b: str | None = setting(None, "Python of its environment", convert=os.path.expanduser)
    dtype_b: Literal["float32", "float64"] | None = setting(None, "of a run")
    backend_b: str | None = setting(None, "of the ops of a run")


@command.of(Compare)
def main(options: Compare) -> int:
    frames, subjects = frames_of(options.file, options.frames, options.types), []
    try:
        for name in ("a", "b"):
            own = "python", "dtype", "backend"
            kinds = {k: getattr(options, f"{k}_{name}") for k in own}
            require_backend(kinds["backend"])
            subjects.append(open_subject(getattr(options, name), **kinds))
        lines, agree = compare(*subjects, frames)
    finally:
        for subject in subjects:
            subject.close()
    print("\n".join(lines))
    print("they agree within rounding" if agree else "they differ")
    return 0 if agree else 1
