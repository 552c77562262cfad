"""The structures of a simulation: how they start, and the files of each."""

import contextlib
import gzip
import io
import math
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ase
import ase.io
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.velocitydistribution import Stationary, force_temperature, thermalize_momenta

from eqfuse import plots
from eqfuse.data import (
    HELD,
    DataError,
    Structure,
    as_atoms,
    frames_of,
    iterate_atoms,
    keep,
    labels_of,
    neighbor_list,
    require_apart,
    species_index,
    unread_names,
    writable,
)
from eqfuse.inference import Network
from eqfuse.md.integrators import State
from eqfuse.md.settings import Settings
from eqfuse.md.steps import COLUMNS
from eqfuse.runs import CheckpointError, ConfigError, require_here, write_table

TABLE, PICTURE, DISTANCES = "thermo.csv", "thermo.png", "distances.csv"
REACH, WIDTH = 8.0, 0.05
"""Å: the largest distance, and the width of a bin."""
_HEAD = (
    "step,time_fs,potential_ev,kinetic_ev,total_ev,temperature_k,conserved_ev,pressure_gpa,"
    "volume_a3\n"
)


def structures_of(start, settings: Settings) -> list[ase.Atoms]:
    """Return the structures that are simulated: `settings.replicas` of each."""
    last = settings.frames == "last"
    frames = atoms_of(start, partial(read_frames, types=settings.types, last=last))
    if names := sorted({name for one in frames for name in unread_names(one, "masses")}):
        print(f"{', '.join(names)} of the start may be masses: the column masses alone is read")
    frames = [_with_velocities(atoms, settings.velocities) for atoms in frames]
    is_random = settings.equilibrate or settings.ensemble in ("langevin", "npt")
    if settings.replicas > 1 and not is_random:
        for number, atoms in enumerate(frames):
            if atoms.get_velocities().any() or settings.temperature == 0:
                raise ConfigError(
                    f"replicas={settings.replicas} would all be the same: velocities of structure "
                    f"{number} are not drawn, and ensemble={settings.ensemble} has no noise; "
                    "remove its velocities, give a temperature, or choose ensemble=langevin"
                )
    return [atoms for atoms in frames for _ in range(settings.replicas)]


_UNITS = {"A/fs": 1 / units.fs, "A/ps": 1e-3 / units.fs, "bohr/aut": units.Bohr / units.AUT}


def _with_velocities(atoms: ase.Atoms, unit: str | None) -> ase.Atoms:
    """Return atoms with the velocities of a column that has another name, in a unit, or without.

    Raises:
      DataError: no unit is given, and the atoms have no momenta, or momenta of another name; or a
        unit, and no column.
    """
    if unit == "drawn":
        atoms = atoms.copy()
        atoms.arrays.pop("momenta", None)
        return atoms
    if not atoms.has("momenta") and (names := unread_names(atoms, "momenta")):
        text = f"{', '.join(names)} of the start may be momenta: rename the column to momenta"
        raise DataError(f"{text}, as ASE does, in its unit, sqrt(eV amu), or give velocities=drawn")
    names = unread_names(atoms, "velocities")
    if unit is None and (not names or atoms.has("momenta")):
        return atoms
    if not names:
        raise DataError(f"velocities={unit} is of a column vel, velo or velocities: there is none")
    has = {**atoms.info, **atoms.arrays}
    values = np.column_stack([has[name] for name in sorted(names)])
    if unit is None or values.shape != (len(atoms), 3):
        raise DataError(
            f"{', '.join(names)} of the start may be velocities, whose unit is not known: give "
            f"velocities= {', '.join(_UNITS)} of one column, or velocities=drawn, or write momenta"
        )
    atoms = atoms.copy()
    atoms.set_velocities(values * _UNITS[unit])
    for name in names:
        (atoms.arrays if name in atoms.arrays else atoms.info).pop(name)
    return atoms


def atoms_of(start, read: Callable = iterate_atoms) -> list[ase.Atoms]:
    """Return the atoms that a function was given, in any form, see `frames_of`."""
    frames = frames_of(start, read)
    frames = [as_atoms(one) if isinstance(one, Structure) else one for one in frames]
    if names := sorted(set[str]().union(*(labels_of(one.copy()) for one in frames))):
        print(f"{', '.join(names)} of the start may be labels of its positions, and are not kept")
    if names := sorted({name for one in frames for name in unread_names(one, HELD)}):
        print(f"{', '.join(names)} of the start may be {HELD}: they move, as only constraints hold")
    return frames


def read_frames(path, types=None, *, last: bool = False) -> list[ase.Atoms]:
    """Return the frames of a file, or the last one, whose number is printed if there are others.

    `types` are the elements of LAMMPS's types, see `eqfuse.data.read_structures`.
    """
    frames = iterate_atoms(path, types=types)
    if not last:
        return [*frames]
    [(number, atoms)] = deque(enumerate(frames), 1)
    if number:
        print(f"start: frame {number} of {path}, its last")
    return [atoms]


def initial_velocities(atoms: ase.Atoms, temperature: float, seed: int) -> np.ndarray:
    """Return the velocities of atoms, or, if all are zero, some of the temperature (K)."""
    velocities = atoms.get_velocities()
    if not np.isfinite(velocities).all():
        raise DataError("velocities are not finite; correct or remove them")
    if velocities.any() or temperature == 0:
        return velocities
    drawn, count = atoms.copy(), len(atoms)
    thermalize_momenta(drawn, temperature, rng=np.random.default_rng(seed))
    if count > 1:
        Stationary(drawn, preserve_temperature=False)
    force_temperature(drawn, temperature * max(count - 1, 1) / count)  # ASE's is by 3 n_atoms
    return drawn.get_velocities()


def pair_counts(atoms: ase.Atoms, reach: float, width: float) -> np.ndarray:
    """Return the pairs of an atom in bins of distances up to `reach`, all and width in Å.

    Of atoms that are periodic in three directions, they are times the volume of an atom, Å^3.
    """
    positions, cell, bins = atoms.positions, atoms.cell.array, round(reach / width)
    senders, receivers, shifts = neighbor_list(positions, cell, atoms.pbc, reach)
    vectors = positions[senders] + shifts - positions[receivers]
    lengths = np.sqrt(np.einsum("ei,ei->e", vectors, vectors))
    counts = np.bincount((lengths / width).astype(int), minlength=bins)[:bins]
    scale = abs(np.linalg.det(cell)) / len(atoms) if atoms.pbc.all() else 1.0
    return counts * scale / len(atoms)


def radial_distribution(counts: np.ndarray, width: float, periodic: bool):
    """Return the middles of bins, Å, and g(r) of mean `pair_counts`, or pairs of an atom by Å."""
    edges = width * np.arange(len(counts) + 1)
    shells = 4 / 3 * math.pi * np.diff(edges**3) if periodic else width
    return edges[1:] - width / 2, counts / shells


class Member:
    """A structure of a simulation, and the files in its folder.

    Its atoms keep `info` and columns, but no labels, which would not be those of later frames.
    `last` has the values of `COLUMNS` at the last step, with the reference energies, and `sizes`
    the bytes of the files. The first row of the distances, [2, n_bins], sums over frames the pairs
    in each bin for an atom, times the volume of an atom if there is one; the second begins with the
    number of frames.
    """

    def __init__(self, atoms: ase.Atoms, network: Network, settings: Settings):
        if atoms.constraints:
            raise DataError("the atoms have constraints, which are not simulated; remove them")
        self._settings = settings
        structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
        self.atoms = ase.Atoms(atoms.numbers, atoms.positions, cell=structure.cell, pbc=atoms.pbc)
        self._given_cell = atoms.cell.copy()
        self.species = species_index(atoms.numbers, network.species)
        self._reference = float(network.references[self.species].sum())
        self.masses = np.asarray(atoms.get_masses(), np.float64)
        if not (np.isfinite(self.masses) & (self.masses > 0)).all():
            raise DataError("masses must be finite and greater than zero")
        if settings.ensemble == "npt" and not all(atoms.pbc):
            raise DataError(
                "ensemble=npt needs a cell with three periodic directions, and "
                f"pbc={atoms.pbc.tolist()}; choose another ensemble, or make the atoms periodic"
            )
        require_apart(structure)
        if (dispersion := network.dispersion) is not None:
            dispersion.of(structure)  # refused where there is none
            self.atoms.info["dispersion"] = str(dispersion)
        self.atoms.info |= {"step": 0, "time_fs": 0.0}
        self.renamed = keep(self.atoms, atoms, {"momenta", "masses", *labels_of(atoms)})
        self.last: np.ndarray | None = None
        self.sizes: dict[str, int] = {}
        self.distances = np.zeros((2, round(REACH / WIDTH)))
        self._trajectory = f"trajectory.{settings.trajectory}"

    def begin(self, path: Path):
        """Begin the files in a folder, which is made if it is not there."""
        path.mkdir(exist_ok=True)
        self._path, self.sizes[self._trajectory] = path, 0
        self._append(TABLE, _HEAD.encode())

    def reopen(self, path: Path, sizes: dict[str, int], distances, last):
        """Open the folder of a checkpoint, and cut off what was written after it."""
        for name, size in sizes.items():
            require_here(path / name)
            if not (path / name).exists() or (path / name).stat().st_size < size:
                raise CheckpointError(f"{path / name} is missing or cut: it cannot be continued")
        for name, size in sizes.items():
            os.truncate(path / name, size)
        self._path, self.sizes = path, dict(sizes)
        first = ase.io.read(path / self._trajectory, 0, format="extxyz")
        self._given_cell = first.cell
        keep(self.atoms, first, {"momenta", "masses", *labels_of(first), *self.atoms.info})
        self.distances, self.last = np.array(distances), last

    def record(self, rows, first: int, state: State):
        """Write the rows of steps from number `first` on, and the frame after them if it is due."""
        rows, settings = np.array(rows), self._settings
        rows[:, [COLUMNS.index("potential"), COLUMNS.index("conserved")]] += self._reference
        for step, row in enumerate(rows, first):
            if step % settings.log_every == 0 or step == settings.steps:
                potential, kinetic, temperature, _, conserved, pressure, size, _ = map(float, row)
                values = [step, step * settings.timestep, potential, kinetic, potential + kinetic]
                values += [temperature, conserved, pressure / units.GPa, size]
                self._append(TABLE, (",".join(map(repr, values)) + "\n").encode())
        if len(rows):
            step, self.last = first + len(rows) - 1, rows[-1]
            if step % settings.save_every == 0 or step == settings.steps:
                self.add_frame(state)

    def frame(self, state: State) -> ase.Atoms:
        """Return the structure in a state, with velocities, energy, forces, step and time."""
        atoms, count, step = self.atoms.copy(), len(self.atoms), int(state.step)
        atoms.info |= {"step": step, "time_fs": step * self._settings.timestep}
        atoms.positions = state.positions[:count]
        atoms.cell = state.cell if atoms.pbc.any() else self._given_cell
        atoms.set_masses(self.masses)
        atoms.set_velocities(state.velocities[:count])
        results = {"energy": float(self.last[0]), "forces": np.array(state.forces[:count])}
        atoms.calc = SinglePointCalculator(atoms, **results)
        return atoms

    def add_frame(self, state: State):
        """Add a frame to the trajectory: positions, not wrapped, momenta, energy and forces."""
        atoms = self.frame(state)
        text = io.StringIO()
        ase.io.write(text, writable(atoms), format="extxyz")
        data = text.getvalue().encode()
        if self._settings.trajectory == "xyz.gz":  # one member for each frame, of the same bytes
            data = gzip.compress(data, mtime=0)
        self._append(self._trajectory, data)
        with contextlib.suppress(DataError):  # of more pairs than fit the memory, or flown apart
            self.distances[0] += pair_counts(atoms, REACH, WIDTH)
            self.distances[1, 0] += 1

    def draw(self):
        """Write the radial distribution, and draw it and the table.

        It is r (Å) and g(r), or the pairs of an atom by Å where not all is periodic.
        """
        periodic = all(self.atoms.pbc)
        counts = self.distances[0] / max(self.distances[1, 0], 1)
        middles, values = radial_distribution(counts, WIDTH, periodic)
        names = "r_a", "g" if periodic else "pairs_by_a"
        rows = np.stack([middles.round(4), values], axis=1).tolist()
        write_table(self._path / DISTANCES, [dict(zip(names, row, strict=True)) for row in rows])
        plots.dynamics(self._path / TABLE, self._path / DISTANCES, self._path / PICTURE)

    def _append(self, name: str, data: bytes):
        try:
            with open(self._path / name, "ab") as file:
                file.write(data)
                self.sizes[name] = file.tell()
        except OSError as error:
            error.filename = str(self._path / name)
            raise

    def excess(self, row) -> str | None:
        """Return the limit that values of `COLUMNS` pass; None if they pass none."""
        potential, _, temperature, force, *_, spread = row
        if not np.isfinite([potential, temperature, force]).all():
            return "energy or forces are not finite"
        for name, value, text in (
            ("max_force", force, f"a force of {force:.4g} eV/Å"),
            ("max_temperature", temperature, f"a temperature of {temperature:.4g} K"),
            ("max_spread", spread, f"a spread of {spread:.4g} eV of an atom's energy"),
        ):
            limit = getattr(self._settings, name)
            if limit is not None and not value <= limit:
                return f"{text} is above {name}={limit:g}"
        return None
