"""Properties of a material by any calculator of ASE, for teacher and student alike."""

import tempfile
from collections.abc import Sequence

import ase
import numpy as np
from ase import units
from ase.eos import calculate_eos
from ase.filters import FrechetCellFilter
from ase.neighborlist import neighbor_list
from ase.optimize import FIRE
from ase.phonons import Phonons

_MOVE = 0.01  # Å, of differences of forces
_STRAIN = 0.005
_VOLUMES = 0.06  # of that of the minimum, to either side
_REACH, _WIDTH = 6.0, 0.1  # Å
_THZ = units._e / units._hplanck * 1e-12  # of eV
POINTS = {"Gamma": (0, 0, 0), "100": (0.5, 0, 0), "010": (0, 0.5, 0), "001": (0, 0, 0.5)}
POINTS |= {"111": (0.5, 0.5, 0.5)}
"""Gamma, and points of the zone boundary, in reciprocal lattice vectors."""


def relaxed(atoms: ase.Atoms, calculator, *, cell: bool) -> ase.Atoms:
    """Return a copy with the calculator, whose atoms, and cell if asked for, are in a minimum."""
    atoms = atoms.copy()
    atoms.calc = calculator
    FIRE(FrechetCellFilter(atoms) if cell else atoms, logfile=None).run(fmax=0.001, steps=300)
    return atoms


def energy_volume(minimum: ase.Atoms) -> dict:
    """Return energies (eV/atom) by volume (Å^3/atom), and a fit by Birch and Murnaghan (GPa).

    Args:
      minimum: a crystal with a calculator; its shape and scaled positions stay.
    """
    eos = calculate_eos(minimum, npoints=7, eps=_VOLUMES)
    eos.eos_string = "birchmurnaghan"
    volume, _, bulk = eos.fit()
    known = {"volume": volume / len(minimum), "bulk_modulus": bulk / units.GPa}
    return known | {"volumes": eos.v / len(minimum), "energies": eos.e / len(minimum)}


def elastic_constants(minimum: ase.Atoms) -> np.ndarray:
    """Return the elastic constants [6, 6], GPa, in Voigt's order, with relaxed atoms.

    Args:
      minimum: a crystal without stress, with a calculator that has a stress.
    """
    stresses = np.zeros((2, 6, 6))
    for k, (i, j) in enumerate([(0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1)]):
        for side, sign in enumerate((1, -1)):
            strain = np.zeros((3, 3))
            strain[i, j] += sign * _STRAIN / 2
            strain[j, i] += sign * _STRAIN / 2  # engineering: a shear is twice its element
            atoms = minimum.copy()
            atoms.set_cell(minimum.cell.array @ (np.eye(3) + strain), scale_atoms=True)
            stresses[side, k] = relaxed(atoms, minimum.calc, cell=False).get_stress()
    constants = (stresses[0] - stresses[1]) / (2 * _STRAIN) / units.GPa
    return (constants + constants.T) / 2


def frequencies(minimum: ase.Atoms) -> dict[str, np.ndarray]:
    """Return the frequencies at Gamma and, of a crystal, at points of the zone boundary, THz.

    They are those of `ase.phonons`, of a crystal in a cell of twice its vectors, in which `POINTS`
    are exact. An imaginary one is negative.

    Args:
      minimum: with a calculator; its forces vanish.
    """
    repeat, atoms = tuple(np.where(minimum.pbc, 2, 1).tolist()), minimum.copy()
    atoms.cell = atoms.cell.complete()
    points = {name: POINTS[name] for name in (POINTS if minimum.pbc.all() else ["Gamma"])}
    with tempfile.TemporaryDirectory() as folder:
        known = {"supercell": repeat, "delta": _MOVE, "name": f"{folder}/phonons"}
        phonons = Phonons(atoms, minimum.calc, **known)
        phonons.run()
        phonons.read(acoustic=False, symmetrize=1)
    found = _THZ * phonons.band_structure([*points.values()], verbose=False)
    return dict(zip(points, found, strict=True))


def radial_distribution(frames: Sequence[ase.Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Return distances up to 6 Å, and g(r) of all atoms; pairs of an atom by Å without a cell."""
    edges = np.arange(0, _REACH + _WIDTH / 2, _WIDTH)
    total, periodic = np.zeros(len(edges) - 1), frames[0].pbc.all()
    for atoms in frames:
        counts = np.histogram(neighbor_list("d", atoms, _REACH), edges)[0] / len(atoms)
        total += counts * (atoms.get_volume() / len(atoms) if periodic else 1.0)
    shells = 4 / 3 * np.pi * np.diff(edges**3) if periodic else _WIDTH
    return edges[1:] - _WIDTH / 2, total / len(frames) / shells


def density(atoms: ase.Atoms) -> float:
    """Return the density of a periodic cell, g/cm^3."""
    return float(atoms.get_masses().sum() / atoms.get_volume() / units.mol * 1e24)
