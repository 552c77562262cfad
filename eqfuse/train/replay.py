"""Structures of a network's elements that are made at random, and files of replayed frames."""

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.collections import g2
from ase.data import chemical_symbols, covalent_radii
from ase.spacegroup import crystal
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Structure
from eqfuse.data.neighbors import require_apart
from eqfuse.data.readers.ase_files import as_atoms, of_atoms
from eqfuse.runs.files import whole

_LEAST_ATOMS = 5  # of a cell
_CRYSTALS = (  # space group, sites, and the shortest distance of the first two in units of a
    (225, [(0, 0, 0)], 0.707),
    (229, [(0, 0, 0)], 0.866),
    (227, [(0, 0, 0)], 0.433),
    (225, [(0, 0, 0), (0.5, 0.5, 0.5)], 0.5),
    (221, [(0, 0, 0), (0.5, 0.5, 0.5)], 0.866),
    (216, [(0, 0, 0), (0.25, 0.25, 0.25)], 0.433),
    (225, [(0, 0, 0), (0.25, 0.25, 0.25)], 0.433),
    (221, [(0, 0, 0), (0.5, 0, 0), (0.5, 0.5, 0.5)], 0.5),
)


def structures_of(elements: Sequence[int], near: set[int], count: int, seed: int):
    """Return crystals and molecules of elements, strained and displaced at random, unlabelled.

    Crystals have the structures of elements, of salts and of a perovskite, at 0.95 to 1.2 times the
    distances of covalent radii. Their elements are equally probable, but in half of them the first
    is one of those of the data, `near`. Molecules are those of the G2 set that have these elements
    only; they are half of all, where there are ten or more.
    """
    rng = np.random.Generator(np.random.PCG64((seed, 17)))
    elements, symbols = np.array(elements), {chemical_symbols[z] for z in elements}
    molecules = [name for name in g2.names if {*g2[name].symbols} <= symbols and len(g2[name]) > 1]
    found = []
    for k in range(count):
        if k % 2 and len(molecules) >= 10:
            atoms = molecule(molecules[rng.integers(len(molecules))])
        else:
            atoms = _crystal(elements, near, rng)
        atoms.positions += rng.normal(scale=rng.uniform(0.01, 0.12), size=atoms.positions.shape)
        with contextlib.suppress(DataError):  # of atoms that overlap
            require_apart(structure := of_atoms(atoms))
            found.append(structure)
    return found


def _crystal(elements: np.ndarray, near: set[int], rng: np.random.Generator) -> ase.Atoms:
    group, sites, shortest = _CRYSTALS[rng.integers(len(_CRYSTALS))]
    numbers = rng.choice(elements, len(sites))
    if rng.random() < 0.5:
        numbers[0] = rng.choice(sorted(near))
    side = 2 * covalent_radii[numbers[:2]].mean() * rng.uniform(0.95, 1.2) / shortest
    with warnings.catch_warnings(action="ignore"):  # of the setting of a space group
        atoms = crystal(numbers, sites, spacegroup=group, cellpar=[side] * 3 + [90] * 3)
    axis = 0
    while len(atoms) < _LEAST_ATOMS:
        atoms, axis = atoms.repeat([2 if axis == j else 1 for j in range(3)]), axis + 1
    strain = rng.normal(scale=0.02, size=(3, 3))
    atoms.set_cell(atoms.cell @ (np.eye(3) + (strain + strain.T) / 2), scale_atoms=True)
    return atoms


def farthest(features: np.ndarray, count: int) -> list[int]:
    """Return the numbers of rows [n, k], each the farthest from those before; the first is 0."""
    chosen, distances = [], np.full(len(features), np.inf)
    while len(chosen) < min(count, len(features)):
        chosen.append(int(distances.argmax()))
        own = np.linalg.norm(features - features[chosen[-1]], axis=1)
        distances = np.minimum(distances, own)
    return chosen


def write_frames(path, frames: Sequence[Structure]):
    """Write labelled frames to a file that `eqfuse.data.read_structures` reads to the last bit.

    It has no weights.
    """
    written, path = [], Path(path)
    for s in frames:
        atoms = as_atoms(s)
        atoms.info = {} if s.hessian is None else {"hessian": s.hessian}
        stress = None if s.stress is None else full_3x3_to_voigt_6_stress(s.stress)
        labels = {"energy": s.energy, "forces": s.forces, "stress": stress}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        written.append(atoms)
    with whole(path, path.with_name(f"{path.name}.part")) as part:
        ase.io.write(part, written, format="traj")
