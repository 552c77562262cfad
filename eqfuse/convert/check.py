"""Compare a converted network with the program that it comes from."""

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


def compare(program: str, path, run, *, choice=None, python: str = sys.executable) -> str:
    """Return a table of the differences between the program's results and the run's, in float64.

    The program is run by the interpreter `python`; a ConvertError has its last words.
    """
    calculator = Calculator(run, dtype="float64", radial="network")  # as the program computes
    structures = example_structures(calculator.species)
    theirs = original_results(program, path, structures, choice=choice, python=python)
    title = f"{theirs['version']} and eqfuse in float64: largest differences, relative"
    quantities = ("energy", "forces", "stress")
    lines = [title, f"{'structure':<24}" + "".join(f"{name:>10}" for name in quantities)]
    for k, atoms in enumerate(structures):
        ours = results_of(calculator, atoms)
        errors = [relative_error(ours[q], theirs[f"{k}_{q}"]) for q in quantities]
        numbers = "".join(f"{'-' if np.isnan(e) else format(e, '.0e'):>10}" for e in errors)
        lines.append(f"{atoms.get_chemical_formula():<24}{numbers}")
    return "\n".join(lines)


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


def results_of(calculator, atoms: ase.Atoms) -> dict:
    """Return energy, forces and stress (NaN without a cell) of atoms by a calculator."""
    atoms = atoms.copy()
    atoms.calc = calculator
    stress = atoms.get_stress(voigt=False) if atoms.pbc.all() else np.full((3, 3), np.nan)
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    return {"energy": energy, "forces": forces, "stress": stress}


def relative_error(ours, theirs) -> float:
    """Return the largest difference, relative to the largest of theirs; NaN if they have none."""
    return float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))


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
