"""Frames of a material: dynamics within limits, strained and rattled cells, and defects."""

from collections.abc import Sequence
from typing import NamedTuple

import ase
import numpy as np
from ase import units
from ase.data import covalent_radii
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.velocitydistribution import thermalize_momenta
from ase.neighborlist import neighbor_list

from eqfuse.data import DataError
from eqfuse.distill.teacher import labelled

RATTLED = 8
"""One of so many labels is a strained and rattled cell."""
_VACUUM, _GAP = 10.0, 6.0  # Å: of a surface that is made, and that makes a cell no crystal
_THERMOSTAT_TIME, _PRESSURE_TIME = 100.0, 500.0  # fs


def closeness(atoms: ase.Atoms) -> float:
    """Return the smallest distance of two atoms over the sum of their covalent radii."""
    radii = covalent_radii[atoms.numbers]
    first, second, distances = neighbor_list("ijd", atoms, 4 * radii.max())
    return float((distances / (radii[first] + radii[second])).min(initial=np.inf))


def of_dynamics(frames: Sequence[ase.Atoms]) -> list[ase.Atoms]:
    """Return the frames of dynamics: no strained cells, nor those at which a student stopped."""
    return [a for a in frames if a.info.get("config_type") not in ("strained", "stopped")]


class Limits(NamedTuple):
    """The limits beyond which a trajectory is stopped."""

    closeness: float = 0.5  # see `closeness`
    force: float = 50.0  # eV/Å, of an atom
    spread: float = np.inf  # eV, of the energy of an atom
    volume: tuple[float, float] = (0.0, np.inf)  # Å^3 per atom, see `is_dense`

    @classmethod
    def of(cls, labels: Sequence[ase.Atoms], spread: float) -> "Limits":
        """Return the limits that labels support, given that of the spread.

        They are those of dynamics, where there is any; strained cells are farther off.
        """
        labels = of_dynamics(labels) or labels
        force = max(np.linalg.norm(a.get_forces(), axis=1).max() for a in labels)
        volumes = [a.get_volume() / len(a) for a in filter(is_dense, labels)]
        volume = 0.95 * min(volumes, default=0.0), 1.05 * max(volumes, default=np.inf)
        near = 0.9 * min(map(closeness, labels))
        return cls(near, max(1.5 * float(force), 5.0), spread, volume)

    def passed(self, frame: ase.Atoms, spreads: np.ndarray | None = None) -> str | None:
        """Return the limit that a frame with results, and spreads of its atoms, passes, or None."""
        force = np.linalg.norm(frame.get_forces(), axis=1).max()
        if not force <= self.force:
            return f"a force of {force:.3g} eV/Å"
        if not (near := closeness(frame)) >= self.closeness:
            return f"atoms at {near:.2f} of the sum of their covalent radii"
        if spreads is not None and not spreads.max() <= self.spread:
            return f"a spread of {spreads.max():.3g} eV of the energy of an atom"
        least, most = self.volume
        if is_dense(frame) and not least <= (volume := frame.get_volume() / len(frame)) <= most:
            return f"a volume of {volume:.3g} Å³ per atom"
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
    frames: int
    every: int  # steps between frames
    timestep: float  # fs
    checks: int = 1  # of the limits, from frame to frame


class Stop(NamedTuple):
    """Why a trajectory stopped, and where."""

    why: str
    frame: ase.Atoms  # which failed or passed a limit, without results
    failed: bool  # whether its calculator, or the dynamics, failed


def trajectory(
    atoms: ase.Atoms, calculator, at: Conditions, rng, limits: Limits, keep, spreads_of=None
) -> Stop | None:
    """Run dynamics; return why they were stopped, or None.

    Args:
      atoms: the first frame, whose velocities are drawn.
      calculator: which drives them.
      at: the conditions.
      rng: of velocities and noise.
      limits: a frame beyond one is left out, and is the last.
      keep: function that is called with each frame, which has the results of the calculator.
      spreads_of: function of a frame to the spreads of the energies of its atoms, eV; or None.
    """
    atoms = atoms.copy()
    atoms.calc = calculator
    kelvin = {"temperature_K": at.temperature}
    thermalize_momenta(atoms, rng=rng, **kelvin)
    constant = {"T_tau": _THERMOSTAT_TIME * units.fs, "rng": rng, **kelvin}
    if at.pressure is not None:
        constant |= {"externalstress": -at.pressure * units.GPa, "hydrostatic": True}
        constant["P_tau"] = _PRESSURE_TIME * units.fs
        constant["P_mass"] = (_PRESSURE_TIME / 6.64 * len(atoms) ** (1 / 6)) ** 2  # ASE's rule
    dynamics = None
    for number in range(1, at.frames * at.checks + 1):
        why, failed = None, False
        try:
            dynamics = dynamics or LangevinBAOAB(atoms, at.timestep * units.fs, **constant)
            dynamics.run(at.every // at.checks)
            frame = labelled(atoms, calculator)
            why = limits.passed(frame, spreads_of and spreads_of(frame))
        except Exception as error:  # of any calculator, and of atoms that flew apart
            why, failed = f"{type(error).__name__}: {error}".splitlines()[0], True
        frame = atoms.copy() if why else frame
        del frame.arrays["momenta"]
        frame.info["temperature_k"] = at.temperature
        if why:
            return Stop(why, frame, failed)
        if number % at.checks == 0:
            keep(frame)
    return None


def timestep_of(atoms: ase.Atoms) -> float:
    """Return a usual time step, fs: 0.5 with hydrogen, 1 with elements up to neon, 2 beyond."""
    lightest = atoms.numbers.min()
    return 0.5 if lightest == 1 else 1.0 if lightest <= 10 else 2.0


def conditions(of, name: str, number: int, k: int) -> tuple[int, Conditions]:
    """Return the cell and the conditions of a trajectory of an `eqfuse.distill.rounds` round.

    Temperatures are over the range. Every other trajectory of a crystal or a liquid is at a
    pressure. New trajectories are half as long as those of labels, and the student's own twice.
    """
    settings, which = of.settings, (k + number) % len(of.cells)
    cell, (low, high) = of.cells[which], settings.temperatures()
    count, every, checks = settings.trajectories, settings.every, 1
    frames = -(-(settings.batch - settings.batch // RATTLED) // count)
    if name != "labels":
        long = frames * (1 if name == "new" else 4) / 2
        frames = -(-settings.new // count)
        checks = max(1, round(long / frames))
    pressure = None
    if (k // len(of.cells) + number) % 2 and is_dense(cell) and of.has_stress:
        least, most = settings.pressures()
        pressure = least + (most - least) * ((k + number) % 3) / 2
    temperature = low + (high - low) * k / max(count - 1, 1)
    timestep = settings.timestep or timestep_of(cell)
    return which, Conditions(temperature, pressure, frames, every * checks, timestep, checks)
