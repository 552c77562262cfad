"""Frames of a material: strained and rattled cells, defects, and dynamics within limits."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ase
import numpy as np
from ase import units
from ase.data import covalent_radii
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.velocitydistribution import thermalize_momenta

import eqfuse
from eqfuse.data import DataError, neighbor_list
from eqfuse.distill.selection import choose
from eqfuse.distill.student import Errors, split
from eqfuse.distill.teacher import labelled
from eqfuse.inference.predict import predict

_SPREAD = 3.0
"""Of the largest spread of a force of labels: beyond it, a trajectory is stopped."""
_OF_LABELS = 50  # frames, of which the spread is computed
_STRAINED = 2  # strained and rattled candidates for each label of a round
_VACUUM = 10.0  # Å, of a surface
_GAP = 6.0  # Å
_THERMOSTAT_TIME, _PRESSURE_TIME = 100.0, 500.0  # fs


def closeness(atoms: ase.Atoms) -> float:
    """Return the smallest distance of two atoms over the sum of their covalent radii."""
    radii = covalent_radii[atoms.numbers]
    reach = 4 * radii.max()
    pairs = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, reach)
    senders, receivers, shifts = pairs
    vectors = atoms.positions[senders] + shifts - atoms.positions[receivers]
    ratios = np.linalg.norm(vectors, axis=1) / (radii[senders] + radii[receivers])
    return float(ratios.min(initial=np.inf))


class Limits(NamedTuple):
    """The limits beyond which a trajectory is stopped."""

    closeness: float = 0.5  # see `closeness`
    force: float = 50.0  # eV/Å, of an atom
    spread: float = np.inf  # eV/Å, of the force of an atom

    @classmethod
    def of(cls, labels: Sequence[ase.Atoms], spread: float) -> "Limits":
        """Return the limits that labels support, given that of the spread."""
        force = max(np.linalg.norm(a.get_forces(), axis=1).max() for a in labels)
        return cls(0.9 * min(map(closeness, labels)), max(1.5 * float(force), 5.0), spread)

    def passed(self, atoms: ase.Atoms) -> str | None:
        """Return the limit of distance or force that a frame with results passes, or None."""
        force = np.linalg.norm(atoms.get_forces(), axis=1).max()
        if not force <= self.force:
            return f"a force of {force:.3g} eV/Å"
        if not (near := closeness(atoms)) >= self.closeness:
            return f"atoms at {near:.2f} of the sum of their covalent radii"
        return None


def is_dense(atoms: ase.Atoms) -> bool:
    """Test whether a structure is periodic in three directions, and has no vacuum of 6 Å or more.

    Others, such as slabs, have no volume of their own, and are not simulated at a pressure.
    """
    if not atoms.pbc.all():
        return False
    places = np.sort(atoms.get_scaled_positions(), axis=0)
    gaps = np.diff(places, axis=0, append=places[:1] + 1).max(axis=0)
    heights = 1 / np.linalg.norm(atoms.cell.reciprocal().array, axis=1)
    return bool((gaps * heights < _GAP).all())


def cells_of(starts: Sequence[ase.Atoms], atoms: int, defects=(), seed: int = 0):
    """Return the structures to sample: those given, larger, and with defects.

    Cells are doubled along their shortest periodic vector while they have at most `atoms` atoms.
    A vacancy is without a random atom; a surface has vacuum along a random periodic vector. Their
    `info["config_type"]` is "dynamics" or the name of the defect.
    """
    rng, cells = np.random.default_rng(seed), []
    for start in starts:
        cell = ase.Atoms(start.numbers, start.positions, cell=start.cell, pbc=start.pbc)
        cell.info["config_type"] = "dynamics"
        while cell.pbc.any() and 2 * len(cell) <= atoms:
            lengths = np.where(cell.pbc, cell.cell.lengths(), np.inf)
            cell = cell.repeat(np.where(np.arange(3) == lengths.argmin(), 2, 1))
        cells.append(cell)
        for name in defects:
            if name == "surface" and not cell.pbc.all():
                raise DataError(
                    f"defects=surface needs a crystal, and {cell.get_chemical_formula()} is not "
                    "periodic in three directions; leave it out"
                )
            made = cell.copy()
            made.info["config_type"] = name
            if name == "vacancy":
                del made[int(rng.integers(len(made)))]
            else:
                made.center(vacuum=_VACUUM / 2, axis=int(rng.integers(3)))
            cells.append(made)
    return cells


def rattled(atoms: ase.Atoms, rng, strain: float, distance: float) -> ase.Atoms:
    """Return a copy with a random strain along periodic vectors, and atoms moved at random.

    Args:
      strain: standard deviation of each element of the strain.
      distance: standard deviation of each coordinate, Å.
    """
    made, lengths = atoms.copy(), np.where(atoms.pbc, atoms.cell.lengths(), 1.0)
    change = strain * rng.normal(size=(3, 3)) * np.outer(atoms.pbc, atoms.pbc)
    cell = (np.eye(3) + change * lengths[:, None] / lengths) @ atoms.cell.complete().array
    made.set_cell(np.where(atoms.cell.any(axis=1)[:, None], cell, 0.0), scale_atoms=True)
    made.positions += distance * rng.normal(size=made.positions.shape)
    return made


class Conditions(NamedTuple):
    """The conditions of a trajectory."""

    temperature: float  # K
    pressure: float | None  # GPa; None at constant volume
    steps: int
    every: int  # steps between frames
    timestep: float  # fs


def trajectory(atoms: ase.Atoms, calculator, at: Conditions, rng, limits: Limits, spread_of=None):
    """Run dynamics; return the frames with results, and why they were stopped, or None.

    The frame that passes the limit of the spread is the last one; one beyond another limit is left
    out.

    Args:
      atoms: the first frame, whose velocities are drawn.
      calculator: which drives them.
      at: the conditions.
      rng: of velocities and noise.
      limits: which are checked at each frame.
      spread_of: function of a frame to the largest spread of a force, eV/Å, or None.
    """
    atoms, frames = atoms.copy(), []
    atoms.calc = calculator
    step, kelvin = at.timestep * units.fs, {"temperature_K": at.temperature}
    thermalize_momenta(atoms, rng=rng, **kelvin)
    constant = {"T_tau": _THERMOSTAT_TIME * units.fs, "rng": rng, **kelvin}
    if at.pressure is not None:
        constant |= {"externalstress": -at.pressure * units.GPa, "hydrostatic": True}
        constant["P_tau"] = _PRESSURE_TIME * units.fs
        constant["P_mass"] = (_PRESSURE_TIME / 6.64 * len(atoms) ** (1 / 6)) ** 2  # ASE's rule
    dynamics = LangevinBAOAB(atoms, step, **constant)
    while len(frames) < at.steps // at.every:
        try:
            dynamics.run(at.every)
            frame = labelled(atoms, calculator)
            why = limits.passed(frame)
        except Exception as error:  # of any calculator, and of atoms that flew apart
            return frames, f"{type(error).__name__}: {error}".splitlines()[0]
        if why:
            return frames, why
        del frame.arrays["momenta"]
        frame.info["temperature_k"] = at.temperature
        frames.append(frame)
        if spread_of is not None and (spread := spread_of(frame)) > limits.spread:
            return frames, f"a spread of {spread:.3g} eV/Å"
    return frames, None


def timestep_of(atoms: ase.Atoms) -> float:
    """Return a usual time step, fs: 0.5 with hydrogen, 1 with elements up to neon, 2 beyond."""
    lightest = atoms.numbers.min()
    return 0.5 if lightest == 1 else 1.0 if lightest <= 10 else 2.0


class Sampler:
    """Makes the candidates of a round of an `eqfuse.distill.rounds.Distillation`."""

    def __init__(self, of, number: int, student: Path | None):
        self._of, self._number, self._student = of, number, student
        settings = of.settings
        drives = student is not None and settings.driver != "teacher"
        if drives and settings.driver == "auto":
            known = of.frames("new", number)[-settings.new :]
            known = known or split(of.frames("labels", number))[1]
            drives = Errors.of(student, known).relative <= settings.driver_error
        self._drives = drives
        self.driver = "student" if drives else "teacher"
        if student is None and settings.driver == "student":
            self.driver = "nobody"  # a teacher that is too slow for dynamics

    def _limits(self) -> Limits:
        if self._student is None:
            return Limits()
        labels = self._of.frames("labels")
        chosen = labels[:: -(-len(labels) // _OF_LABELS)]
        largest = max(p.spread.forces.max() for p in predict(self._student, chosen))
        return Limits.of(labels, _SPREAD * float(largest))

    def trajectories(self, part: int, count: int, drives: bool) -> list[ase.Atoms]:
        """Return the frames of trajectories, with random numbers of this part of the round.

        Those that the teacher drives have its labels.
        """
        of, settings, number = self._of, self._of.settings, self._number
        calculator = eqfuse.Calculator(self._student) if drives else of.teacher
        spread_of, found = None, []
        if drives:
            watch = eqfuse.Calculator(self._student, spread=True)

            def spread_of(frame):
                watch.get_property("energy", frame)
                return float(watch.results["forces_spread"].max())

        limits = self._limits()
        temperatures = np.linspace(*settings.temperatures(), count)
        pressures = np.linspace(*settings.pressures(), count)
        for k in range(count):
            rng = np.random.default_rng([settings.seed, number, part, k])
            cell = of.cells[(k + number) % len(of.cells)]
            npt = (k // len(of.cells) + number) % 2 == 1 and is_dense(cell) and of.has_stress
            pressure = float(pressures[rng.integers(count)]) if npt else None
            at = of.conditions(float(temperatures[k]), pressure, cell)
            start = rattled(cell, rng, settings.strain, settings.rattle)
            frames, _ = trajectory(start, calculator, at, rng, limits, spread_of)
            found += [frame.copy() for frame in frames] if drives else frames
        return found

    def new(self) -> list[ase.Atoms]:
        """Return frames of new trajectories, evenly spaced."""
        settings = self._of.settings
        given = 1, min(settings.trajectories, settings.new)
        frames = self.trajectories(*given, self._drives)
        if not frames and settings.driver != "student":  # it is driven away at once
            frames = self.trajectories(*given, False)
        places = np.linspace(0, len(frames) - 1, min(settings.new, len(frames)))
        return [frames[k] for k in sorted({int(place) for place in places.round()})]

    def chosen(self) -> list[ase.Atoms]:
        """Return the frames to label: of dynamics, and strained and rattled ones."""
        of, settings = self._of, self._of.settings
        frames = []
        if self.driver != "nobody":
            frames = self.trajectories(0, settings.trajectories, self._drives)
        rng = np.random.default_rng([settings.seed, self._number, 2])
        for k in range(_STRAINED * settings.batch):
            cell = of.cells[k % len(of.cells)]
            made = rattled(cell, rng, settings.strain, settings.rattle * rng.uniform(0.5, 4))
            if made.info["config_type"] == "dynamics":
                made.info["config_type"] = "strained"
            if closeness(made) >= Limits().closeness:
                frames.append(made)
        bare = [frame.copy() for frame in frames]
        known = of.frames("labels")
        if self._student is None:
            picked = choose(bare, known, settings.batch)
        else:
            spreads = [p.spread.forces.max() for p in predict(self._student, bare)]
            how = {"network": self._student, "spreads": spreads}
            picked = choose(bare, known, settings.batch, **how)
        return [frames[k] for k in picked]
