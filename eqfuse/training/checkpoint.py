"""Checkpoints of a run, best and last, and how to read a run back."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from eqfuse import models

FORMAT = 1


class CheckpointError(ValueError):
    """A run folder that cannot be read; the message is for the user."""


class Checkpoints:
    """Writes the checkpoints `best` and `last` under one folder.

    A new checkpoint is complete on disk before the one that it replaces is removed, so that a run
    killed at any moment leaves one of the two. What is offered more often than `seconds` waits in
    memory for the next offer or for `flush`.
    """

    def __init__(self, folder: Path, metadata: dict, seconds: float = 0.0):
        self._folder = Path(folder).resolve()
        self._metadata = {"format": FORMAT, **metadata}
        self._seconds = seconds
        self._waiting = {}
        self._written_at = {}
        self._managers = {}

    def offer(self, name: str, step: int, params, progress: dict):
        """Keep `params` as checkpoint `name`, now or at the next chance.

        Args:
          name: "best" or "last".
          step: number of optimiser steps behind the parameters; increases from call to call.
          params: pytree of arrays.
          progress: epoch, metrics; plain values.
        """
        self._waiting[name] = (step, params, progress)
        if time.monotonic() - self._written_at.get(name, -np.inf) >= self._seconds:
            self._write(name)

    def flush(self):
        """Write what waits."""
        for name in tuple(self._waiting):
            self._write(name)

    def close(self):
        self.flush()
        for manager in self._managers.values():
            manager.close()

    def _write(self, name: str):
        step, params, progress = self._waiting.pop(name)
        if name not in self._managers:
            options = ocp.CheckpointManagerOptions(max_to_keep=1, enable_async_checkpointing=False)
            self._managers[name] = ocp.CheckpointManager(self._folder / name, options=options)
        metadata = {**self._metadata, "step": step, **progress}
        self._managers[name].save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(jax.tree.map(np.asarray, params)),
                metadata=ocp.args.JsonSave(metadata),
            ),
        )
        self._written_at[name] = time.monotonic()


def load_run(folder, *, which: str | None = None, backend: str | None = None):
    """The trained network of a run, finished or interrupted.

    Args:
      folder: the run's folder.
      which: "best" or "last"; None for the best one if there is one yet, else the last.
      backend: implementation of the ops, see `eqfuse.ops`; None to choose by device.
    Returns:
      module, a `models.Potential` (energies in eV, relative to the reference energies) or, for a
      Tetris run, the bare network; params, its variables, in float64 only where JAX has that
      enabled; metadata, a dict with the configuration, species (atomic numbers), reference
      energies (eV), statistics and units.
    Raises:
      CheckpointError: no readable checkpoint there.
    """
    folder = Path(folder).resolve()
    names = (which,) if which else ("best", "last")
    for name in names:
        path = folder / "checkpoints" / name
        step = ocp.utils.checkpoint_steps(path) if path.is_dir() else []
        if step:
            params, metadata = _read(path, max(step))
            params = jax.tree.map(jnp.asarray, params)
            return _module(metadata, backend), params, metadata
    raise CheckpointError(f"{folder} has no checkpoint ({' or '.join(names)}); is it a run folder?")


def _read(path: Path, step: int):
    try:
        with ocp.CheckpointManager(path) as manager:
            restored = manager.restore(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardRestore(), metadata=ocp.args.JsonRestore()
                ),
            )
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"checkpoint {path / str(step)} is damaged: {error}") from error
    metadata = restored["metadata"]
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {path / str(step)} has format {metadata.get('format')}, "
            f"this version reads format {FORMAT}"
        )
    return restored["params"], metadata


def _module(metadata: dict, backend: str | None):
    model = models.build(metadata["model"], **metadata["model_fields"], backend=backend)
    if metadata["potential"] is None:
        return model
    potential = metadata["potential"]
    return models.Potential(
        model=model,
        scale=tuple(potential["scale"]),
        shift=tuple(potential["shift"]),
        trainable_scale_shift=potential["trainable_scale_shift"],
    )
