"""Dynamics of any calculator of ASE, at a temperature and at a constant volume or pressure."""

import ase
from ase import units
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.velocitydistribution import thermalize_momenta

_THERMOSTAT_TIME, _PRESSURE_TIME = 100.0, 500.0  # fs


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
