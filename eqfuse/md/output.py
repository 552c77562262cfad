"""Files of a simulation: frames, a table, a picture, and the checkpoint that it goes on from."""

import csv
import dataclasses
import gzip
import io
import math
import time
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase import units

from eqfuse.data import DataError, neighbor_list
from eqfuse.md.settings import Settings
from eqfuse.plots import dynamics
from eqfuse.train import CheckpointError
from eqfuse.train.run.files import encode, read_file, write_whole
from eqfuse.train.settings.schema import ConfigError

TABLE, PICTURE, DISTANCES = "thermo.csv", "thermo.png", "distances.csv"
_CHECKPOINT, _FORMAT = "checkpoint.safetensors", 3
REACH, WIDTH = 8.0, 0.05
"""Å: the largest distance, and the width of a bin."""
_HEAD = (
    "step,time_fs,potential_ev,kinetic_ev,total_ev,temperature_k,conserved_ev,pressure_gpa,"
    "volume_a3\n"
)


def read_checkpoint(folder: Path) -> tuple[dict, dict]:
    """Return the arrays and the metadata of the checkpoint of a simulation."""
    path = folder / _CHECKPOINT
    arrays, metadata = read_file(path)
    if metadata.get("kind") != "md":
        raise CheckpointError(f"checkpoint {path} is not of a simulation")
    if metadata.get("simulation_format") != _FORMAT:
        raise CheckpointError(
            f"checkpoint {path} was written by another version of eqfuse; start a new simulation "
            "from the last frame of its trajectory, which has the velocities"
        )
    return arrays, metadata


def create(settings: Settings, network: str) -> Path:
    """Make the folder of a simulation."""
    path = Path(settings.run or f"runs/{time.strftime('%Y%m%d-%H%M%S')}_md")
    try:
        path.mkdir(parents=True)
    except OSError as error:
        hint = "give another folder, or continue it with resume=" if path.exists() else error
        raise ConfigError(f"run={path} cannot be made: {hint}") from error
    values = {"network": network, **dataclasses.asdict(settings)}
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    write_whole(path / "settings.txt", text)
    return path


def write_checkpoint(folder: Path, settings: Settings, arrays: dict[str, np.ndarray], **metadata):
    """Write what `read_checkpoint` reads."""
    settings = dataclasses.asdict(settings) | {"run": None}
    metadata |= {"kind": "md", "simulation_format": _FORMAT, "settings": settings}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_whole(folder / _CHECKPOINT, encode(arrays, metadata))


class Distances:
    """The radial distribution of a simulation.

    The first row of the counts, [2, n_bins], sums over frames the pairs in each bin for an atom,
    times the volume of an atom if there is one; the second begins with the number of frames.
    """

    def __init__(self, counts: np.ndarray | None = None):
        bins = round(REACH / WIDTH)
        self.counts = np.zeros((2, bins)) if counts is None else np.array(counts)

    def add(self, atoms: ase.Atoms):
        """Add the distances of a frame."""
        positions, cell, pbc = atoms.positions, atoms.cell.array, atoms.pbc
        try:
            senders, receivers, shifts = neighbor_list(positions, cell, pbc, REACH)
        except DataError:  # of more pairs than fit the memory, or flown apart
            return
        vectors = positions[senders] + shifts - positions[receivers]
        lengths = np.sqrt(np.einsum("ei,ei->e", vectors, vectors))
        bins = self.counts.shape[1]
        counts = np.bincount((lengths / WIDTH).astype(int), minlength=bins)[:bins]
        scale = abs(np.linalg.det(cell)) / len(atoms) if pbc.all() else 1.0
        self.counts[0] += counts * scale / len(atoms)
        self.counts[1, 0] += 1

    def write(self, path: Path, periodic: bool):
        """Write r (Å) and g(r), or the pairs of an atom by Å where not all is periodic."""
        edges = WIDTH * np.arange(self.counts.shape[1] + 1)
        shells = 4 / 3 * math.pi * np.diff(edges**3) if periodic else WIDTH
        values = self.counts[0] / max(self.counts[1, 0], 1) / shells
        with open(path, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(("r_a", "g" if periodic else "pairs_by_a"))
            middles = (edges[1:] - WIDTH / 2).round(4)
            rows.writerows(np.stack([middles, values], axis=1).tolist())


@dataclasses.dataclass
class Folder:
    """The folder of one structure of a simulation."""

    path: Path
    settings: Settings
    sizes: dict[str, int]  # bytes of the trajectory and the table, so far
    distances: Distances  # between the atoms in the frames so far

    @property
    def trajectory(self) -> str:
        return f"trajectory.{self.settings.trajectory}"

    @classmethod
    def begin(cls, path: Path, settings: Settings) -> "Folder":
        """Begin the files in a folder, which is made if it is not there."""
        path.mkdir(exist_ok=True)
        folder = cls(path, settings, {}, Distances())
        folder.sizes[folder.trajectory] = 0
        folder._append(TABLE, _HEAD)
        return folder

    @classmethod
    def reopen(cls, path: Path, settings: Settings, sizes: dict[str, int], counts) -> "Folder":
        """Open the folder of a checkpoint, and cut off what was written after it."""
        for name, size in sizes.items():
            if not (path / name).exists() or (path / name).stat().st_size < size:
                raise CheckpointError(f"{path / name} is missing or cut: it cannot be continued")
        for name, size in sizes.items():
            with open(path / name, "r+b") as file:
                file.truncate(size)
        return cls(path, settings, dict(sizes), Distances(counts))

    def add_row(self, step: int, row: dict):
        """Add a step to the table: energies (eV), temperature (K), pressure and volume."""
        energies = row["potential"], row["kinetic"], row["potential"] + row["kinetic"]
        others = row["temperature"], row["conserved"], row["pressure"] / units.GPa, row["volume"]
        values = step * self.settings.timestep, *energies, *others
        self._append(TABLE, ",".join(map(repr, (step, *map(float, values)))) + "\n")

    def add_frame(self, atoms: ase.Atoms, step: int):
        """Add a frame to the trajectory: positions, not wrapped, momenta, energy and forces."""
        atoms.info |= {"step": step, "time_fs": step * self.settings.timestep}
        text = io.StringIO()
        ase.io.write(text, atoms, format="extxyz")
        data = text.getvalue().encode()
        if self.settings.trajectory == "xyz.gz":  # one member for each frame, of the same bytes
            data = gzip.compress(data, mtime=0)
        with open(self.path / self.trajectory, "ab") as file:
            file.write(data)
            self.sizes[self.trajectory] = file.tell()
        self.distances.add(atoms)

    def draw(self, periodic: bool):
        """Write the radial distribution, and draw the picture of it and the table."""
        self.distances.write(self.path / DISTANCES, periodic)
        dynamics(self.path / TABLE, self.path / DISTANCES, self.path / PICTURE)

    def _append(self, name: str, text: str):
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)
        self.sizes[name] = (self.path / name).stat().st_size
