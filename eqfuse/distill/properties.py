"""Properties of a material by any calculator of ASE, for teacher and student alike."""

from collections.abc import Sequence

import ase
import numpy as np
from ase import units
from ase.eos import EquationOfState
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE

from eqfuse.data import neighbor_list

_MOVE = 0.01  # Å, of differences of forces
_STRAIN = 0.005
_VOLUMES = np.linspace(0.94, 1.06, 7)  # of that of the minimum
_REACH, _WIDTH = 6.0, 0.1  # Å
THZ = 1000 * units.fs / (2 * np.pi)
"""The frequency of an angular frequency in ASE's units, THz."""
BOUNDARY = {"100": (0.5, 0, 0), "010": (0, 0.5, 0), "001": (0, 0, 0.5), "111": (0.5, 0.5, 0.5)}
"""Points of the zone boundary, in reciprocal lattice vectors."""


def relaxed(atoms: ase.Atoms, calculator, *, cell: bool) -> ase.Atoms:
    """Return a copy with the calculator, whose atoms, and cell if asked for, are in a minimum."""
    atoms = atoms.copy()
    atoms.calc = calculator
    FIRE(FrechetCellFilter(atoms) if cell else atoms, logfile=None).run(fmax=0.001, steps=300)
    return atoms


def energy_volume(minimum: ase.Atoms) -> dict:
    """Return energies by volume, and a fit by Birch and Murnaghan.

    Args:
      minimum: a crystal with a calculator; its shape and scaled positions stay.
    Returns:
      volumes and volume, Å^3 per atom; energies, eV per atom; bulk_modulus, GPa.
    """
    volumes, energies = [], []
    for factor in _VOLUMES:
        atoms = minimum.copy()
        atoms.calc = minimum.calc
        atoms.set_cell(minimum.cell.array * factor ** (1 / 3), scale_atoms=True)
        volumes.append(atoms.get_volume() / len(atoms))
        energies.append(atoms.get_potential_energy() / len(atoms))
    volume, _, bulk = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
    known = {"volumes": volumes, "energies": energies, "volume": float(volume)}
    return known | {"bulk_modulus": float(bulk / units.GPa)}


def elastic_constants(minimum: ase.Atoms) -> np.ndarray:
    """Return the elastic constants [6, 6], GPa, in Voigt's order, with relaxed atoms.

    Args:
      minimum: a crystal with a calculator that has a stress, without stress.
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

    They are by differences of forces; of a crystal in a cell of twice its vectors, in which the
    points of `BOUNDARY` are exact. An imaginary one is negative.

    Args:
      minimum: with a calculator; its forces vanish.
    """
    repeat = np.where(minimum.pbc, 2, 1)
    large, count = minimum.repeat(repeat), len(minimum)
    large.calc = minimum.calc
    constants = np.zeros((count, 3, len(large), 3))
    for atom in range(count):
        for axis in range(3):
            for sign in (1, -1):
                large.positions[atom, axis] += sign * _MOVE
                constants[atom, axis] -= sign * large.get_forces() / (2 * _MOVE)
                large.positions[atom, axis] -= sign * _MOVE
    cells = np.stack(np.meshgrid(*map(np.arange, repeat), indexing="ij"), -1).reshape(-1, 3)
    constants = constants.reshape(count, 3, len(cells), count, 3)
    roots = np.sqrt(np.repeat(minimum.get_masses(), 3))
    points = {"Gamma": (0, 0, 0)} | (BOUNDARY if minimum.pbc.all() else {})
    found = {}
    for name, point in points.items():
        phases = np.exp(2j * np.pi * (cells @ np.array(point)))
        matrix = np.einsum("aicbj,c->aibj", constants, phases).reshape(3 * count, -1)
        matrix = (matrix + matrix.conj().T) / 2 / np.outer(roots, roots)
        squares = np.linalg.eigvalsh(matrix)
        found[name] = np.sign(squares) * np.sqrt(np.abs(squares)) * THZ
    return found


def radial_distribution(frames: Sequence[ase.Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Return distances up to 6 Å, and g(r) of all atoms; pairs of an atom by Å without a cell."""
    edges = np.arange(0, _REACH + _WIDTH / 2, _WIDTH)
    total = np.zeros(len(edges) - 1)
    for atoms in frames:
        given = atoms.positions, atoms.cell.array, atoms.pbc, _REACH
        senders, receivers, shifts = neighbor_list(*given)
        vectors = atoms.positions[senders] + shifts - atoms.positions[receivers]
        counts = np.histogram(np.linalg.norm(vectors, axis=1), edges)[0] / len(atoms)
        total += counts * (atoms.get_volume() / len(atoms) if atoms.pbc.all() else 1.0)
    shells = 4 / 3 * np.pi * np.diff(edges**3) if frames[0].pbc.all() else _WIDTH
    return edges[1:] - _WIDTH / 2, total / len(frames) / shells


def density(atoms: ase.Atoms) -> float:
    """Return the density of a periodic cell, g/cm^3."""
    return float(atoms.get_masses().sum() / atoms.get_volume() / units.mol * 1e24)
