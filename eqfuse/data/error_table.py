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
_UNKNOWN = {"energy": np.nan, "forces": np.full(3, np.nan), "stress": np.full((3, 3), np.nan)}


def error_table(structures: Sequence[Structure], predicted: Sequence) -> list[dict]:
    """Return MAE and RMSE for all structures, each head, config_type and (forces only) element.

    The row of a group has its name, numbers of frames and atoms, errors over the known labels, of
    energies in meV/atom, of forces in meV/Å and, if any structure has one, of stress in meV/Å^3,
    None where it has no such labels of its own; and the number of frames that have each label.
    """
    pairs = list(zip(structures, predicted, strict=True))
    quantities = [n for n in LABELS if n != "stress" or count_labelled(structures, n)]
    errors = {name: [_error(name, s, p) for s, p in pairs] for name in quantities}
    known = {name: np.array([getattr(s, name) is not None for s in structures]) for name in errors}
    atoms = np.array([s.num_atoms for s in structures])
    frame_of = np.repeat(np.arange(len(structures)), atoms)
    numbers = np.concatenate([s.numbers for s in structures])
    forces = np.concatenate(errors.pop("forces"))
    given = ~np.isnan(forces).any(axis=1)
    errors = {name: np.array(values) for name, values in errors.items()}

    def of(group: str, frames) -> dict:
        chosen = {name: frames & known[name] for name in quantities}
        own = {name: values[chosen[name]] for name, values in errors.items()}
        own["forces"] = forces[frames[frame_of] & given]
        labelled = {name: np.count_nonzero(chosen[name]) for name in quantities}
        return _row(group, np.count_nonzero(frames), atoms[frames].sum(), own, labelled)

    rows = [of("all", np.full(len(structures), True))]
    for kind in ("head", "config_type"):
        types = np.array([getattr(s, kind, None) or "" for s in structures])
        if any(types):
            for name in sorted(set(types.tolist())):
                rows.append(of(f"{kind} {name}" if name else f"no {kind}", types == name))
    for z in sorted(set(numbers.tolist())):
        own = numbers == z
        labelled = own & given
        none = dict.fromkeys(quantities, ())
        counts = dict.fromkeys(quantities, 0) | {"forces": len(set(frame_of[labelled].tolist()))}
        frames, count = len(set(frame_of[own].tolist())), np.count_nonzero(own)
        of_element = none | {"forces": forces[labelled]}
        rows.append(_row(f"element {chemical_symbols[z]}", frames, count, of_element, counts))
    return rows


def _error(name: str, structure: Structure, predicted):
    """Return the error of a label, NaN where it is unknown; of the energy, per atom."""
    reference = getattr(structure, name)
    if reference is None:
        unknown = _UNKNOWN[name]
        return np.tile(unknown, (structure.num_atoms, 1)) if name == "forces" else unknown
    error = getattr(predicted, name) - reference
    return error / structure.num_atoms if name == "energy" else error


def _row(group: str, frames, atoms, errors: dict, labelled: dict) -> dict:
    row = {"group": group, "frames": int(frames), "atoms": int(atoms)}
    for name in labelled:
        error, some = 1e3 * np.asarray(errors[name]), len(errors[name]) > 0
        row[f"{name}_mae_{UNITS[name]}"] = float(np.abs(error).mean()) if some else None
        row[f"{name}_rmse_{UNITS[name]}"] = float(np.sqrt((error**2).mean())) if some else None
    return row | {f"{name}_frames": int(count) for name, count in labelled.items()}
