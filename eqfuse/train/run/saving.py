"""Checkpoints of a run, best and last, written so that none is ever lost."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from eqfuse.train.run.checkpoint import has_checkpoint, named_arrays
from eqfuse.train.run.files import (
    FILES,
    CheckpointError,
    encode,
    set_aside,
    sync_folder,
    write_whole,
)


class Checkpoints:
    """Writes the checkpoints `best` and `last` to one folder.

    The last one is kept with the one before it. A new checkpoint is complete on disk, safe from a
    power loss, before it replaces another, so that a run killed at any moment leaves one of the
    two. `best` is written before a `last` that knows of it. What is offered more often than
    `seconds` waits in memory for the next offer or for `flush`. With `writes` False nothing is
    written: another process does it.
    """

    def __init__(self, folder: Path, metadata: dict, seconds: float = 0.0, *, writes: bool = True):
        self._writes = writes
        self._folder = Path(folder).resolve()
        self._metadata = metadata
        self._seconds = seconds
        self._waiting = {}
        self._written_at = -np.inf

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
                self._write(name, *self._waiting[name])
                del self._waiting[name]  # now: an exception within the writing leaves it here
        self._written_at = time.monotonic()

    def _write(self, name: str, step: int, params: Callable, progress: dict, state):
        arrays = named_arrays("params", params())
        if state is not None:
            arrays |= named_arrays("state", state)
        content = encode(arrays, {**self._metadata, "step": step, **progress})
        path, *previous = (self._folder / file for file in FILES[name])
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True)
                sync_folder(self._folder.parent)
            for damaged in filter(Path.is_dir, (path, *previous)):
                set_aside(damaged)
            write_whole(path, content, *previous)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint, {len(content) // 1000 + 1} kB, cannot be written to {path}: "
                f"{error.strerror}; free or repair the disk and resume the run: "
                f"{self._intact(name)}"
            ) from error

    def _intact(self, name: str) -> str:
        """Return what is left where a checkpoint of this name could not be written."""
        run = self._folder.parent
        if has_checkpoint(run, name):
            return "the one before it is intact"
        others = [other for other in FILES if has_checkpoint(run, other)]
        return f"the one in {others[0]} is intact" if others else "none has been written yet"
