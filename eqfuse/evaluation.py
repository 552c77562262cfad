"""Predictions of a trained run for structures, and their errors."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from ase.data import chemical_symbols

from eqfuse.data import Batcher, DataError, Structure, prefetched
from eqfuse.data.dataset import prepare_samples
from eqfuse.models import predict
from eqfuse.training import CheckpointError, load_run

_BATCH_SIZE = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """What a run predicts for one structure.

    Attributes:
      energy: eV, reference energies of the atoms included.
      relative_energy: eV, without them.
      forces: [n_atoms, 3] eV/Å.
      stress: [3, 3] eV/Å^3, or None without a cell.
    """

    energy: float
    relative_energy: float
    forces: np.ndarray
    stress: np.ndarray | None


def evaluate(folder, structures: Sequence[Structure], *, backend=None) -> list[Predicted]:
    """Predictions of the best checkpoint of a run.

    Args:
      folder: of the run.
      structures: energies and forces are not looked at.
      backend: see `eqfuse.ops`.
    Raises:
      CheckpointError: no readable checkpoint, or a run that did not train a potential.
      DataError: an element that the run was not trained on, or two atoms at one place.
    """
    potential, params, metadata = load_run(folder, backend=backend)
    if metadata["potential"] is None:
        raise CheckpointError(
            f"{folder} trained no potential but a classification (data=tetris), of which there are "
            "no energies and forces to evaluate"
        )
    references = {int(z): e for z, e in metadata["reference_energies"].items()}
    blank = [
        dataclasses.replace(s, energy=0.0, forces=np.zeros((s.num_atoms, 3)), stress=None)
        for s in structures
    ]
    cutoff = metadata["model_fields"]["cutoff"]
    samples = prepare_samples(blank, cutoff, metadata["species"], references)
    batcher = Batcher(samples, _BATCH_SIZE, dtype=metadata["config"]["dtype"])
    with_stress = any(s.volume for s in structures)

    @jax.jit
    def predicted(graph):
        return predict(potential, params, graph, stress=with_stress)

    out = []
    for batch, group in zip(
        prefetched(batcher.batches(shuffle=False)), batcher.groups(shuffle=False), strict=True
    ):
        out += _unpacked(
            jax.device_get(predicted(batch.graph)), [structures[i] for i in group], references
        )
    return out


def _unpacked(prediction, structures, references) -> list[Predicted]:
    out, start = [], 0
    for k, structure in enumerate(structures):
        end = start + structure.num_atoms
        isolated = sum(references[z] for z in structure.numbers.tolist())
        relative = float(prediction.energy[k])
        out.append(
            Predicted(
                energy=relative + isolated,
                relative_energy=relative,
                forces=np.asarray(prediction.forces[start:end], np.float64),
                stress=np.asarray(prediction.stress[k], np.float64) if structure.volume else None,
            )
        )
        start = end
    return out


def error_table(structures: Sequence[Structure], predicted: Sequence[Predicted]) -> list[dict]:
    """MAE and RMSE of all structures, of each config_type and (forces) of each element.

    Args:
      structures: with energies and forces.
      predicted: of the same, in order.
    Returns:
      rows with group, frames, atoms, energies in meV/atom and forces in meV/Å; None where a group
      has no energies of its own.
    Raises:
      DataError: a structure without energy or forces.
    """
    for index, s in enumerate(structures):
        if s.energy is None or s.forces is None:
            raise DataError(f"structure {index} has no energy or no forces to compare with")
    energy = np.array(
        [(p.energy - s.energy) / s.num_atoms for s, p in zip(structures, predicted, strict=True)]
    )
    forces = np.concatenate(
        [p.forces - s.forces for s, p in zip(structures, predicted, strict=True)]
    )
    atoms = np.array([s.num_atoms for s in structures])
    frame_of = np.repeat(np.arange(len(structures)), atoms)
    numbers = np.concatenate([s.numbers for s in structures])
    rows = [_row("all", energy, forces)]
    types = np.array([s.config_type or "" for s in structures])
    if any(types):
        for name in sorted(set(types.tolist())):
            chosen = types == name
            label = f"config_type {name}" if name else "no config_type"
            rows.append(_row(label, energy[chosen], forces[chosen[frame_of]]))
    for z in sorted(set(numbers.tolist())):
        of_element = numbers == z
        count = len(set(frame_of[of_element].tolist()))
        row = _row(f"element {chemical_symbols[z]}", None, forces[of_element])
        rows.append({**row, "frames": count})
    return rows


def _row(group: str, energy, forces) -> dict:
    row = {"group": group, "frames": None if energy is None else len(energy), "atoms": len(forces)}
    for name, unit, error in (("energy", "mev_per_atom", energy), ("forces", "mev_per_a", forces)):
        row[f"{name}_mae_{unit}"] = None if error is None else 1e3 * float(np.abs(error).mean())
        row[f"{name}_rmse_{unit}"] = (
            None if error is None else 1e3 * float(np.sqrt((error**2).mean()))
        )
    return row
