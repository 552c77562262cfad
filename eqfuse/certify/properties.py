"""Properties of a material by any calculator of ASE, and the time of its steps."""

import tempfile
import time
from collections.abc import Sequence

import ase
import numpy as np
from ase import units
from ase.data import covalent_radii
from ase.eos import calculate_eos
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE
from ase.phonons import Phonons

from eqfuse.certify.questions import STRAINS, strained
from eqfuse.data import neighbor_list

_CALLS, _MOST_SECONDS = 9, 20.0
_GAP = 6.0  # Å, of vacuum
_MOVE = 0.01  # Å, of differences of forces
_STRAIN = 0.005
_VOLUMES = 0.06  # of that of the minimum, to either side
_THZ = units._e / units._hplanck * 1e-12  # of eV
POINTS = {"Gamma": (0, 0, 0), "100": (0.5, 0, 0), "010": (0, 0.5, 0), "001": (0, 0, 0.5)}
POINTS |= {"111": (0.5, 0.5, 0.5)}
"""Gamma, and points of the zone boundary, in reciprocal lattice vectors."""


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


def closeness(frames: Sequence[ase.Atoms]) -> dict[tuple[int, int], float]:
    """Return the smallest distance of atoms of each two elements, by their atomic numbers.

    It is over the sum of their covalent radii, and below 2: others are not bonded.
    """
    found = {}
    for atoms in frames:
        radii, place = covalent_radii[atoms.numbers], atoms.positions
        periodic, reach = (atoms.cell.array, atoms.pbc), 4 * radii.max(initial=0.1)
        i, j, shifts = neighbor_list(place, *periodic, reach, least=0.0)
        relative = np.linalg.norm(place[i] + shifts - place[j], axis=1) / (radii[i] + radii[j])
        bonded = relative < 2
        ends = zip(*(atoms.numbers[k[bonded]].tolist() for k in (i, j)), strict=True)
        for pair, near in zip(ends, relative[bonded].tolist(), strict=True):
            found[pair] = min(near, found.get(pair, 2.0))
    return found


def seconds(calculators: Sequence, atoms: ase.Atoms) -> list[float]:
    """Return the time of a step of each calculator, s: the fastest of up to nine calls in turns."""
    rng, frame, times = np.random.default_rng(0), atoms.copy(), []
    while len(times) < 2 * len(calculators) or (
        sum(times) < _MOST_SECONDS and len(times) <= _CALLS * len(calculators)
    ):
        frame.positions += 0.01 * rng.normal(size=frame.positions.shape)
        for calculator in calculators:
            start = time.perf_counter()
            calculator.get_forces(frame)
            times.append(time.perf_counter() - start)
    return np.reshape(times, (-1, len(calculators)))[1:].min(axis=0).tolist()  # the first compiles


def relaxed(atoms: ase.Atoms, calculator, *, cell: bool, steps: int = 300) -> ase.Atoms:
    """Return a copy with the calculator, moved to a minimum by so many steps at most.

    Its atoms move, and its cell if asked for.
    """
    atoms = atoms.copy()
    atoms.calc = calculator
    FIRE(FrechetCellFilter(atoms) if cell else atoms, logfile=None).run(fmax=0.001, steps=steps)
    return atoms


def of_minimum(atoms: ase.Atoms, calculator, names: Sequence[str]) -> tuple[dict, dict]:
    """Return properties of the nearest minimum: "volume", "elastic" and "phonons", if named.

    The cell of what is not dense does not relax, and it has frequencies only.

    Returns:
      {name, unit: number}, {(title, x axis, y axis): (x, y)}.
    """
    crystal, numbers, curves = is_dense(atoms), {}, {}
    minimum = relaxed(atoms, calculator, cell=crystal)
    if crystal and "volume" in names:
        numbers, volumes, energies = energy_volume(minimum)
        title = "Energy by volume", "volume (Å³/atom)", "energy (eV/atom)"
        curves[title] = volumes, energies - energies.min()
    if crystal and "elastic" in names:
        c = elastic_constants(minimum)
        for i, j in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2), (3, 3), (4, 4), (5, 5)):
            numbers[f"C{i + 1}{j + 1}, GPa"] = c[i, j]
    for point, values in frequencies(minimum).items() if "phonons" in names else ():
        numbers[f"lowest frequency at {point}, THz"] = values[0]
        numbers[f"highest frequency at {point}, THz"] = values[-1]
        title = f"Frequencies at {point}", "in order", "frequency (THz)"
        curves[title] = np.arange(1, len(values) + 1), values
    return numbers, curves


def energy_volume(minimum: ase.Atoms) -> tuple[dict, np.ndarray, np.ndarray]:
    """Return a fit by Birch and Murnaghan, volumes (Å^3/atom) and energies (eV/atom).

    Args:
      minimum: a crystal with a calculator; its shape and scaled positions stay.
    """
    eos = calculate_eos(minimum, npoints=7, eps=_VOLUMES)
    eos.eos_string = "birchmurnaghan"
    volume, _, bulk = eos.fit()
    fit = {"volume, Å³/atom": volume / len(minimum), "bulk modulus, GPa": bulk / units.GPa}
    return fit, np.array(eos.v) / len(minimum), np.array(eos.e) / len(minimum)


def under_strain(atoms: ase.Atoms, k: int, strain: float) -> ase.Atoms:
    """Return a copy under the k-th of `STRAINS`, times a number."""
    return strained(atoms, strain * STRAINS[k])


def elastic_constants(minimum: ase.Atoms) -> np.ndarray:
    """Return the elastic constants [6, 6], GPa, in Voigt's order, with relaxed atoms.

    Args:
      minimum: a crystal without stress, with a calculator that has a stress.
    """
    stresses = np.zeros((2, 6, 6))
    for side, sign in enumerate((1, -1)):
        for k in range(6):
            atoms = under_strain(minimum, k, sign * _STRAIN)
            stresses[side, k] = relaxed(atoms, minimum.calc, cell=False).get_stress()
    constants = (stresses[0] - stresses[1]) / (2 * _STRAIN) / units.GPa
    return (constants + constants.T) / 2


def frequencies(minimum: ase.Atoms) -> dict[str, np.ndarray]:
    """Return the frequencies at Gamma and, of a crystal, at points of the zone boundary, THz.

    They are those of `ase.phonons` in a cell of twice the vectors, in which `POINTS` are exact. An
    imaginary one is negative.
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


def density(atoms: ase.Atoms) -> float:
    """Return the density of a periodic cell, g/cm^3."""
    return float(atoms.get_masses().sum() / atoms.get_volume() / units.mol * 1e24)
