"""Checkpoints of a run: written so that none is ever lost, and read back."""

import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from eqfuse import models
from eqfuse.models.heads import head_of
from eqfuse.runs import files
from eqfuse.runs.errors import OLD_ALLEGRO, CheckpointError


class DamagedCheckpointWarning(UserWarning):
    """The newest checkpoint is damaged or missing, and the one before it was read."""


class Checkpoints:
    """Writes the checkpoints `best` and `last` to one folder.

    The last one is kept with the one before it. A new checkpoint is complete on disk, safe from a
    power loss, before it replaces another, so that a run killed at any moment leaves one of the
    two. `best` and `stable` are written before a `last` that knows of them. What is offered more
    often than `seconds` waits in memory for the next offer or for `flush`. With `writes` False
    nothing is written: another process does it. If the metadata have `heads`, a list of what each
    has instead of them, the best network of each is written to a file of its own, too.
    """

    def __init__(self, folder: Path, metadata: dict, seconds: float = 0.0, *, writes: bool = True):
        self._writes = writes
        self._folder = Path(folder).resolve()
        self._metadata = metadata
        self._seconds = seconds
        self._waiting = {}
        self._written_at = -np.inf

    def offer(self, name: str, step: int, params: Callable, progress: dict, state=None):
        """Keep parameters, under a name of `files.FILES`, now or at the next chance.

        `params` gives a pytree of arrays when they are written; `progress` is of plain values, and
        `state` a pytree that a resumed run needs besides.
        """
        if not self._writes:
            return
        self._waiting[name] = (step, params, progress, state)
        if name == "last" and time.monotonic() - self._written_at >= self._seconds:
            self.flush()

    def flush(self):
        """Write what waits; where the disk refuses it, what was written before is intact."""
        for name in ("stable", "best", "last"):
            if name in self._waiting:
                self._write(name, *self._waiting[name])
                del self._waiting[name]  # now: an exception within the writing leaves it here
        self._written_at = time.monotonic()

    def _write(self, name: str, step: int, params: Callable, progress: dict, state):
        params = params()
        arrays = named_arrays("params", params)
        arrays |= {} if state is None else named_arrays("state", state)
        metadata = {**self._metadata, "step": step, **progress}
        content, heads = files.encode(arrays, metadata), metadata.pop("heads", [])
        path, *previous = (self._folder / file for file in files.FILES[name])
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True)
                files.sync_folder(self._folder.parent)
            for number, own in enumerate(heads if name == "best" else []):
                file = self._folder.parent / "heads" / f"{own['head']}.safetensors"
                file.parent.mkdir(exist_ok=True)
                arrays = named_arrays("params", head_of(params, number))
                files.write_whole(file, files.encode(arrays, metadata | own))
            files.write_whole(path, content, *previous)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint, {len(content) // 1000 + 1} kB, cannot be written to {path}: "
                f"{error.strerror}; free or repair the disk and resume the run: what was written "
                "before is intact"
            ) from error


def load_run(run, *, which: str | None = None, backend: str | None = None):
    """Return the trained network of a run, finished or interrupted.

    Args:
      run: the run's folder, or one of its files, such as `checkpoints/best.safetensors`, wherever
        it is now.
      which: "best" or "last"; None for the best one if there is one yet, else the last.
      backend: implementation of the ops, see `eqfuse.ops`; None to choose by device.
    Returns:
      module, a `models.Potential` (energies in eV, relative to the reference energies); params, its
      variables, in float64 only where JAX has that enabled; metadata, a dict with the
      configuration, irreps (of the input, each layer and the output), species (atomic numbers),
      reference energies (eV, by atomic number as text: {"6": -1029.5}), statistics and units.
    Raises:
      CheckpointError: no readable checkpoint there.
      ValueError: another `which`, or one for a file.
    Warns:
      DamagedCheckpointWarning: the newest one is damaged; the one before it is given.
    """
    params, metadata, _ = read_checkpoint(run, _names(run, which))
    _check(run, metadata, len(jax.tree.leaves(params)))
    try:
        module = module_of(metadata, backend)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{run}: its metadata are not of a network ({error})") from error
    return module, jax.device_put(params), metadata


def read_metadata(run, *, which: str | None = None) -> dict:
    """Return the metadata of `load_run`, which see, without the network."""
    metadata = _of_newest(run, _names(run, which), only_metadata=True)[0][1]
    _check(run, metadata)
    return metadata


_MOST_LMAX = 12
_TYPES = {"config": dict, "model": str, "model_fields": dict, "potential": dict}
_TYPES |= {"species": list, "reference_energies": dict}


def _check(run, metadata: dict, num_arrays: int | None = None):
    """Refuse metadata of other types, or numbers, than a network has, before it is built."""
    if "heads" in metadata:
        raise CheckpointError(
            f"{run} holds several heads together, and has a file of each after its first validation"
        )

    def require(condition: bool, what: str, value):
        if not condition:
            raise CheckpointError(
                f"{run} is damaged, or no network of eqfuse: its metadata have {what} {value!r:.60}"
            )

    for name, kind in _TYPES.items():
        require(isinstance(metadata.get(name), kind), name, metadata.get(name))
    fields, species = metadata["model_fields"], metadata["species"]
    if "latent_activation" in fields:
        raise CheckpointError(f"{run} {OLD_ALLEGRO}")
    for name, value in fields.items():
        if isinstance(value, float):
            require(math.isfinite(value), name, value)
    layers, lmax = fields.get("layers", 1), fields.get("lmax", 1)
    is_count = type(layers) is int and 0 < layers <= (num_arrays or layers)
    require(is_count, "layers", layers)
    require(type(lmax) is int and 0 <= lmax <= _MOST_LMAX, "lmax", lmax)
    cutoff, dtype = fields.get("cutoff"), metadata["config"].get("dtype")
    require(type(cutoff) in (int, float) and cutoff > 0, "cutoff", cutoff)
    require(dtype in ("float32", "float64"), "config.dtype", dtype)
    known = all(type(z) is int and 1 <= z <= 118 for z in species)
    require(known and species == sorted(set(species)) != [], "species", species)
    references, potential = metadata["reference_energies"], metadata["potential"]
    numbers = {"reference_energies": [references.get(str(z)) for z in species]}
    for name, value in (numbers | {n: potential.get(n) for n in ("scale", "shift")}).items():
        plain = isinstance(value, list | tuple) and len(value) == len(species)
        ok = plain and all(type(v) in (int, float) and math.isfinite(v) for v in value)
        require(ok, name, value)


def read_checkpoint(run, names: tuple[str, ...], state_like=None, *, sets_aside: bool = False):
    """Return params, metadata and state of the first named checkpoint that a run or file has.

    It is the newest file that is whole, its arrays are numpy's. The state, for which `state_like`
    is a pytree of such arrays, is None without one. With `sets_aside` a newer file that is damaged
    is renamed, for a run that goes on.
    """
    (arrays, metadata), path, newer = _of_newest(run, names)
    known = files.shapes_of(arrays)
    shapes = metadata.get("shapes", known)
    shapes = shapes if isinstance(shapes, dict) else {str(shapes): None}
    if others := [name for name, shape in shapes.items() if known.get(name, 0) != shape]:
        raise CheckpointError(
            f"{path} is damaged: its parameter {others[0]} is missing or has another shape than "
            "that of its network"
        )
    found = {name: arrays.pop(name) for name in known}
    for name, array in found.items():
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{path}: the parameter {name.partition('/')[2]} is not finite (NaN or infinity), "
                "so that nothing it predicts would be; train it again"
            )
    params = unflatten_dict({name.partition("/")[2]: a for name, a in found.items()}, sep="/")
    state = None if state_like is None else _state(path, arrays, state_like)
    for damaged in filter(os.path.lexists, newer if sets_aside else ()):
        files.set_aside(damaged)
    return params, metadata, state


def named_arrays(group: str, tree) -> dict[str, np.ndarray]:
    """Return the leaves of a pytree by their paths, "group/key/...", as a file holds them."""
    arrays = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        arrays[f"{group}/{name}"] = np.asarray(leaf, order="C")
    return arrays


def _names(run, which: str | None) -> tuple[str, ...]:
    if which not in (None, *files.FILES):
        raise ValueError(f'which={which!r} is unknown; it is "best", "last", or None for either')
    if which is not None and os.path.isfile(_path(run)):
        raise ValueError(f"which={which!r} is for the folder of a run, and {run} is one file")
    files.require_one_head(_path(run))
    return ("best", "last") if which is None else (which,)


def _path(run) -> Path:
    if "\0" in str(run):
        raise CheckpointError(f"{str(run)!r} is no folder: it has a NUL character in its name")
    return Path(run).expanduser().resolve()


def _of_newest(run, names: tuple[str, ...], **what):
    """Return the content of the newest file that is whole, its path, and the newer files."""
    paths = _paths(run, names)
    problem = None
    for count, path in enumerate(paths):
        try:
            content = files.read_file(path, **what)
        except CheckpointError as error:
            problem = problem or error
            continue
        if problem is not None:
            text = f"{problem}; the one before it, {path}, is taken"
            warnings.warn(text, DamagedCheckpointWarning, stacklevel=4)
        return content, path, paths[:count]
    raise problem


def _paths(run, names: tuple[str, ...]) -> list[Path]:
    """Return the files of the first of the named checkpoints that a run has, newest first."""
    run = _path(run)
    if os.path.isfile(run):
        return [run]
    folder = run / "checkpoints"
    name = next((name for name in names if files.has_checkpoint(run, name)), None)
    if name is None:
        inside = sorted(folder.parent.name for folder in run.glob("*/checkpoints"))
        what = f"it holds runs: name one, such as {run / inside[0]}" if inside else "is it a run?"
        what = what if run.exists() else "there is no such file or folder"
        raise CheckpointError(f"{run} has no checkpoint ({' or '.join(names)}); {what}")
    return [folder / file for file in files.FILES[name]]


def _state(path: Path, arrays: dict[str, np.ndarray], like):
    if not arrays:
        raise CheckpointError(f"checkpoint {path} has no training state to resume from")
    ours = named_arrays("state", like)
    kinds = [{n: (a.shape, a.dtype) for n, a in tree.items()} for tree in (ours, arrays)]
    if kinds[0] != kinds[1]:
        raise CheckpointError(
            f"the training state of {path} is of another model or optimizer, or of another version "
            "of eqfuse; start_from= trains its network in a new run"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in ours])


def module_of(metadata: dict, backend: str | None):
    """Return the network that a checkpoint is of, see `load_run`."""
    model = models.build(metadata["model"], **metadata["model_fields"], backend=backend)
    return models.Potential.from_plain(model, metadata["potential"])


def metadata_of(config, fields: dict, potential, **data) -> dict:
    """Return the metadata of a network, as plain values.

    Args:
      config: the settings of its run, `eqfuse.train.settings.config.Config`.
      fields: those of its module, see `models.build`.
      potential: a `models.Potential` around it.
      data: what the metadata have besides, such as its species and reference energies.
    """
    return {
        "task": "molecule",
        "config": dataclasses.asdict(config),
        "model": config.model.name,
        "model_fields": fields,
        "irreps": [str(irreps) for irreps in potential.model.layer_irreps()],
        "potential": potential.to_plain(),
        "units": {"length": "Å", "energy": "eV", "forces": "eV/Å", "stress": "eV/Å^3"},
        **data,
    }
