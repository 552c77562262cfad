"""The metadata in the checkpoints of a run on energies and forces, and how it resumes from one."""

import dataclasses
import hashlib
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
from eqfuse.train.run.folder import RunFolder
from eqfuse.train.run.resume import RADIAL, check_same_run
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.step import init_state

UNITS = {"length": "Å", "energy": "eV", "forces": "eV/Å", "stress": "eV/Å^3"}


def run_metadata(config: Config, dataset: Dataset, potential, fields: dict) -> dict:
    """Return plain values, from which the network can be made and the run recognised."""
    return {
        "task": "molecule",
        "config": dataclasses.asdict(config),
        "model": config.model.name,
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


def kept_references(run: str | Path, species) -> dict[int, float] | None:
    """Return the reference energies, eV by atomic number, of a run that is resumed.

    Least squares have other last digits with another version of NumPy, and the energies of the
    samples with them; with the references of the run, its data are the same. None where the run is
    of other species, or has no checkpoint that can be read.
    """
    try:
        metadata = read_file(Path(run) / "checkpoints" / FILES["last"][0], only_metadata=True)[1]
    except CheckpointError:  # reading the run raises what is wrong
        return None
    kept = {int(z): energy for z, energy in metadata["reference_energies"].items()}
    return kept if set(kept) == set(species) else None


def interrupted_run(config: Config, params, metadata: dict, folder: RunFolder, writes: bool):
    """Return state and position of the run in the folder, or None before its first checkpoint.

    Args:
      config: of the run that goes on.
      params, metadata: of the run as it would begin now, see `run_metadata`.
      folder: of the run; damaged checkpoints are set aside if this process `writes`.
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
    ours = metadata["model_fields"]
    defaults = {f.name: f.default for f in dataclasses.fields(models.MODELS[theirs["model"]])}
    theirs["model_fields"] = {name: defaults.get(name) for name in ours} | theirs["model_fields"]
    same_radial = all(theirs["model_fields"][name] in (ours[name], None) for name in RADIAL)
    if same_radial and isinstance(theirs.get("radial"), dict):
        metadata["radial"] = theirs["radial"]  # knots that an earlier version chose
    for name in ("data_sha256", "model_fields", "species", "reference_energies", "units"):
        both = [_decisive(tree[name]) for tree in (theirs, metadata)]
        if both[0] != both[1]:
            files = filter(None, (config.data.origin, config.data.validation_origin))
            raise ConfigError(
                f"{' or '.join(files)} is not as it was when the run in {folder.path} "
                f"began ({name} differs); bring it back, or start a new run"
            )
    flat, optimizer = flat_training(config.training, params)
    like = init_state(flat.flatten(params), optimizer)
    _, theirs, state = read_checkpoint(folder.path, ("last",), like, sets_aside=writes)
    position = theirs["position"]
    print(f"resume     epoch {position['epoch']}, batch {position['batch']} of the epoch")
    return jax.tree.map(jnp.asarray, state), position


def _decisive(value):
    """Return metadata without the settings that decide how a network computes, not what."""
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if k not in (*RADIAL, "radial_accuracy")}
