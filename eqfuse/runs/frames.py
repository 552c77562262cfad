"""Frames with labels that come one by one, in a file of ASE's that is whole at any moment."""

import hashlib
import io
import json
import math
import os
import time
from pathlib import Path

import ase
import ase.io
import numpy as np

from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import require_regular, set_aside, write_whole
from eqfuse.runs.log import warn

_PAUSE = 20  # times what it took to write the file, until it is written again: 5% of the time
_LEAST = 64  # bytes of a frame
_SUM = "sha256"


class Frames:
    """The frames of a file, each with a checksum in its `info`.

    The file is written whole, now or, if that takes long, at the next chance or by `flush`. Of one
    that is damaged, the frames that are whole are kept, and it is set aside with a warning; with
    `repairs` False it is refused by a CheckpointError.
    """

    def __init__(self, path: Path, *, repairs: bool = True):
        self._path, self.is_damaged = path, False
        self._written, self._at, self._took = 0, -math.inf, 0.0
        self.frames: list[ase.Atoms] = []
        if os.path.lexists(path):
            self._read(repairs)

    def add(self, frame: ase.Atoms):
        """Keep a frame."""
        self.frames.append(frame)
        if time.monotonic() - self._at >= _PAUSE * self._took:
            self.flush()

    def flush(self):
        """Write what waits."""
        if self._written == len(self.frames):
            return
        begun, content, signed = time.monotonic(), io.BytesIO(), []
        for frame in self.frames:
            signed.append(one := frame.copy())
            one.calc = frame.calc
            one.info[_SUM] = _digest(frame)
        ase.io.write(content, signed, format="traj")
        write_whole(self._path, content.getvalue())
        self._written, self._at = len(self.frames), time.monotonic()
        self._took = self._at - begun

    def _read(self, repairs: bool):
        count = lost = 1
        try:
            require_regular(self._path)
            with open(self._path, "rb") as opened, ase.io.Trajectory(opened) as file:
                count = lost = min(len(file), os.path.getsize(self._path) // _LEAST)
                for number in range(count):
                    try:
                        frame = file[number]
                        whole = frame.info.pop(_SUM, None) == _digest(frame)
                    except Exception:  # of ASE's reader, which raises many
                        continue
                    self.frames += [frame] if whole else []
                    lost -= whole
        except Exception as error:
            why = f"{error}"
        else:
            why = f"of {count} frames, {lost} are not whole"
        self._written = len(self.frames)
        if not lost:
            return
        if not repairs:
            raise CheckpointError(f"{self._path} is damaged: {why}")
        aside, self.is_damaged, self._written = set_aside(self._path), True, 0
        kept = f"{len(self.frames)} of its frames are whole and are kept"
        warn(f"{self._path} is damaged ({why}), and is now {aside.name}; {kept}")
        self.flush()


def _digest(frame: ase.Atoms) -> str:
    results = frame.calc.results if frame.calc else {}
    digest = hashlib.sha256(json.dumps(frame.info, sort_keys=True, default=float).encode())
    arrays = {n: frame.arrays[n] for n in ("numbers", "positions")}
    for name, array in sorted((arrays | {"cell": frame.cell.array, "pbc": frame.pbc}).items()):
        digest.update(f"{name} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    for name, value in sorted(results.items()):
        digest.update(f"{name}".encode() + np.asarray(value, np.float64).tobytes())
    return digest.hexdigest()
