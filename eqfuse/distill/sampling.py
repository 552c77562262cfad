"""Frames of a material: dynamics within limits, strained and rattled cells, and defects."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import ase
import numpy as np
from ase import units
from ase.data import chemical_symbols
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.velocitydistribution import thermalize_momenta

from eqfuse.certify.properties import closeness, is_dense, relaxed, under_strain
from eqfuse.data import APERIODIC, HELD, DataError, remarks_of, unread_names
from eqfuse.distill.teacher import labelled
from eqfuse.inference import Network, predict

RATTLED = 8  # one of so many labels is a strained and rattled cell
STRAIN, RATTLE = 0.03, 0.05  # standard deviations of strains, and of moves of atoms, Å
APART = 40.0  # fs between labels of a trajectory: nearer ones are alike
_THERMOSTAT_TIME, _PRESSURE_TIME = 100.0, 500.0  # fs
_OTHERS = "strained", "minimum", "stopped"
_LEAST = 0.01  # Å, of random moves
_VACUUM = 10.0  # Å, of a surface
_STRAINS, _MOVES = (0.005, 0.02), (0.005, 0.03)  # at the minimum; Å
_FREE = 0.003  # eV/Å, forces under strain of atoms that are no centres of inversion
_STEPS = 30  # of a relaxation under strain: it takes about as long as two labels of dynamics
_VOLUMES = (0.94, 1.015, 1.06, 0.985, 1.03, 0.97, 1.09, 1.12)  # of that of the minimum


def of_dynamics(frames: Sequence[ase.Atoms]) -> list[ase.Atoms]:
    """Return the frames of dynamics: no made cells, nor those at which a student stopped."""
    return [a for a in frames if a.info.get("config_type") not in _OTHERS]


def too_near(atoms: ase.Atoms, least: dict | None, factor: float = 1.0) -> str:
    """Return which atoms are nearer than in a `closeness` times a factor (None: at half), or ""."""
    for ends, near in closeness([atoms]).items():
        if near < (0.5 if least is None else factor * least.get(ends, 2.0)):
            names = " and ".join(chemical_symbols[z] for z in ends)
            return f"{names} at {near:.2f} of the sum of their covalent radii"
    return ""


class Limits(NamedTuple):
    """The limits beyond which a trajectory is stopped."""

    closeness: dict | None = None  # of labels
    force: float = 50.0  # eV/Å, of an atom
    volume: tuple[float, float] = (0.0, np.inf)  # Å^3 per atom, see `is_dense`
    network: Network | None = None  # of a student, whose spread has a limit

    @classmethod
    def of(cls, labels: Sequence[ase.Atoms], network: Network | None = None) -> "Limits":
        """Return the limits that labels support; those of dynamics, where there are any."""
        labels = of_dynamics(labels) or labels
        force = max(np.linalg.norm(a.get_forces(), axis=1).max() for a in labels)
        volumes = [a.get_volume() / len(a) for a in filter(is_dense, labels)]
        volume = 0.95 * min(volumes, default=0.0), 1.05 * max(volumes, default=np.inf)
        return cls(closeness(labels), max(1.5 * force, 5.0), volume, network)

    def passed(self, frame: ase.Atoms) -> str:
        """Return the limit that a frame with results passes, or ""."""
        force = np.linalg.norm(frame.get_forces(), axis=1).max()
        if not force <= self.force:
            return f"a force of {force:.3g} eV/Å"
        if near := too_near(frame, self.closeness, 0.9):
            return near
        if self.network is not None:
            spread = predict(self.network, [frame])[0].spread.energies.max()
            if not spread <= self.network.uncertainty["limit"]:
                return f"a spread of {spread:.3g} eV of the energy of an atom"
        volume = frame.get_volume() / len(frame) if is_dense(frame) else self.volume[0]
        ok = self.volume[0] <= volume <= self.volume[1]
        return "" if ok else f"a volume of {volume:.3g} Å³ per atom"


def not_sampled(starts: Sequence[ase.Atoms]) -> str:
    """Return the names of what starts have, and `cells_of` them have not."""
    found = []
    for atoms in starts:
        has = ("masses", atoms.has("masses")), ("velocities", atoms.has("momenta"))
        found += [name for name, is_there in (*has, ("constraints", atoms.constraints)) if is_there]
        found += [n for what in ("velocities", "momenta", HELD) for n in unread_names(atoms, what)]
        found += [name for name in remarks_of(atoms) if name != APERIODIC]
    return ", ".join(dict.fromkeys(found))


def cells_of(starts: Sequence[ase.Atoms], atoms: int, defects=(), seed: int = 0):
    """Return the structures to sample: those given, larger, and with defects.

    Cells are doubled along their shortest periodic vector while they have at most `atoms` atoms.
    A vacancy is without a random atom; a surface has vacuum along a random periodic vector.
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
                what = f"{cell.get_chemical_formula()} is not periodic in three directions"
                raise DataError(f"defects=surface needs a crystal, and {what}; leave it out")
            cells.append(made := cell.copy())
            made.info["config_type"] = name
            if name == "vacancy":
                del made[int(rng.integers(len(made)))]
            else:
                made.center(vacuum=_VACUUM / 2, axis=int(rng.integers(3)))
    return cells


def rattled(atoms: ase.Atoms, rng, strain: float, distance: float) -> ase.Atoms:
    """Return a copy with a random strain along periodic vectors, and atoms moved at random.

    The strain is the standard deviation of its elements, the distance (Å) that of coordinates.
    """
    made, lengths = atoms.copy(), np.where(atoms.pbc, atoms.cell.lengths(), 1.0)
    change = strain * rng.normal(size=(3, 3)) * np.outer(atoms.pbc, atoms.pbc)
    cell = (np.eye(3) + change * lengths[:, None] / lengths) @ atoms.cell.complete().array
    made.set_cell(np.where(atoms.cell.any(axis=1)[:, None], cell, 0.0), scale_atoms=True)
    made.positions += distance * rng.normal(size=made.positions.shape)
    return made


def strained(cell: ase.Atoms, rng, least: dict | None) -> ase.Atoms:
    """Return a strained and rattled cell whose atoms are not nearer than in a `closeness`."""
    made, size = None, RATTLE * rng.uniform(0.5, 4)  # of a stiff bond, a move has a huge force
    while made is None or (too_near(made, least) and size > _LEAST):
        made, size = rattled(cell, rng, STRAIN, size), size / 2
    made.info["config_type"] = "strained"
    return made


def at_minimum(start: ase.Atoms, atoms: int, teacher, rng) -> Iterator[ase.Atoms]:
    """Yield cells near the minimum of a crystal, without end, which have its second derivatives.

    In turns: one under a strain of an elastic constant; another of which the atoms relax, unless
    no strain moves them; and one of another volume, or a larger one, see `cells_of`, whose atoms
    are moved. Where no strain moves atoms, each turn has moved ones instead.
    """
    minimum, volumes = relaxed(start, teacher, cell=True), itertools.cycle(_VOLUMES)
    minimum.info = {"config_type": "minimum"}
    [large] = cells_of([minimum], atoms)
    large.info = dict(minimum.info)
    skewed = functools.reduce(lambda made, k: under_strain(made, k, 0.01), range(6), minimum)
    is_free = np.abs(labelled(skewed, teacher).get_forces()).max() > _FREE
    for k in itertools.count():
        for relax in (False, True)[: 1 + is_free]:
            made = under_strain(minimum, k % 6, rng.uniform(*_STRAINS) * (-1) ** (k // 6))
            yield relaxed(made, teacher, cell=False, steps=_STEPS).copy() if relax else made
        if k % 2 or not is_free:
            yield rattled(large, rng, 0.0, rng.uniform(*_MOVES))
        if k % 2 == 0:
            made = minimum.copy()
            made.set_cell(minimum.cell.array * next(volumes) ** (1 / 3), scale_atoms=True)
            yield made


def continued(cell: ase.Atoms, last: ase.Atoms) -> ase.Atoms:
    """Return a cell with the atoms of a frame and, if it is dense, its volume; not its shape."""
    made = last.copy()
    made.info = dict(cell.info)
    scale = (last.cell.volume / cell.cell.volume) ** (1 / 3) if is_dense(last) else 1.0
    made.set_cell(scale * cell.cell.array, scale_atoms=cell.cell.rank == 3)
    return made


def langevin(atoms: ase.Atoms, temperature: float, pressure: float | None, timestep: float, rng):
    """Return ASE's dynamics of atoms with a calculator, whose velocities are drawn.

    Args:
      temperature: K.
      pressure: GPa, at which the cell keeps its shape; None at constant volume.
      timestep: fs.
      rng: of velocities and noise.
    """
    kelvin = {"temperature_K": temperature}
    thermalize_momenta(atoms, rng=rng, **kelvin)
    constant = {"T_tau": _THERMOSTAT_TIME * units.fs, "rng": rng, **kelvin}
    if pressure is not None:
        constant |= {"externalstress": -pressure * units.GPa, "hydrostatic": True}
        constant["P_tau"] = _PRESSURE_TIME * units.fs
        constant["P_mass"] = (_PRESSURE_TIME / 6.64 * len(atoms) ** (1 / 6)) ** 2  # ASE's rule
    return LangevinBAOAB(atoms, timestep * units.fs, **constant)


def timestep_of(atoms: ase.Atoms) -> float:
    """Return a usual time step, fs: 0.5 with hydrogen, 1 with elements up to neon, 2 beyond."""
    lightest = atoms.numbers.min()
    return 0.5 if lightest == 1 else 1.0 if lightest <= 10 else 2.0


class Conditions(NamedTuple):
    """The conditions of a trajectory."""

    temperature: float  # K
    pressure: float | None  # GPa; None at constant volume
    frames: int
    every: int  # steps between frames
    timestep: float  # fs
    checks: int = 1  # of the limits, from frame to frame


def conditions(of, name: str, number: int, k: int) -> tuple[int, Conditions]:
    """Return the cell and the conditions of a trajectory of an `eqfuse.distill.rounds` round.

    Crystals and liquids are at a pressure in the first round, so that later ones have their volume,
    then in every other trajectory. New ones are half as long as those of labels, own ones twice.
    """
    settings, which, count = of.settings, (k + number) % len(of.cells), of.settings.trajectories
    driven = of.batch - of.batch // RATTLED
    cell, (low, high), (least, most) = of.cells[which], settings.kelvin, settings.gpa
    frames, checks = max((driven - of.curved(number)) // count, 1), 1
    if name != "labels":
        long, frames = driven / count * (1 if name == "new" else 4) / 2, -(-settings.new // count)
        checks = max(1, round(long / frames))
    pressure, turn = None, k // len(of.cells) + number
    if (number == 0 or turn % 2) and is_dense(cell) and of.has_stress:
        pressure = least + (most - least) * ((k + number) % 3) / 2
    temperature, step = low + (high - low) * k / max(count - 1, 1), timestep_of(cell)
    steps = checks * max(1, round(APART / step))
    return which, Conditions(temperature, pressure, frames, steps, step, checks)


def trajectory(
    atoms: ase.Atoms, calculator, at: Conditions, rng, limits: Limits
) -> Iterator[tuple[ase.Atoms, str, bool]]:
    """Run dynamics of a calculator from atoms, whose velocities are drawn.

    Yields:
      frames with results and "". If dynamics are stopped, the last frame has none; with it come the
      reason, such as a limit, and whether the calculator or the dynamics failed.
    """
    atoms, dynamics = atoms.copy(), None
    atoms.calc = calculator
    given = at.temperature, at.pressure, at.timestep
    for number in range(1, at.frames * at.checks + 1):
        failed = False
        try:
            dynamics = dynamics or langevin(atoms, *given, rng)
            dynamics.run(at.every // at.checks)
            frame = labelled(atoms, calculator)
            why = limits.passed(frame)
        except Exception as error:  # of any calculator, and of atoms that flew apart
            why, failed = f"{type(error).__name__}: {error}".splitlines()[0], True
        frame = atoms.copy() if why else frame
        frame.arrays.pop("momenta", None)
        frame.info["temperature_k"] = at.temperature
        if why or number % at.checks == 0:
            yield frame, why, failed
        if why:
            return
