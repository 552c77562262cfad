"""Frames of a material: strained and rattled cells, defects, and dynamics within limits."""

from collections.abc import Sequence
from typing import NamedTuple

import ase
import numpy as np
from ase import units
from ase.data import covalent_radii
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.velocitydistribution import thermalize_momenta

from eqfuse.data import DataError, neighbor_list
from eqfuse.distill.teacher import labelled

DEFECTS = ("vacancy", "surface")
_VACUUM = 10.0  # Å, of a surface
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
