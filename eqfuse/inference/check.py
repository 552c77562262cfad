"""Certify a trained network on this machine: the checks, and the command `eqfuse check`.

A check asks how far the predictions for changed structures are from what they must be. All
questions are collected before any structure is computed, so that few programs are compiled.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import ase
import numpy as np
from ase import units
from ase.data import covalent_radii
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet

from eqfuse import ops
from eqfuse.data import DataError, Structure, neighbor_list, read_structures
from eqfuse.data.samples import species_index
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.commands import run
from eqfuse.inference.network import Network
from eqfuse.inference.predict import Predicted, predict
from eqfuse.train import read_metadata

RATTLE = 0.03
"""Å, by which atoms are moved at random, so that forces do not vanish by symmetry."""
FEWEST_STEPS = 100
"""Least steps of dynamics: an oscillation of fewer looks like a drift."""
_ATOMS_AT_ONCE = 500
_WITH_HYDROGEN, _TIMESTEP = 0.25, 1.0  # fs

CHECKS = {
    "forces": ("forces are the slope of the energy", 1e-6),
    "stress": ("stress is the slope by strain", 1e-6),
    "rotation": ("rotation", 1e-9),
    "inversion": ("inversion", 1e-9),
    "translation": ("translation, images of atoms", 1e-9),
    "permutation": ("order of the atoms", 1e-9),
    "supercell": ("supercell", 1e-9),
    "cutoff": ("no jump at the cutoff", 1e-6),
    "backend": ("another backend, float64", 1e-9),
    "float32": ("float32 against float64", 1e-4),
    "nve": ("drift in NVE, meV/atom/ps", 1e-2),
}
"""The name of each check as printed, and the largest error that passes: relative, except of nve."""
STEP, STRAIN, NEAR = 2e-4, 2e-4, 2e-5
"""Steps of finite differences of the energy, Å and strain; distance from the cutoff, Å."""
_STENCIL, _DIRECTIONS = (-2, -1, 1, 2), 3
_ENVIRONMENT, _PROBES = 20, 4


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one check; its note is the worst structure, a backend, or why not checked."""

    name: str  # key of `CHECKS`
    error: float | None  # the largest over all structures; None: not checked
    note: str

    @property
    def limit(self) -> float:
        return CHECKS[self.name][1]

    @property
    def passed(self) -> bool:
        return self.error is None or self.error <= self.limit

    def __str__(self):
        text = f"{CHECKS[self.name][0]:<34}"
        if self.error is None:
            return f"{text}{'-':>9}{'':>9}  not checked: {self.note}"
        verdict = "passed" if self.passed else "FAILED"
        return f"{text}{self.error:>9.1e}{self.limit:>9.0e}  {verdict}  {self.note}"


def check(
    run,
    structures: Sequence[Structure],
    *,
    which: str | None = None,
    steps: int | None = 1000,
    temperature: float = 300.0,
    backends: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield the results of all checks of a network, as they come.

    Forces and stress are compared with differences of the energy in float64. Rotation, inversion,
    translation and images, permutation and supercells must not change what is predicted. Energy and
    forces must be continuous where an atom crosses the cutoff. Backends must agree in float64, and
    float32 with float64. The drift of the energy is that of dynamics with the first structure that
    has several atoms, in the precision of the run.

    Args:
      run: the run's folder, or a file of its network.
      structures: at least one; atoms are moved at random by 0.03 Å.
      which: "best" or "last" checkpoint; None for the best there is.
      steps: of dynamics, 100 or more; 0 or None for none.
      temperature: K, of dynamics.
      backends: to compare with the one that is chosen by device; None for all that run here.
    Raises:
      CheckpointError: no readable checkpoint.
      DataError: no structures, an element that the network does not know, overlapping atoms.
      ValueError: a backend that cannot run here, or a number of steps that is too small.
    """
    if not structures:
        raise DataError("there are no structures to check the network with")
    if steps and steps < FEWEST_STEPS:
        raise ValueError(f"a drift needs at least {FEWEST_STEPS} steps, or 0 for none, got {steps}")
    rng = np.random.default_rng(0)
    moved = [s.positions + rng.normal(scale=RATTLE, size=s.positions.shape) for s in structures]
    structures = [
        Structure(s.numbers, positions, s.cell, s.pbc, origin=s.origin)
        for s, positions in zip(structures, moved, strict=True)
    ]
    network = Network(run, which=which, dtype="float64")
    for structure in structures:
        species_index(structure.numbers, network.species)
    yield from _answers(network, structures, rng)
    expected = _predict(network, structures)

    def compared(name: str, note: str, **options) -> Row:
        predicted = _predict(Network(run, which=which, **options), structures)
        errors = [difference(p, e) for p, e in zip(predicted, expected, strict=True)]
        return Row(name, float(np.max(errors)), note)

    if backends is None:
        others = ops.resolve_here(None), "triton-interpret"
        available = ops.availability().items()
        backends = [name for name, (runs, _) in available if runs and name not in others]
    for backend in backends:
        yield compared("backend", backend, dtype="float64", backend=backend)
    yield compared("float32", "", dtype="float32")
    several = [structure for structure in structures if structure.num_atoms > 1]
    if not steps or not several:
        why = "no structure has several atoms" if not several else "no steps"
        yield Row("nve", None, "give a file of structures" if steps is None else why)
        return
    calculator = Calculator(run, which=which)
    note = f"{steps} steps from {temperature:g} K, {calculator.network.dtype}"
    yield Row("nve", drift(several[0], calculator, steps, temperature), note)


def _answers(network: Network, structures, rng) -> Iterator[Row]:
    """Yield a row for each check that the questions are of."""
    so3 = network.metadata["model_fields"].get("so3", False)
    questions = [
        (number, question)
        for number, structure in enumerate(structures)
        for question in itertools.chain(
            slopes(structure, rng),
            invariances(structure, rng),
            smoothness(structure, _cutoffs(network), rng),
        )
        if not (so3 and question.name == "inversion")
    ]
    changed = [structure for _, question in questions for structure in question.structures]
    predicted = iter(_predict(network, changed))
    errors: dict[str, np.ndarray] = {}
    for number, question in questions:
        error = question.error(list(itertools.islice(predicted, len(question.structures))))
        of_check = errors.setdefault(question.name, np.full(len(structures), -np.inf))
        of_check[number] = np.maximum(of_check[number], error)
    for name in itertools.takewhile(lambda name: name != "backend", CHECKS):
        if name in errors:
            worst = int(np.argmax(errors[name]))
            yield Row(name, float(errors[name][worst]), structures[worst].origin or "")
        elif name == "inversion":
            yield Row(name, None, "an SO(3) network has no such symmetry")
        else:
            yield Row(name, None, "no structure is periodic")


def _cutoffs(network: Network):
    """Return the function of two atomic numbers that returns their cutoffs, Å."""
    pairs = network.metadata["model_fields"].get("pair_cutoffs")

    def cutoffs(a: int, b: int) -> set[float]:
        if pairs is None:
            return {network.cutoff}
        a, b = network.species.index(a), network.species.index(b)
        return {pairs[a][b], pairs[b][a]}

    return cutoffs


def _predict(network: Network, structures: list[Structure]):
    largest = max(structure.num_atoms for structure in structures)
    return predict(network, structures, batch_size=max(_ATOMS_AT_ONCE // largest, 1))


def drift(structure: Structure, calculator, steps: int, temperature: float) -> float:
    """Return the drift of the energy in NVE dynamics, meV/atom/ps; infinite if they diverge.

    It is the slope of a line through the energies after each step. Velocity Verlet with steps of 1
    fs, with hydrogen 0.25 fs, has an error of its own, which is not the network's: it conserves H +
    dt^2 (v V'' v / 12 - F^2 / (24 m)) better than H by two orders of dt (Hairer, Lubich and Wanner
    2003, Acta Numerica 12, 399), so that this is the energy. A Hann window over the time keeps what
    oscillates from being taken for a slope.
    """
    atoms = ase.Atoms(
        structure.numbers, structure.positions, cell=structure.cell, pbc=structure.pbc
    )
    thermalize_momenta(atoms, temperature, rng=np.random.default_rng(0))
    Stationary(atoms)
    atoms.calc = calculator
    femtoseconds = _WITH_HYDROGEN if 1 in structure.numbers else _TIMESTEP
    timestep = femtoseconds * units.fs
    dynamics = VelocityVerlet(atoms, timestep)
    energies, velocities, forces = [], [], []
    try:
        for _ in range(steps):
            dynamics.run(1)
            energies.append(atoms.get_total_energy())
            velocities.append(atoms.get_velocities())
            forces.append(atoms.get_forces())
    except ValueError:  # positions that are not finite, or atoms far apart
        return np.inf
    velocities, forces = np.array(velocities), np.array(forces)
    curvature = -(forces[2:] - forces[:-2]) / (2 * timestep)  # V'' v
    modified = (velocities[1:-1] * curvature).sum((1, 2)) / 12
    modified -= (forces[1:-1] ** 2 / atoms.get_masses()[:, None]).sum((1, 2)) / 24
    energies = (energies[1:-1] + timestep**2 * modified) / len(atoms)
    if not np.isfinite(energies).all():
        return np.inf
    count = len(energies)
    window = np.sin(np.pi * (np.arange(count) + 0.5) / count)  # squared by polyfit
    picoseconds = np.arange(count) * femtoseconds / 1000
    return float(1000 * abs(np.polyfit(picoseconds, energies, 1, w=window)[0]))


class Question(NamedTuple):
    """Structures to compute, and how far their predictions are from what they must be."""

    name: str  # of the check that it is part of
    structures: list[Structure]  # to be computed in float64
    error: Callable[[list[Predicted]], float]  # of their predictions, in order; see `scales`


class Scales(NamedTuple):
    """The scales of errors: eV per atom, eV/Å and eV/Å^3."""

    energy: float
    forces: float
    stress: float


def scales(predicted: Predicted) -> Scales:
    """Return the energy per atom and the largest force and stress, or small amounts."""
    stress = 0.0 if predicted.stress is None else np.abs(predicted.stress).max()
    energy = abs(predicted.relative_energy) / len(predicted.energies)
    forces = max(np.abs(predicted.forces).max(), 0.1)
    return Scales(max(energy, 1.0), forces, max(stress, 1e-3))


def difference(actual: Predicted, expected: Predicted) -> float:
    scale = scales(expected)
    errors = [
        np.abs(actual.energies - expected.energies).max() / scale.energy,
        np.abs(actual.forces - expected.forces).max() / scale.forces,
    ]
    if expected.stress is not None:
        errors.append(np.abs(actual.stress - expected.stress).max() / scale.stress)
    return float(np.max(errors))


def slopes(structure: Structure, rng: np.random.Generator) -> list[Question]:
    """Ask whether forces and stress are slopes of the energy, by differences of fourth order.

    All atoms move at once, each by plus or minus `STEP` along each axis, so that an error of one
    component is not diluted.
    """
    questions = []
    for _ in range(_DIRECTIONS):
        direction = rng.choice([-1.0, 1.0], structure.positions.shape)
        moved = [
            dataclasses.replace(structure, positions=structure.positions + k * STEP * direction)
            for k in _STENCIL
        ]

        def of_forces(predicted, direction=direction):
            first, *others = predicted
            slope = _slope(others, STEP)
            return abs(slope + (first.forces * direction).sum()) / scales(first).forces

        questions.append(Question("forces", [structure, *moved], of_forces))
    for _ in range(_DIRECTIONS if structure.volume else 0):
        strain = np.triu(rng.choice([-1.0, 1.0], (3, 3)))
        strain = strain + np.triu(strain, 1).T
        strained = [_transformed(structure, np.eye(3) + k * STRAIN * strain) for k in _STENCIL]

        def of_stress(predicted, strain=strain):
            first, *others = predicted
            slope = _slope(others, STRAIN) / structure.volume
            return abs(slope - (first.stress * strain).sum()) / scales(first).stress

        questions.append(Question("stress", [structure, *strained], of_stress))
    return questions


def _slope(predicted: list[Predicted], step: float) -> float:
    far_below, below, above, far_above = (p.relative_energy for p in predicted)
    return (8 * (above - below) - (far_above - far_below)) / (12 * step)


def invariances(structure: Structure, rng: np.random.Generator) -> list[Question]:
    """Ask whether predictions follow the structure when it is described in another way."""
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))
    order = rng.permutation(structure.num_atoms)
    images = rng.integers(-2, 3, structure.positions.shape) * structure.pbc
    moved = structure.positions + images @ structure.cell + rng.uniform(-20, 20, 3)

    def turned(p, matrix):
        stress = None if p.stress is None else matrix.T @ p.stress @ matrix
        return dataclasses.replace(p, forces=p.forces @ matrix, stress=stress)

    def reordered(p):
        return dataclasses.replace(p, energies=p.energies[order], forces=p.forces[order])

    renumbered = {"numbers": structure.numbers[order], "positions": structure.positions[order]}
    changes = {
        "rotation": (_transformed(structure, rotation), lambda p: turned(p, rotation)),
        "inversion": (_transformed(structure, -np.eye(3)), lambda p: turned(p, -np.eye(3))),
        "translation": (dataclasses.replace(structure, positions=moved), lambda p: p),
        "permutation": (dataclasses.replace(structure, **renumbered), reordered),
    }
    if structure.pbc.any():
        changes["supercell"] = _doubled(structure), _twice
    return [
        Question(name, [structure, other], lambda p, follow=follow: difference(p[1], follow(p[0])))
        for name, (other, follow) in changes.items()
    ]


def _twice(p: Predicted) -> Predicted:
    forces = np.tile(p.forces, (2, 1))
    return Predicted(np.tile(p.energies, 2), 2 * p.relative_energy, forces, p.stress)


def _doubled(structure: Structure) -> Structure:
    """Return two cells side by side, along the shortest periodic direction."""
    lengths = np.where(structure.pbc, np.linalg.norm(structure.cell, axis=1), np.inf)
    axis = int(np.argmin(lengths))
    cell = structure.cell.copy()
    cell[axis] *= 2
    positions = np.concatenate([structure.positions, structure.positions + structure.cell[axis]])
    numbers = np.tile(structure.numbers, 2)
    return dataclasses.replace(structure, numbers=numbers, positions=positions, cell=cell)


def _transformed(structure: Structure, matrix) -> Structure:
    return dataclasses.replace(
        structure, positions=structure.positions @ matrix, cell=structure.cell @ matrix
    )


def smoothness(structure: Structure, cutoffs, rng: np.random.Generator) -> list[Question]:
    """Ask whether energy and forces are continuous where an atom crosses the cutoff of another.

    An atom of each of the structure's elements (four at most) crosses the cutoff of the outermost
    atom of the structure, which is taken without its images; of many atoms, the nearest 20.
    `cutoffs` returns one or two cutoffs (Å) of two atomic numbers.
    """
    questions = []
    for probe in rng.permutation(np.unique(structure.numbers))[:_PROBES]:
        out = rng.normal(size=3)
        out /= np.linalg.norm(out)
        outermost = int(np.argmax(structure.positions @ out))
        away = np.linalg.norm(structure.positions - structure.positions[outermost], axis=1)
        near = np.argsort(away, kind="stable")[:_ENVIRONMENT]
        numbers, positions = structure.numbers[near], structure.positions[near]
        for cutoff in cutoffs(int(numbers[0]), int(probe)):
            places = [positions[0] + (cutoff + k * NEAR) * out for k in _STENCIL]
            crossing = [
                Structure(np.append(numbers, probe), np.vstack([positions, place]))
                for place in places
            ]
            questions.append(Question("cutoff", crossing, lambda p, out=out: _jump(p, out)))
    return questions


def _jump(predicted: list[Predicted], out) -> float:
    """Return the jump at the cutoff of energy and forces, extrapolated from both sides.

    The last atom, which moves along `out`, is 2 and 1 `NEAR` within, then 1 and 2 beyond.
    """
    far_below, below, above, far_above = predicted
    forces = (2 * above.forces - far_above.forces) - (2 * below.forces - far_below.forces)
    energies = [
        p.relative_energy + k * NEAR * p.forces[-1] @ out for p, k in ((below, -1), (above, 1))
    ]
    scale = scales(far_below).forces
    return float(max(np.abs(forces).max(), abs(energies[1] - energies[0])) / scale)


def main(arguments: list[str]) -> int:
    """Check a network; print a table and a verdict; return 1 if a check failed."""
    what = (
        "Certify a trained network on this machine: forces, stress, symmetries, smoothness, "
        "backends, precision and the energy in dynamics. Exit code 0 if all checks pass, 1 if not."
    )
    parser = argparse.ArgumentParser(prog="eqfuse check", description=what)
    parser.add_argument("run", type=Path, help="folder of the run, or file of its network")
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        help="structures to check it on, without labels too; if not given, a disordered crystal "
        "and a molecule of its elements, which are too far from what networks are trained on for "
        "dynamics",
    )
    parser.add_argument("--which", choices=("best", "last"), help="checkpoint; the best there is")
    parser.add_argument(
        "--frames", type=int, default=3, help="frames of the file, evenly spaced [%(default)s]"
    )
    parser.add_argument(
        "--steps", type=int, default=1000, help="of dynamics; 0 for none [%(default)s]"
    )
    parser.add_argument(
        "--temperature", type=float, default=300.0, help="K, of dynamics [%(default)s]"
    )
    parser.add_argument(
        "--backends",
        nargs="*",
        help="to compare with the one chosen by device; all that run here if not given",
    )
    return run(parser, arguments, _check)


def _check(options) -> int:
    try:
        for backend in options.backends or ():
            ops.resolve_here(backend)
        structures = _structures(options)
        print(f"{options.run}: {len(structures)} structures, atoms moved at random by {RATTLE} Å")
        print(f"{'check':<34}{'error':>9}{'limit':>9}")
        rows = []
        for row in check(
            options.run,
            structures,
            which=options.which,
            steps=options.steps if options.file else None,
            temperature=options.temperature,
            backends=options.backends,
        ):
            print(row, flush=True)
            rows.append(row)
    except ValueError as error:
        raise DataError(str(error)) from error
    failed = [CHECKS[row.name][0] for row in rows if not row.passed]
    unchecked = sum(row.error is None for row in rows)
    print("errors are relative to the largest force, stress or energy per atom, except the drift")
    if failed:
        print(f"verdict: FAILED: {'; '.join(failed)}")
        return 1
    print(f"verdict: passed, {len(rows) - unchecked} checks; not checked: {unchecked}")
    return 0


def _structures(options) -> list[Structure]:
    """Return the structures to check."""
    if options.file is None:
        species = read_metadata(options.run, which=options.which)["species"]
        examples = zip(("crystal", "molecule"), example_structures(species), strict=True)
        return [_apart(atoms, name) for name, atoms in examples]
    if options.frames < 1:
        raise DataError(f"--frames must be at least 1, got {options.frames}")
    structures = read_structures(options.file, require_labels=False)
    structures = [s for s in structures if not s.is_isolated_atom]
    if not structures:
        raise DataError(f"{options.file} has isolated atoms only; give one with structures")
    chosen = np.linspace(0, len(structures) - 1, min(options.frames, len(structures)))
    return [structures[k] for k in chosen.round().astype(int)]


def _apart(atoms, name: str) -> Structure:
    """Return a structure that is expanded until no atoms are nearer than their radii add up to."""
    structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, origin=name)
    radii = covalent_radii[structure.numbers]
    placed = structure.positions, structure.cell, structure.pbc
    senders, receivers, shifts = neighbor_list(*placed, 2 * radii.max())
    vectors = structure.positions[senders] + shifts - structure.positions[receivers]
    ratios = (radii[senders] + radii[receivers]) / np.linalg.norm(vectors, axis=1)
    return _transformed(structure, ratios.max(initial=1.0) * np.eye(3))


def example_structures(elements) -> list[ase.Atoms]:
    """Return a skewed periodic cell of eight atoms, and a molecule of five, both disordered."""
    rng = np.random.default_rng(0)
    elements = np.array(sorted(elements))
    numbers = rng.permutation(elements)[:8]
    numbers = np.concatenate([numbers, rng.choice(elements, 8 - len(numbers))])
    spacing = 2.1 * covalent_radii[numbers].mean()
    cell = 2 * spacing * np.array([[1, 0, 0], [0.06, 1.05, 0], [0.02, -0.08, 0.95]])
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)
    places = (grid + 0.5) / 2 + rng.normal(size=(8, 3)) * 0.03
    crystal = ase.Atoms(numbers, places @ cell, cell=cell, pbc=True)
    molecule = ase.Atoms(numbers[:5], 0.9 * crystal.positions[:5])
    return [crystal, molecule]
