"""Converted networks written as folders of runs."""

import dataclasses
import hashlib
from pathlib import Path

import jax
import numpy as np

from eqfuse import models
from eqfuse.convert.errors import ConvertError
from eqfuse.convert.mace_description import Description, described
from eqfuse.convert.mace_parameters import parameters
from eqfuse.convert.pickled import read_module
from eqfuse.data import Shape, collate
from eqfuse.train.molecule import UNITS
from eqfuse.train.run.runs import RunFolder
from eqfuse.train.run.saving import Checkpoints
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.config import GROUPS, Config
from eqfuse.train.sources import ExtxyzData


def convert_mace(path, run, *, head: str | None = None) -> Description:
    """Write the network of a file of mace to the folder of a run.

    Neither torch nor mace is needed, and nothing in the file is executed. The folder can be given
    to `eqfuse.Calculator`, `eqfuse.inference.evaluate`, `load_run` and `start_from=`.

    Args:
      path: a file that mace has written by `torch.save(model, path)`.
      run: the folder, which must not exist.
      head: the name of one of several heads.
    Returns:
      What the network is like.
    Raises:
      ConvertError: a file that cannot be read, or a network that eqfuse's MACE cannot represent.
      ConfigError: the folder exists or cannot be written.
    """
    network = read_module(path)
    try:
        description = described(network, head)
        params = parameters(network, description)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConvertError):
            raise
        raise ConvertError(
            f"{path} is not laid out as files of mace are, or damaged ({error}); if mace reads it, "
            "please report its version"
        ) from error
    _check(params, description)
    _write(Path(path), str(run), description, params)
    return description


def potential_of(description: Description) -> models.Potential:
    """Return the potential of a description."""
    count = len(description.references)
    return models.Potential(
        model=models.build("mace", **description.fields),
        scale=(description.scale,) * count,
        shift=(description.shift,) * count,
        repulsion=description.repulsion,
    )


def variables_of(params: dict, description: Description) -> dict:
    """Return the variables of the potential, in the dtype of the file."""
    count = len(description.references)
    tree = {
        "params": {
            "model": params,
            "scale": np.full(count, description.scale),
            "shift": np.full(count, description.shift),
        }
    }
    return jax.tree.map(lambda a: np.asarray(a, description.dtype), tree)


def _check(params: dict, description: Description):
    """Refuse parameters whose shapes differ from those of the network."""
    potential = potential_of(description)
    with jax.enable_x64(True):
        graph = collate([], Shape(1, 1, 1), "float64").graph
        shapes = jax.eval_shape(
            potential.init, jax.random.key(0), graph.vectors, graph.species, graph.edges
        )
    ours, theirs = (
        {jax.tree_util.keystr(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(tree)}
        for tree in (shapes["params"]["model"], params)
    )
    if ours != theirs:
        different = sorted(name for name, _ in ours.items() ^ theirs.items())
        raise ConvertError(
            f"parameters do not fit: {different[0]} has the shape {theirs.get(different[0])} in "
            f"the file and {ours.get(different[0])} in eqfuse's MACE ({len(different)} such names)"
        )


def _write(path: Path, run: str, description: Description, params: dict):
    potential = potential_of(description)
    config = _config(path, run, description)
    metadata = {
        "task": "molecule",
        "config": dataclasses.asdict(config),
        "model": "mace",
        "model_fields": description.fields,
        "irreps": [str(irreps) for irreps in potential.model.layer_irreps()],
        "potential": potential.to_plain(),
        "data_sha256": "",
        "species": list(description.references),
        "reference_energies": {str(z): e for z, e in description.references.items()},
        "statistics": {
            "force_rms": None,
            "avg_num_neighbors": description.fields["avg_num_neighbors"],
            "energy_per_atom": None,
        },
        "units": UNITS,
        "converted": {
            "program": "mace",
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        },
    }
    variables = variables_of(params, description)
    folder = RunFolder(config)
    try:
        checkpoints = Checkpoints(folder.checkpoints, metadata)
        progress = {"position": {"epoch": 0, "batch": 0}, "epoch": 0}
        checkpoints.offer("best", 0, lambda: variables, progress)
        checkpoints.flush()
    finally:
        folder.close()


def _config(path: Path, run: str, description: Description) -> Config:
    """Return the settings of the run, whose data file is the file that was converted."""
    settings = GROUPS["model"]["mace"]
    names = {f.name for f in dataclasses.fields(settings)}
    fields = {name: v for name, v in description.fields.items() if name in names}
    return Config(
        model=settings(**fields, zbl=description.repulsion is not None),
        data=ExtxyzData(path=str(path.resolve())),
        training=MoleculeTraining(),
        dtype=description.dtype,
        run=run,
    )
