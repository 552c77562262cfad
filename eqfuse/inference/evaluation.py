"""Predictions of a trained run for structures, and their errors."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from ase.data import chemical_symbols

from eqfuse.data import Batcher, DataError, Structure, prefetched
from eqfuse.data.dataset import prepare_samples
from eqfuse.data.structures import names_of
from eqfuse.models import compile_predict
from eqfuse.train import CheckpointError, load_run, read_metadata

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
    """Return predictions of the best checkpoint of a run, in the precision that it was trained in.

    Args:
      folder: of the run, or a file of its network.
      structures: energies and forces are not looked at.
      backend: see `eqfuse.ops`.
    Raises:
      CheckpointError: no readable checkpoint, or a run that did not train a potential.
      DataError: an element that the run does not know, or two atoms at one place.
    """
    dtype = read_metadata(folder)["config"]["dtype"]
    # TF32 would cost three digits of the forces on a GPU.
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        return _evaluated(folder, structures, backend)


def _evaluated(folder, structures, backend) -> list[Predicted]:
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

    predicted = compile_predict(potential, stress=with_stress)
    out = []
    for batch, group in zip(
        prefetched(batcher.batches(shuffle=False)), batcher.groups(shuffle=False), strict=True
    ):
        out += _unpacked(
            jax.device_get(predicted(params, batch.graph)),
            [(structures[i], samples[i]) for i in group],
            references,
        )
    return out


def _unpacked(prediction, pairs, references) -> list[Predicted]:
    out, start = [], 0
    for k, (structure, sample) in enumerate(pairs):
        end = start + structure.num_atoms
        isolated = sum(references[z] for z in structure.numbers.tolist())
        relative = float(prediction.energy[k])
        out.append(
            Predicted(
                energy=relative + isolated,
                relative_energy=relative,
                forces=sample.in_structure(np.asarray(prediction.forces[start:end], np.float64)),
                stress=np.asarray(prediction.stress[k], np.float64) if structure.volume else None,
            )
        )
        start = end
    return out


def error_table(structures: Sequence[Structure], predicted: Sequence[Predicted]) -> list[dict]:
    """Return MAE and RMSE of all structures, of each config_type and (forces) of each element.

    Args:
      structures: with energies and forces; stress where it is known.
      predicted: of the same, in order.
    Returns:
      rows with group, frames, atoms, energies in meV/atom, forces in meV/Å and, if any structure
      has one, stress in meV/Å^3; None where a group has no energies or stresses of its own.
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
