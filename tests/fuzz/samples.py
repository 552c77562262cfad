"""The small training run that is fuzzed."""

from pathlib import Path

import ase.build
import ase.io
import numpy as np

from tests.small_runs import TINY, labelled

FRAMES, STEPS_PER_EPOCH = 20, 4


def water(folder: Path) -> Path:
    """Write distorted water molecules with energies and forces, if they are not there yet."""
    path = folder / "water.xyz"
    if not path.exists():
        rng, frames = np.random.default_rng(0), []
        for _ in range(FRAMES):
            atoms = ase.build.molecule("H2O")
            atoms.positions += rng.normal(scale=0.05, size=(3, 3))
            frames.append(labelled(atoms))
        ase.io.write(path, frames, format="extxyz")
    return path


def settings(path: Path, *more: str) -> list[str]:
    """Return the settings of a network that compiles in seconds, trained on a file."""
    return ["data=extxyz", f"data.path={path}", *TINY, "training.checkpoint_seconds=0", *more]
