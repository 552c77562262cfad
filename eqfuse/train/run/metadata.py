"""The metadata in the checkpoints of a run on energies and forces, and how it resumes from one."""

import dataclasses
import hashlib
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import models
from eqfuse.data import Dataset
from eqfuse.data.lazy import Joined
from eqfuse.data.structures import LABELS, UNWEIGHTED
from eqfuse.train.optimizer import flat_training
from eqfuse.train.run.checkpoint import has_checkpoint, read_checkpoint
from eqfuse.train.run.files import FILES, CheckpointError, read_file
from eqfuse.train.run.resume import check_same_run
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.schedule import OptimizerSettings
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.sources import MoleculeData
from eqfuse.train.step import init_state
from eqfuse.train.tables import without_radial

UNITS = {"length": "Å", "energy": "eV", "forces": "eV/Å", "stress": "eV/Å^3"}


def run_metadata(settings: dict, dataset: Dataset, potential, fields: dict) -> dict:
    """Return plain values, from which the network can be made and the run recognised.

    Args:
      settings: all of the run, as plain values.
      dataset: that it trains on.
      potential, fields: its network, and the fields of its model as plain values.
    """
    return {
        "task": "molecule",
        "config": settings,
        "model": settings["model"]["name"],
        "model_fields": fields,
        "irreps": [str(irreps) for irreps in potential.model.layer_irreps()],
        "potential": potential.to_plain(),
        "data_sha256": _fingerprint(dataset),
        "species": list(dataset.species),
        "reference_energies": {str(z): float(e) for z, e in dataset.references.items()},
        "statistics": {
            "force_rms": dataset.force_rms,
            "avg_num_neighbors": dataset.avg_num_neighbors,
            "energy_per_atom": dataset.energy_per_atom,
        },
        "units": UNITS,
    }


def _fingerprint(dataset: Dataset) -> str:
    """Return the SHA-256 of the structures and labels that are trained on and validated with."""
    digest = hashlib.sha256()
    for sample in Joined(dataset.train, dataset.val):
        labels = sample.forces, sample.stress
        arrays = [sample.positions, sample.species, sample.cell]
        for array in (*arrays, *(label for label in labels if label is not None)):
            digest.update(np.ascontiguousarray(array).tobytes())
        if sample.energy is not None:
            digest.update(np.float64(sample.energy).tobytes())
        # not for others, whose digest is that of runs before labels could be missing
        if sample.energy is None or sample.forces is None or sample.weights != UNWEIGHTED:
            known = [getattr(sample, name) is not None for name in LABELS]
            digest.update(np.array([*known, *sample.weights], np.float64).tobytes())
    return digest.hexdigest()


def kept_references(run: str | Path, fitted: dict[int, float]) -> dict[int, float] | None:
    """Return the reference energies of a run that is resumed, where they are those fitted now.

    Least squares have other last digits with another version of NumPy, and the energies of the
    samples with them; with the references of the run, its data are the same.

    Args:
      run: its folder.
      fitted: to the data, eV by atomic number.
    Returns:
      eV by atomic number; None where the run has others, or no checkpoint that can be read.
    """
    try:
        metadata = read_file(Path(run) / "checkpoints" / FILES["last"][0], only_metadata=True)[1]
    except CheckpointError:  # reading the run raises what is wrong
        return None
    kept = {int(z): energy for z, energy in metadata["reference_energies"].items()}
    same = kept.keys() == fitted.keys() and all(
        math.isclose(energy, fitted[z], rel_tol=1e-9, abs_tol=1e-9) for z, energy in kept.items()
    )
    return kept if same else None


def interrupted_run(
    data: MoleculeData,
    training: OptimizerSettings,
    params,
    metadata: dict,
    folder: RunFolder,
    writes: bool,
):
    """Return state and position of the run in the folder.

    Args:
      data, training: settings of the run that goes on.
      params, metadata: of the run as it would begin now, see `run_metadata`.
      folder: of the run.
      writes: whether this process sets damaged checkpoints aside.
    Returns:
      (`TrainState`, dict); None if the run ended before its first checkpoint.
    Raises:
      CheckpointError: no readable checkpoint, or one of another model.
      ConfigError: other settings or other data than those of the checkpoint.
    """
    if not has_checkpoint(folder.path, "last") and not folder.metrics.exists():
        print("resume     from the beginning: the run ended before its first checkpoint")
        return None
    _, theirs, _ = read_checkpoint(folder.path, ("last",))
    # before the state, which follows the settings
    check_same_run(metadata["config"], theirs["config"], folder.path)
    # settings that earlier versions did not have are as these versions were: their defaults
    defaults = {f.name: f.default for f in dataclasses.fields(models.MODELS[theirs["model"]])}
    known = {name: defaults[name] for name in metadata["model_fields"]}
    theirs["model_fields"] = known | theirs["model_fields"]
    for name in ("data_sha256", "model_fields", "species", "reference_energies", "units"):
        both = theirs[name], metadata[name]
        if name == "model_fields":
            both = tuple(map(without_radial, both))
        if both[0] != both[1]:
            files = " or ".join(filter(None, (data.origin, data.validation_origin)))
            raise ConfigError(
                f"{files} is not as it was when the run in {folder.path} "
                f"began ({name} differs); bring it back, or start a new run"
            )
    flat, optimizer = flat_training(training, params)
    like = init_state(flat.flatten(params), optimizer)
    _, theirs, state = read_checkpoint(folder.path, ("last",), like, sets_aside=writes)
    position = theirs["position"]
    print(f"resume     epoch {position['epoch']}, batch {position['batch']} of the epoch")
    return jax.tree.map(jnp.asarray, state), position
