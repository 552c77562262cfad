"""Compare a converted network with the program that it comes from, or with itself."""

import subprocess
import sys
import tempfile
from pathlib import Path

import ase
import numpy as np

from eqfuse.convert.converted import ConvertError
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.examples import example_structures

_PACKAGES = {"mace": "mace-torch", "sevennet": "sevenn", "nequix": "nequix", "nequip": "nequip"}
STEP = 1e-4
"""Å, by which atoms are moved for differences of the energy."""


def compare(program: str, path, run, *, choice=None, python: str = sys.executable) -> str:
    """Return a table of the differences between the program's results and the run's, in float64.

    The program is run by the interpreter `python`; a ConvertError has its last words.
    """
    calculator = Calculator(run, dtype="float64", radial="network")  # as the program computes
    structures = example_structures(calculator.species)
    theirs = original_results(program, path, structures, choice=choice, python=python)
    title = f"{theirs['version']} and eqfuse in float64: largest differences, relative"
    quantities, rows = ("energy", "forces", "stress"), {}
    for k, atoms in enumerate(structures):
        ours = results_of(calculator, atoms)
        errors = [relative_error(ours[q], theirs[f"{k}_{q}"]) for q in quantities]
        rows[atoms.get_chemical_formula()] = errors
    return _table(title, quantities, rows)


def original_results(program: str, path, structures, *, choice=None, python=sys.executable) -> dict:
    """Return energies, forces and stress of structures by the program itself, run by `python`."""
    script = Path(__file__).with_name("original.py")
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "structures.npz", Path(folder) / "results.npz"
        np.savez(given, **to_arrays(structures))
        command = [python, str(script), program, str(Path(path).resolve()), str(given), str(out)]
        done = subprocess.run(
            command + ([choice] if choice else []), capture_output=True, text=True, check=False
        )
        if done.returncode or not out.exists():
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise ConvertError(
                f"{_PACKAGES[program]} cannot be run by {python}: {last}; give the interpreter of "
                "an environment that has it by --python"
            )
        with np.load(out) as arrays:
            return dict(arrays)


def check_alone(run) -> str:
    """Return a table of what can be checked without the program: invariance, and forces."""
    calculator = Calculator(run, dtype="float64")
    title = "without the program: differences in float64, relative to the largest force"
    rows = {}
    handed = calculator.network.metadata["model_fields"].get("so3")  # mirrors are not its symmetry
    for atoms in example_structures(calculator.species):
        mirrored = np.nan if handed else _turned(calculator, atoms, -1)
        errors = [_turned(calculator, atoms, 1), mirrored, _slopes(calculator, atoms)]
        rows[atoms.get_chemical_formula()] = errors
    return _table(title, ("rotated", "mirrored", "slopes"), rows)


def _table(title: str, columns, rows: dict[str, list[float]]) -> str:
    lines = [title, f"{'structure':<24}" + "".join(f"{name:>10}" for name in columns)]
    for formula, errors in rows.items():
        numbers = "".join(f"{'-' if np.isnan(e) else format(e, '.0e'):>10}" for e in errors)
        lines.append(f"{formula:<24}{numbers}")
    return "\n".join(lines)


def results_of(calculator, atoms: ase.Atoms) -> dict:
    """Return energy, forces and stress (NaN without a cell) of atoms by a calculator."""
    atoms = atoms.copy()
    atoms.calc = calculator
    stress = np.full((3, 3), np.nan)
    if atoms.pbc.all():
        stress = atoms.get_stress(voigt=False)
    return {
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces(),
        "stress": stress,
    }


def relative_error(ours, theirs) -> float:
    """Return the largest difference, relative to the largest of theirs; NaN if they have none."""
    return float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))


def _turned(calculator, atoms, sign: int) -> float:
    """Return the error of forces that should turn with the structure, mirrored for sign -1."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    rotation *= sign * np.sign(np.linalg.det(rotation))
    turned = atoms.copy()
    turned.set_cell(atoms.cell.array @ rotation)
    turned.positions = atoms.positions @ rotation
    forces, others = (results_of(calculator, a)["forces"] for a in (atoms, turned))
    return relative_error(others, forces @ rotation)


def _slopes(calculator, atoms) -> float:
    """Return the difference of the force on the first atom from the slope of the energy."""
    expected = results_of(calculator, atoms)["forces"]
    slopes = np.zeros(3)
    for axis in range(3):
        energies = []
        for step in (STEP, -STEP):
            moved = atoms.copy()
            moved.positions[0, axis] += step
            energies.append(results_of(calculator, moved)["energy"])
        slopes[axis] = (energies[1] - energies[0]) / (2 * STEP)
    return float(np.max(np.abs(slopes - expected[0])) / np.max(np.abs(expected)))


def to_arrays(structures: list[ase.Atoms]) -> dict[str, np.ndarray]:
    """Return structures as arrays, which `eqfuse/convert/original.py` reads."""
    arrays = {"count": np.array(len(structures))}
    for k, atoms in enumerate(structures):
        arrays |= {
            f"{k}_numbers": atoms.numbers,
            f"{k}_positions": atoms.positions,
            f"{k}_cell": atoms.cell.array,
            f"{k}_pbc": atoms.pbc,
        }
    return arrays
