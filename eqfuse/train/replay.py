"""Structures of a network's elements: frames of its past, and what fine-tuning moved elsewhere."""

import contextlib
import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.collections import g2
from ase.data import chemical_symbols, covalent_radii
from ase.spacegroup import crystal
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Structure
from eqfuse.data.error_table import UNITS
from eqfuse.data.neighbors import require_apart
from eqfuse.data.readers.ase_files import of_atoms
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
_SOLIDS = {  # whose lattice constants are compared: structure, and about what they are, Å
    "MgO": ("rocksalt", 4.21),
    "NaCl": ("rocksalt", 5.64),
    "Si": ("diamond", 5.43),
    "Al": ("fcc", 4.05),
    "Cu": ("fcc", 3.61),
}
_SIDES = np.linspace(0.95, 1.05, 9)  # of these, at which energies are computed


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
    """Return a strained crystal of `structures_of`."""
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
    """Write labelled frames to a file that `eqfuse.data.read_structures` reads to the last bit."""
    written, path = [], Path(path)
    for s in frames:
        atoms = ase.Atoms(s.numbers, s.positions, cell=s.cell, pbc=s.pbc)
        stress = None if s.stress is None else full_3x3_to_voigt_6_stress(s.stress)
        labels = {"energy": s.energy, "forces": s.forces, "stress": stress}
        atoms.calc = SinglePointCalculator(atoms, **labels)
        written.append(atoms)
    with whole(path, path.with_name(f"{path.name}.part")) as part:
        ase.io.write(part, written, format="traj")


def moved(tuning, before, after) -> list[dict]:
    """Return what a training moved in structures that it did not see, as rows of a table.

    Args:
      tuning: `eqfuse.train.tuning.Tuning`, whose seed is that of the structures.
      before: variables of the network before it.
      after: those afterwards.
    Returns:
      rows with `structures`, `number`, `energy_mev_per_atom` and `forces_mev_per_a` (means of the
      absolute changes) and `of_forces_mev_per_a` (mean absolute forces before); and for each solid
      its change of the energy, and `lattice_before_a` and `lattice_after_a`.
    """
    elements = tuning.past.species
    made = structures_of(elements, tuning.data, 128, tuning.config.seed + 1)
    frames, solids = tuning.label(made, before), {}
    for name, (kind, side) in _SOLIDS.items():
        cells = [of_atoms(bulk(name, kind, a * side, cubic=True)) for a in _SIDES]
        if {*cells[0].numbers.tolist()} <= {*elements}:
            solids[name] = cells
    samples = tuning.samples([*frames, *itertools.chain(*solids.values())])
    found = [tuning.predicted(samples, params) for params in (before, after)]
    energies = np.array([[one.energy for one in of_one] for of_one in found])
    changes = 1e3 * (energies[1] - energies[0]) / samples.sizes[:, 0]  # meV/atom
    groups = {"crystals with elements of the data": [], "other crystals": [], "molecules": []}
    near, other, molecules = groups.values()
    for number, frame in enumerate(frames):
        is_near = bool(tuning.data & {*frame.numbers.tolist()})
        (molecules if not frame.pbc.any() else near if is_near else other).append(number)
    rows = []
    for name, group in groups.items():
        if group:
            forces = [1e3 * np.concatenate([one[k].forces for k in group]) for one in found]
            sizes = {"energy": changes[group], "forces": forces[1] - forces[0]}
            row = {f"{n}_{UNITS[n]}": float(abs(size).mean()) for n, size in sizes.items()}
            row["of_forces_mev_per_a"] = float(abs(forces[0]).mean())
            rows.append({"structures": name, "number": len(group), **row})
    for first, name in zip(itertools.count(len(frames), len(_SIDES)), solids, strict=False):
        sides, row = _SOLIDS[name][1] * _SIDES, {"structures": name}
        row["energy_mev_per_atom"] = float(changes[first + len(_SIDES) // 2])
        for when, of_one in zip(("before", "after"), energies, strict=True):
            row[f"lattice_{when}_a"] = _lattice(sides, of_one[first : first + len(_SIDES)])
        rows.append(row)
    return rows


def _lattice(sides: np.ndarray, energies: np.ndarray) -> float:
    """Return the side of least energy, Å, of a polynomial of degree 4; NaN if there is none."""
    fit = np.polynomial.Polynomial.fit(sides, energies, 4)
    roots = fit.deriv().roots()
    real = roots[abs(roots.imag) < 1e-9].real
    real = real[(real > sides[0]) & (real < sides[-1]) & (fit.deriv(2)(real) > 0)]
    return float(min(real, key=fit)) if len(real) else float("nan")


def moved_text(rows: list[dict], head: str | None = None) -> str:
    """Return the rows of `moved` as text, which names the head of a network with several."""
    of_head = f" by the head {head}" if head else ""
    what = f"moved elsewhere{of_head}, in structures that were not trained on"
    lines = [f"{what} (mean absolute changes):", f"  {'':<38}{'energy':>14}{'forces':>18}"]
    for row in rows:
        name, numbers = row["structures"], list(row.values())[-2:]
        if "number" in row:
            name, text = f"{row['number']:>3} {name}", "{:.0f} of {:.0f} meV/Å".format(*numbers)
        elif np.isfinite(numbers).all():
            text = "a {:.3f} to {:.3f} Å".format(*numbers)
        else:
            text = "no lattice constant"  # of one of the two networks
        energy = f"{row['energy_mev_per_atom']:.1f} meV/atom"
        lines.append(f"  {name:<38}{energy:>14}{text:>22}")
    return "\n".join(lines)
