"""The structure that a simulation starts from."""

import ase
import ase.io
import numpy as np
from ase import units

from eqfuse.data import DataError, neighbor_list
from eqfuse.md.settings import Settings

_LEAST_DISTANCE = 0.3  # Å; no nuclei are as near, and no network was trained there


def read_start(path) -> ase.Atoms:
    """Return the last frame of a file.

    Raises:
      DataError: a file that cannot be read, or without atoms.
    """
    return read_frames(path, -1)


def read_frames(path, index=":"):
    """Return the frames of a file, or one by its number.

    Raises:
      DataError: a file that cannot be read, or without atoms.
    """
    try:
        frames = ase.io.read(path, index=index)
    except Exception as error:  # ASE raises what it likes
        raise DataError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not len(frames):
        raise DataError(f"{path} has no atoms")
    return frames


def require_apart(positions, cell, pbc):
    """Refuse atoms that overlap.

    Raises:
      DataError: naming the two that are nearest.
    """
    senders, receivers, shifts = neighbor_list(positions, cell, pbc, _LEAST_DISTANCE)
    if not len(senders):
        return
    distances = np.linalg.norm(positions[senders] + shifts - positions[receivers], axis=1)
    pair = int(np.argmin(distances))
    raise DataError(
        f"atoms {receivers[pair]} and {senders[pair]} overlap: they are {distances[pair]:.3g} Å "
        f"apart, less than {_LEAST_DISTANCE} Å; relax or correct the structure first"
    )


def initial_velocities(atoms: ase.Atoms, settings: Settings) -> np.ndarray:
    """Return the velocities of atoms, or, if all are zero, some of the temperature.

    Raises:
      DataError: velocities that are not finite.
    """
    velocities = atoms.get_velocities()
    if not np.isfinite(velocities).all():
        raise DataError("velocities are not finite; correct or remove them")
    if velocities.any() or settings.temperature == 0:
        return velocities
    masses = np.asarray(atoms.get_masses(), np.float64)[:, None]
    random = np.random.default_rng(settings.seed).standard_normal(velocities.shape)
    velocities = random * np.sqrt(units.kB * settings.temperature / masses)
    if len(atoms) == 1:
        return velocities
    velocities -= (masses * velocities).sum(axis=0) / masses.sum()
    kinetic = (masses * velocities**2).sum() / 2
    wanted = (3 * len(atoms) - 3) * units.kB * settings.temperature / 2
    return velocities * np.sqrt(wanted / kinetic)
