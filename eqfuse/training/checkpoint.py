"""Checkpoints of a run, best and last, and how to read a run back."""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from eqfuse import models

FORMAT = 3
# Of orbax's files, bytes: measured with many small arrays, and rounded up.
_OVERHEAD, _OVERHEAD_PER_ARRAY = 100_000, 1_500


class CheckpointError(ValueError):
    """A run folder that cannot be read; the message is for the user."""


class Checkpoints:
    """Writes the checkpoints `best` and `last` under one folder.

    A new checkpoint is complete on disk before the one that it replaces is removed, so that a run
    killed at any moment leaves one of the two. `best` is written before a `last` that knows of it.
    What is offered more often than `seconds` waits in memory for the next offer or for `flush`.
    With `writes` False nothing is: another process does it.
    """

    def __init__(self, folder: Path, metadata: dict, seconds: float = 0.0, *, writes: bool = True):
        self._writes = writes
        self._folder = Path(folder).resolve()
        self._metadata = {"format": FORMAT, **metadata}
        self._seconds = seconds
        self._waiting = {}
        self._written_at = -np.inf
        self._managers = {}

    def offer(self, name: str, step: int, params: Callable, progress: dict, state=None):
        """Keep parameters as checkpoint `name`, now or at the next chance.

        Args:
          name: "best" or "last".
          step: number of optimiser steps behind the parameters.
          params: gives a pytree of arrays, to predict with; called if they are written.
          progress: epoch, metrics; plain values.
          state: pytree of arrays that a resumed run needs besides; None for nothing.
        """
        if not self._writes:
            return
        self._waiting[name] = (step, params, progress, state)
        if name == "last" and time.monotonic() - self._written_at >= self._seconds:
            self.flush()

    def flush(self):
        """Write what waits.

        Raises:
          CheckpointError: the disk is full or not writable; what was written before is intact.
        """
        for name in ("best", "last"):
            if name in self._waiting:
                self._write(name, *self._waiting.pop(name))
        self._written_at = time.monotonic()

    def close(self):
        try:
            self.flush()
        finally:
            for manager in self._managers.values():
                manager.close()

    def _write(self, name: str, step: int, params: Callable, progress: dict, state):
        items = {"params": params()} | ({} if state is None else {"state": state})
        items = {key: jax.tree.map(np.asarray, item) for key, item in items.items()}
        metadata = {**self._metadata, "step": step, **progress}
        metadata["arrays_sha256"] = {key: _digest(item) for key, item in items.items()}
        arguments = {key: ocp.args.StandardSave(item) for key, item in items.items()}
        arguments["metadata"] = ocp.args.JsonSave({**metadata, "sha256": _text_digest(metadata)})
        try:
            manager = self._manager(name)
            _require_space(self._folder, items)
            # Counted, not named by step: a resumed run may write the same step again.
            serial = 1 + max(manager.all_steps(), default=0)
            with _quiet():
                manager.save(serial, args=ocp.args.Composite(**arguments), force=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint cannot be written to {self._folder / name}: {_reason(error)}; "
                f"{_remedy(error)}: the one before it is intact"
            ) from error

    def _manager(self, name: str) -> ocp.CheckpointManager:
        if name not in self._managers:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
            # What a process left unfinished that was killed, or found the disk full.
            for unfinished in (self._folder / name).glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            options = _options(max_to_keep=1, enable_async_checkpointing=False)
            self._managers[name] = ocp.CheckpointManager(self._folder / name, options=options)
        return self._managers[name]


def _require_space(folder: Path, items: dict):
    """Refuse to begin a checkpoint for which there is no room.

    Raises:
      OSError: with what is needed and what is free. A quota may still end the writing later.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(items)]
    needed = _OVERHEAD + sum(leaf.nbytes + _OVERHEAD_PER_ARRAY for leaf in leaves)
    free = shutil.disk_usage(folder).free
    if free < needed:
        text = f"it needs {needed // 1000} kB, and {free // 1000} kB are free"
        raise OSError(errno.ENOSPC, text)


@contextlib.contextmanager
def _quiet():
    """Context without the pages that orbax logs of an error that it raises as well."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: Exception) -> str:
    """What the system said of a file, without the names of orbax's parts of it."""
    if code := _os_error_code(error):
        return os.strerror(code)
    return error.strerror if isinstance(error, OSError) and error.strerror else _first_line(error)


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError) or _os_error_code(error):
        return "free or repair the disk and resume the run"
    return "this is no fault of the disk, please report it; resume the run"


def _os_error_code(error: Exception) -> int | None:
    """The system's number in orbax's message, if it has one."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return int(code[1]) if code else None


def _options(**fields) -> ocp.CheckpointManagerOptions:
    """Of a manager that waits for no other process."""
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process{here}"
    )
    return ocp.CheckpointManagerOptions(multiprocessing_options=alone, create=False, **fields)


def load_run(folder, *, which: str | None = None, backend: str | None = None):
    """The trained network of a run, finished or interrupted.

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
    """
    params, metadata, _ = read_checkpoint(folder, _names(which))
    return module_of(metadata, backend), jax.tree.map(jnp.asarray, params), metadata


def read_metadata(folder, *, which: str | None = None) -> dict:
    """What `load_run` gives as metadata, without the network.

    Args:
      folder, which: see `load_run`.
    Raises:
      CheckpointError: no readable checkpoint there.
    """
    return _of_newest(_read_metadata, folder, _names(which))


def _names(which: str | None) -> tuple[str, ...]:
    return (which,) if which else ("best", "last")


def has_checkpoint(folder, name: str) -> bool:
    """Whether a run has a whole checkpoint of that name, "best" or "last"."""
    return bool(_serials(Path(folder).expanduser().resolve() / "checkpoints" / name))


def read_checkpoint(folder, names: tuple[str, ...], state_like=None):
    """The first of the named checkpoints that a run has.

    Args:
      folder: the run's folder.
      names: of "best" and "last".
      state_like: pytree of arrays like the state that was offered; None not to read a state.
    Returns:
      params, a pytree of numpy arrays; metadata; the state as numpy arrays, or None.
    Raises:
      CheckpointError: no checkpoint, a damaged one, or one of another model.
    """
    return _of_newest(functools.partial(_read, state_like=state_like), folder, names)


def _of_newest(read: Callable, folder, names: tuple[str, ...]):
    """What `read` makes of the newest checkpoint; of a newer one if that was removed meanwhile."""
    place = _newest(folder, names)
    while True:
        try:
            with _quiet():
                return read(*place)
        except CheckpointError:
            before, place = place, _newest(folder, names)
            if place == before:
                raise


def _newest(folder, names: tuple[str, ...]) -> tuple[Path, int]:
    """Where the first of the named checkpoints that a run has is, and its number.

    Raises:
      CheckpointError: it has none.
    """
    folder = Path(folder).expanduser().resolve()
    for name in names:
        path = folder / "checkpoints" / name
        if serials := _serials(path):
            return path, max(serials)
    raise CheckpointError(f"{folder} has no checkpoint ({' or '.join(names)}); is it a run folder?")


def _serials(path: Path) -> list[int]:
    """Numbers of the whole checkpoints; one that was being written is not among them."""
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
        if _digest(item) != metadata["arrays_sha256"][key]:
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
    if digest != _text_digest(metadata):
        raise CheckpointError(f"checkpoint {where} is damaged: its metadata has changed")
    return metadata


def _restore(path: Path, serial: int, **arguments):
    try:
        with ocp.CheckpointManager(path, options=_options()) as manager:
            restored = manager.restore(serial, args=ocp.args.Composite(**arguments))
    except Exception as error:  # orbax and tensorstore raise many types on broken files
        raise CheckpointError(
            f"checkpoint {path / str(serial)} is damaged, or of another model: {_first_line(error)}"
        ) from error
    return {key: restored[key] for key in arguments}


def _digest(tree) -> str:
    """SHA-256 of the arrays of a pytree: their order, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.dtype} {np.shape(leaf)} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _text_digest(metadata: dict) -> str:
    return hashlib.sha256(json.dumps(metadata, sort_keys=True).encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def module_of(metadata: dict, backend: str | None):
    """The network that a checkpoint is of, see `load_run`."""
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
