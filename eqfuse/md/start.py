"""The structure that a simulation starts from."""

import os

import ase
import ase.io
import numpy as np
from ase import units

from eqfuse.data import DataError, neighbor_list
from eqfuse.md.settings import Settings
from eqfuse.train.settings.schema import ConfigError

_LEAST_DISTANCE = 0.3  # Å; no nuclei are as near, and no network was trained there


def structures_of(start, settings: Settings) -> list[ase.Atoms]:
    """Return the structures that are simulated: `settings.replicas` of each.

    Args:
      start: `ase.Atoms`, several of them, or a file, of which `settings.frames` are taken.
      settings: of the simulation.
    Raises:
      DataError: a file that cannot be read, or without atoms.
      ConfigError: replicas that would all be the same.
    """
    if isinstance(start, ase.Atoms):
        frames = [start]
    elif isinstance(start, str | os.PathLike):
        frames = read_frames(start, ":" if settings.frames == "all" else "-1:")
    else:
        frames = list(start)
    if settings.replicas > 1 and settings.ensemble in ("nve", "nose-hoover"):
        for number, atoms in enumerate(frames):
            if atoms.get_velocities().any() or settings.temperature == 0:
                raise ConfigError(
                    f"replicas={settings.replicas} would all be the same: velocities of structure "
                    f"{number} are not drawn, and ensemble={settings.ensemble} has no noise; "
                    "remove its velocities, give a temperature, or choose ensemble=langevin"
                )
    return [atoms for atoms in frames for _ in range(settings.replicas)]


def read_frames(path, index=":") -> list[ase.Atoms]:
    """Return the frames of a file.

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


def initial_velocities(atoms: ase.Atoms, temperature: float, seed: int) -> np.ndarray:
    """Return the velocities of atoms, or, if all are zero, some of the temperature (K).

    Raises:
      DataError: velocities that are not finite.
    """
    velocities = atoms.get_velocities()
    if not np.isfinite(velocities).all():
        raise DataError("velocities are not finite; correct or remove them")
    if velocities.any() or temperature == 0:
        return velocities
    masses = np.asarray(atoms.get_masses(), np.float64)[:, None]
    random = np.random.default_rng(seed).standard_normal(velocities.shape)
    velocities = random * np.sqrt(units.kB * temperature / masses)
    if len(atoms) == 1:
        return velocities
    velocities -= (masses * velocities).sum(axis=0) / masses.sum()
    kinetic = (masses * velocities**2).sum() / 2
    wanted = (3 * len(atoms) - 3) * units.kB * temperature / 2
    return velocities * np.sqrt(wanted / kinetic)
