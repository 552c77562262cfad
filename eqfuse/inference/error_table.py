"""Errors of predictions, by group of structures and by element."""

from collections.abc import Sequence

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data import DataError, Structure
from eqfuse.data.structures import names_of
from eqfuse.inference.predict import Predicted


def error_table(structures: Sequence[Structure], predicted: Sequence[Predicted]) -> list[dict]:
    """Return MAE and RMSE for all structures, each config_type and (forces only) each element.

    Args:
      structures: with energies and forces; stress where it is known.
      predicted: predictions for these structures, in order.
    Returns:
      a row for each group: its name, numbers of frames and atoms, errors of energies in meV/atom,
      of forces in meV/Å and, if any structure has one, of stress in meV/Å^3; None where a group has
      no energies or stresses of its own.
    Raises:
      DataError: a structure without energy or forces.
    """
    for name, s in zip(names_of(structures), structures, strict=True):
        if s.energy is None or s.forces is None:
            raise DataError(f"{name} has no energy or no forces to compare with")
    pairs = list(zip(structures, predicted, strict=True))
    energy = np.array([(p.energy - s.energy) / s.num_atoms for s, p in pairs])
    forces = np.concatenate([p.forces - s.forces for s, p in pairs])
    stress = [p.stress - s.stress for s, p in pairs if s.stress is not None]
    has_stress = np.array([s.stress is not None for s in structures])
    atoms = np.array([s.num_atoms for s in structures])
    frame_of = np.repeat(np.arange(len(structures)), atoms)
    numbers = np.concatenate([s.numbers for s in structures])

    def of(group: str, frames) -> dict:
        errors = {"energy": energy[frames], "forces": forces[frames[frame_of]]}
        if stress:
            errors["stress"] = np.array(stress)[frames[has_stress]]
        counts = {"frames": np.count_nonzero(frames), "atoms": atoms[frames].sum()}
        return _row(group, **counts, **errors)

    rows = [of("all", np.full(len(structures), True))]
    types = np.array([s.config_type or "" for s in structures])
    if any(types):
        for name in sorted(set(types.tolist())):
            rows.append(of(f"config_type {name}" if name else "no config_type", types == name))
    for z in sorted(set(numbers.tolist())):
        own = numbers == z
        errors = {"energy": [], "forces": forces[own], **({"stress": []} if stress else {})}
        counts = {"frames": len(set(frame_of[own].tolist())), "atoms": np.count_nonzero(own)}
        rows.append(_row(f"element {chemical_symbols[z]}", **counts, **errors))
    return rows


_UNITS = {"energy": "mev_per_atom", "forces": "mev_per_a", "stress": "mev_per_a3"}


def _row(group: str, frames, atoms, **errors) -> dict:
    row = {"group": group, "frames": int(frames), "atoms": int(atoms)}
    for name, error in errors.items():
        error, some = 1e3 * np.asarray(error), len(error) > 0
        row[f"{name}_mae_{_UNITS[name]}"] = float(np.abs(error).mean()) if some else None
        row[f"{name}_rmse_{_UNITS[name]}"] = float(np.sqrt((error**2).mean())) if some else None
    return row
