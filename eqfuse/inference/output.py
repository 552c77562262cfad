"""Predictions as ASE's atoms, and files of them."""

import os
from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.formats import filetype, ioformats
from ase.stress import full_3x3_to_voigt_6_stress

from eqfuse.data import DataError, Structure
from eqfuse.inference.predict import Predicted

_EXTXYZ = (".xyz", ".extxyz")


def atoms_of(structure: Structure, predicted: Predicted) -> ase.Atoms:
    """Return a structure with what is predicted for it, as files have it.

    The results of its calculator are energy, energies, forces and stress (six numbers, in ASE's
    order). Labels that the structure has are `reference_energy`, `reference_forces` and
    `reference_stress`. The spread of a committee is `energy_spread`, `energies_spread`,
    `forces_spread` and `stress_spread`, see `eqfuse.inference.predicted.Spread`.
    """
    atoms = ase.Atoms(
        structure.numbers, structure.positions, cell=structure.cell, pbc=structure.pbc
    )
    if structure.energy is not None:
        atoms.info["reference_energy"] = structure.energy
    if structure.forces is not None:
        atoms.arrays["reference_forces"] = structure.forces
    if structure.stress is not None:
        atoms.info["reference_stress"] = structure.stress
    if structure.config_type is not None:
        atoms.info["config_type"] = structure.config_type
    results = {"energy": predicted.energy}
    results |= {"energies": predicted.energies, "forces": predicted.forces}
    if predicted.stress is not None:
        results["stress"] = full_3x3_to_voigt_6_stress(predicted.stress)
    if predicted.spread is not None:
        atoms.info["energy_spread"] = predicted.spread.energy
        atoms.arrays["energies_spread"] = predicted.spread.energies
        atoms.arrays["forces_spread"] = predicted.spread.forces
        if predicted.spread.stress is not None:
            atoms.info["stress_spread"] = full_3x3_to_voigt_6_stress(predicted.spread.stress)
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def format_of(path: str | os.PathLike, frames: int) -> str:
    """Return ASE's name of the format that a file's suffix stands for.

    Args:
      path: of the file to write.
      frames: how many it will hold.
    Raises:
      DataError: a suffix that ASE cannot write, or a format of one frame for several.
    """
    path = Path(path)
    if path.suffix in _EXTXYZ:
        return "extxyz"
    format = filetype(str(path), read=False)
    if format not in ioformats:
        raise DataError(f"{path}: ASE writes no such format; end its name with .xyz")
    known = ioformats[format]
    if not known.can_write or (known.single and frames > 1):
        what = "holds one frame" if known.can_write else "cannot be written"
        raise DataError(
            f"{path}: ASE's format {format} {what}, and there are {frames} frames; end its name "
            "with .xyz or .traj"
        )
    return format


def write_atoms(path: str | os.PathLike, frames: Sequence[ase.Atoms], format: str) -> None:
    """Write frames to a file, which is complete or not there.

    Args:
      path: the file; an earlier one is replaced.
      frames: with predictions.
      format: see `format_of`.
    Raises:
      OSError: a folder that cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        partial.unlink(missing_ok=True)  # a database would be added to
        ase.io.write(partial, frames, format=format)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
