"""Checkpoints of a run, best and last, written so that none is ever lost."""

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from eqfuse.train.run.checkpoint import (
    FORMAT,
    KEPT,
    CheckpointError,
    digest_of,
    digest_of_text,
    manager_options,
    serials_in,
)
from eqfuse.train.run.disk import reason, remedy, require_space, sync, sync_tree
from eqfuse.train.run.quiet import quiet, signals_held


class Checkpoints:
    """Writes the checkpoints `best` and `last` under one folder.

    The two newest of `last` are kept. A new checkpoint is complete on disk, safe from a power loss,
    before the one that it replaces is removed, so that a run killed at any moment leaves one of the
    two. `best` is written before a `last` that knows of it. A signal waits until a write has ended.
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
        metadata["arrays_sha256"] = {key: digest_of(item) for key, item in items.items()}
        arguments = {key: ocp.args.StandardSave(item) for key, item in items.items()}
        arguments["metadata"] = ocp.args.JsonSave({**metadata, "sha256": digest_of_text(metadata)})
        try:
            with signals_held():
                self._save(name, items, ocp.args.Composite(**arguments))
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint cannot be written to {self._folder / name}: {reason(error)}; "
                f"{remedy(error)}: {self._intact(name)}"
            ) from error

    def _save(self, name: str, items: dict, arguments):
        manager = self._manager(name)
        require_space(self._folder, items)
        before = sorted(manager.all_steps())
        # Counted, not named by step: a resumed run may write the same step again.
        serial = 1 + max(before, default=0)
        with quiet():
            manager.save(serial, args=arguments, force=True)
        try:
            sync_tree(self._folder / name / str(serial))
            for folder in (self._folder / name, self._folder, self._folder.parent):
                sync(folder)
        except OSError:
            manager.delete(serial)  # nobody knows what of it is there
            raise
        for old in [*before, serial][: -KEPT[name]]:
            manager.delete(old)

    def _intact(self, name: str) -> str:
        """Return what is left where a checkpoint of this name could not be written."""
        if self._has(name):
            return "the one before it is intact"
        others = [other for other in KEPT if self._has(other)]
        return f"the one in {others[0]} is intact" if others else "none has been written yet"

    def _has(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return bool(serials_in(self._folder / name))
        return False

    def _manager(self, name: str) -> ocp.CheckpointManager:
        if name not in self._managers:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
            # What a process left unfinished that was killed, or found the disk full.
            for unfinished in (self._folder / name).glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            options = manager_options(enable_async_checkpointing=False)
            self._managers[name] = ocp.CheckpointManager(self._folder / name, options=options)
        return self._managers[name]
