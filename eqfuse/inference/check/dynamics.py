"""How well dynamics with a network conserve the energy."""

import ase
import numpy as np
from ase import units
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet

from eqfuse.data import Structure

_WITH_HYDROGEN, _TIMESTEP = 0.25, 1.0  # fs


def drift(structure: Structure, calculator, steps: int, temperature: float) -> float:
    """Return the drift of the energy in NVE dynamics, meV/atom/ps; infinite if they diverge.

    It is the slope of a line through the energies after each step. Velocity Verlet with steps of
    1 fs, with hydrogen 0.25 fs, has an error of its own, which is not the network's: it conserves

        H + dt^2 (v V'' v / 12 - F^2 / (24 m))

    better than H by two orders of dt, so that this is the energy. A Hann window over the time
    keeps what oscillates from being taken for a slope.

    Args:
      structure: the atoms to start from.
      calculator: of ASE.
      steps: number of steps.
      temperature: K, of the initial velocities.
    References: Hairer, Lubich and Wanner 2003, Acta Numerica 12, 399 (modified energy).
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
