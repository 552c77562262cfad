"""Errors of predictions, by group of structures and by element."""

from collections.abc import Sequence

import numpy as np
from ase.data import chemical_symbols

from eqfuse.data.structures import LABELS, Structure, count_labelled

UNITS = {
    "energy": "mev_per_atom",
    "forces": "mev_per_a",
    "stress": "mev_per_a3",
    "hessian": "mev_per_a2",
}


def error_table(structures: Sequence[Structure], predicted: Sequence) -> list[dict]:
    """Return MAE and RMSE for all structures, each head, config_type and element.

    The row of a group has its name, numbers of frames and atoms, errors over the known labels, of
    energies in meV/atom, of forces in meV/Å and, if any structure has one, of stress in meV/Å^3,
    None where it has no such labels of its own; and the number of frames that have each label.
    That of an element has those of forces and Hessians only. Hessians, in meV/Å^2, are there if
    predictions have a `hessian_error`, that of one row, [n_atoms, 3] eV/Å^2.
    """
    names = [n for n in LABELS if n != "stress" or count_labelled(structures, n)]
    if any(getattr(p, "hessian_error", None) is not None for p in predicted):
        names.append("hessian")
    pairs = zip(structures, predicted, strict=True)
    frames = [(s, {name: _error(name, s, p) for name in names}) for s, p in pairs]
    rows = [_row("all", frames, names)]
    for kind in ("head", "config_type"):
        types = [getattr(s, kind, None) or "" for s in structures]
        for name in sorted(set(types)) if any(types) else ():
            own = [frame for frame, of in zip(frames, types, strict=True) if of == name]
            rows.append(_row(f"{kind} {name}" if name else f"no {kind}", own, names))
    for z in sorted(set(np.concatenate([s.numbers for s in structures]).tolist())):
        rows.append(_row(f"element {chemical_symbols[z]}", frames, names, z))
    return rows


def _error(name: str, structure: Structure, predicted) -> np.ndarray:
    """Return the errors of a label, [n, ...] with n = 0 without one; of the energy, per atom."""
    if name == "hessian":
        error = getattr(predicted, "hessian_error", None)
        return np.zeros((0, 3)) if error is None else error
    reference = getattr(structure, name)
    if reference is None:
        return np.zeros((0, 3))
    error = np.subtract(getattr(predicted, name), reference)
    if name == "forces":
        return error
    return np.array([error / structure.num_atoms if name == "energy" else error])


def _row(group: str, frames, names: Sequence[str], element: int | None = None) -> dict:
    """Return the row of a group of frames, or of the atoms of one element."""
    owns = [slice(None) if element is None else s.numbers == element for s, _ in frames]
    atoms = [len(s.numbers[own]) for (s, _), own in zip(frames, owns, strict=True)]
    row = {"group": group, "frames": int(np.count_nonzero(atoms)), "atoms": sum(atoms)}
    counts = {}
    for name in names:
        of_atoms = name in ("forces", "hessian")
        errors = [error[name] for _, error in frames] if of_atoms or not element else []
        if of_atoms:  # without those that are unknown
            errors = [e[own] if len(e) else e for e, own in zip(errors, owns, strict=True)]
            errors = [e[~np.isnan(e).any(axis=1)] for e in errors]
        known = [1e3 * e for e in errors if len(e)]
        every = np.concatenate(known) if known else None
        row[f"{name}_mae_{UNITS[name]}"] = float(np.abs(every).mean()) if known else None
        row[f"{name}_rmse_{UNITS[name]}"] = float(np.sqrt((every**2).mean())) if known else None
        counts[f"{name}_frames"] = len(known)
    return row | counts
