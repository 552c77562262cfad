"""How to read a run back from its checkpoints, best and last."""

import functools
import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from eqfuse import models
from eqfuse.train.run.disk import first_line, set_aside
from eqfuse.train.run.quiet import quiet, signals_held

FORMAT = 3
KEPT = {"best": 1, "last": 2}
"""How many of each kind stay: the older `last` is for a disk that damages the newer one."""


class CheckpointError(ValueError):
    """A run folder that cannot be read; the message is for the user."""


class DamagedCheckpointWarning(UserWarning):
    """The newest checkpoint is damaged, and the one before it was read."""


def manager_options(**fields) -> ocp.CheckpointManagerOptions:
    """Return options of a manager that waits for no other process."""
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process{here}"
    )
    return ocp.CheckpointManagerOptions(multiprocessing_options=alone, create=False, **fields)


def load_run(folder, *, which: str | None = None, backend: str | None = None):
    """Return the trained network of a run, finished or interrupted.

    Args:
      folder: the run's folder.
      which: "best" or "last"; None for the best one if there is one yet, else the last.
      backend: implementation of the ops, see `eqfuse.ops`; None to choose by device.
    Returns:
      module, a `models.Potential` (energies in eV, relative to the reference energies) or, for a
      Tetris run, the bare network; params, its variables, in float64 only where JAX has that
      enabled; metadata, a dict with the configuration, irreps (of the input, each layer and the
      output), species (atomic numbers), reference energies (eV, by atomic number as text:
      {"6": -1029.5}), statistics and units.
    Raises:
      CheckpointError: no readable checkpoint there.
      ValueError: another `which`.
    Warns:
      DamagedCheckpointWarning: the newest one is damaged; the one before it is given.
    """
    params, metadata, _ = read_checkpoint(folder, _names(which))
    return module_of(metadata, backend), jax.tree.map(jnp.asarray, params), metadata


def read_metadata(folder, *, which: str | None = None) -> dict:
    """Return what `load_run` gives as metadata, without the network.

    Args:
      folder, which: see `load_run`.
    Raises:
      CheckpointError: no readable checkpoint there.
      ValueError: another `which`.
    """
    return _of_newest(_read_metadata, folder, _names(which))[0]


def _names(which: str | None) -> tuple[str, ...]:
    if which not in (None, *KEPT):
        raise ValueError(f'which={which!r} is unknown; it is "best", "last", or None for either')
    return ("best", "last") if which is None else (which,)


def has_checkpoint(folder, name: str) -> bool:
    """Return whether a run has a whole checkpoint of that name, "best" or "last"."""
    return bool(serials_in(Path(folder).expanduser().resolve() / "checkpoints" / name))


def read_checkpoint(folder, names: tuple[str, ...], state_like=None):
    """Return the first of the named checkpoints that a run has.

    Args:
      folder: the run's folder.
      names: of "best" and "last".
      state_like: pytree of arrays like the state that was offered; None not to read a state.
    Returns:
      params, a pytree of numpy arrays; metadata; the state as numpy arrays, or None.
    Raises:
      CheckpointError: no checkpoint, a damaged one, or one of another model.
    """
    return _of_newest(functools.partial(_read, state_like=state_like), folder, names)[0]


def read_to_resume(folder, state_like, *, writes: bool):
    """Return what a run needs to go on: the last checkpoint that is whole.

    Damaged ones that are newer are set aside, so that they do not count as one of those kept.

    Args:
      folder, state_like: see `read_checkpoint`.
      writes: whether this process sets them aside.
    Returns:
      metadata; the state as numpy arrays.
    Raises:
      CheckpointError: no checkpoint, only damaged ones, or one of another model.
    """
    read = functools.partial(_read, state_like=state_like)
    (_, metadata, state), path, whole = _of_newest(read, folder, ("last",))
    for serial in serials_in(path) if writes else ():
        if serial > whole:
            try:
                set_aside(path / str(serial), path.with_name(f"{path.name}-{serial}"))
            except OSError as error:
                raise CheckpointError(
                    f"the damaged checkpoint {path / str(serial)} cannot be renamed: "
                    f"{error.strerror}; move it away, and resume the run"
                ) from error
    return metadata, state


def _of_newest(read: Callable, folder, names: tuple[str, ...]):
    """Return what `read` makes of the newest checkpoint that is whole, its folder and its number.

    All are looked for again where they were replaced meanwhile.

    Raises:
      CheckpointError: of the newest one, if none is whole.
    """
    path, serials = _newest(folder, names)
    while True:
        damage = None
        for serial in serials:
            try:
                with signals_held(), quiet():
                    made = read(path, serial)
            except CheckpointError as error:
                damage = damage or error
                continue
            if damage is not None:
                text = f"{damage}; the one before it, {path / str(serial)}, is taken"
                warnings.warn(text, DamagedCheckpointWarning, stacklevel=4)
            return made, path, serial
        before, (path, serials) = (path, serials), _newest(folder, names)
        if (path, serials) == before:
            raise damage


def _newest(folder, names: tuple[str, ...]) -> tuple[Path, list[int]]:
    """Return where the first of the named checkpoints that a run has is, and its numbers, newest
    first.

    Raises:
      CheckpointError: it has none.
    """
    if "\0" in str(folder):
        raise CheckpointError(f"{str(folder)!r} is no folder: it has a NUL character in its name")
    folder = Path(folder).expanduser().resolve()
    for name in names:
        path = folder / "checkpoints" / name
        if serials := serials_in(path):
            return path, sorted(serials, reverse=True)
    raise CheckpointError(f"{folder} has no checkpoint ({' or '.join(names)}); is it a run folder?")


def serials_in(path: Path) -> list[int]:
    """Return numbers of the whole checkpoints; one that was being written is not among them."""
    return ocp.utils.checkpoint_steps(path) if path.is_dir() else []


def _read(path: Path, serial: int, state_like):
    where, metadata = path / str(serial), _read_metadata(path, serial)
    arguments = {"params": ocp.args.StandardRestore()}
    if state_like is not None:
        if "state" not in metadata["arrays_sha256"]:
            raise CheckpointError(f"checkpoint {where} has no training state to resume from")
        arguments["state"] = ocp.args.StandardRestore(jax.tree.map(np.asarray, state_like))
    restored = _restore(path, serial, **arguments)
    for key, item in restored.items():
        if digest_of(item) != metadata["arrays_sha256"][key]:
            raise CheckpointError(f"checkpoint {where} is damaged: {key} has changed")
    return restored["params"], metadata, restored.get("state")


def _read_metadata(path: Path, serial: int) -> dict:
    where = path / str(serial)
    metadata = _restore(path, serial, metadata=ocp.args.JsonRestore())["metadata"]
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        found = metadata.get("format") if isinstance(metadata, dict) else None
        raise CheckpointError(
            f"checkpoint {where} has format {found}, this version reads format {FORMAT}"
        )
    digest = metadata.pop("sha256", None)
    if digest != digest_of_text(metadata):
        raise CheckpointError(f"checkpoint {where} is damaged: its metadata has changed")
    return metadata


def _restore(path: Path, serial: int, **arguments):
    try:
        with ocp.CheckpointManager(path, options=manager_options()) as manager:
            restored = manager.restore(serial, args=ocp.args.Composite(**arguments))
    except Exception as error:  # orbax and tensorstore raise many types on broken files
        raise CheckpointError(
            f"checkpoint {path / str(serial)} is damaged, or of another model: {first_line(error)}"
        ) from error
    return {key: restored[key] for key in arguments}


def digest_of(tree) -> str:
    """Return the SHA-256 of the arrays of a pytree: their order, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.dtype} {np.shape(leaf)} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def digest_of_text(metadata: dict) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def module_of(metadata: dict, backend: str | None):
    """Return the network that a checkpoint is of, see `load_run`."""
    model = models.build(metadata["model"], **metadata["model_fields"], backend=backend)
    if metadata["potential"] is None:
        return model
    potential = metadata["potential"]
    return models.Potential(
        model=model,
        scale=tuple(potential["scale"]),
        shift=tuple(potential["shift"]),
        trainable_scale_shift=potential["trainable_scale_shift"],
        # older runs have neither
        binds_within=potential.get("binds_within"),
        repulsion=models.ZBL.from_plain(potential.get("repulsion")),
    )
