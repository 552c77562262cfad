"""A simulation: the device takes the steps, and the host writes."""

import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import ase
import jax
import numpy as np
from ase import units
from ase.md.velocitydistribution import Stationary

from eqfuse.data import DataError
from eqfuse.inference import (
    Grid,
    Network,
    Sizes,
    as_structures,
    predict,
    require_backend,
    unlike_training,
    with_spread,
)
from eqfuse.md.integrators import State
from eqfuse.md.settings import Settings
from eqfuse.md.steps import COLUMNS, LIMIT, MOST_STEPS, Advanced, Room, Stepper, padded_to_longest
from eqfuse.md.structures import Member, initial_velocities, structures_of
from eqfuse.models import Reach
from eqfuse.runs import (
    CheckpointError,
    ConfigError,
    Interrupted,
    StopRequest,
    TrainingFailed,
    encode,
    locked,
    made,
    naming,
    read_file,
    require_free,
    warn,
    write_whole,
    written,
)
from eqfuse.train import duration

_CHECKPOINT, _FORMAT = "checkpoint.safetensors", 4
_FRICTION = 10.0  # 1/ps, at least, of equilibrate=
_AT_REST = 0.02
"""eV/Å, of the largest force of a structure in a minimum."""
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_CHECKPOINTS = 2, 10


def run(network, start, settings: Settings | None = None, **changes):
    """Run a simulation and write its folder: trajectory, table, picture and checkpoint.

    Several structures, or replicas of one, are simulated in one batch, in which each has its own
    list of neighbours, velocities, noise (of `seed + k` for the k-th) and cell, and a folder
    inside that of the simulation. A limit that one of them passes stops all.

    Args:
      network: the folder of a run, or a file of its network (.safetensors).
      start: `ase.Atoms`, or several in any form, see `eqfuse.predict`; of a file the last frame is
        taken, or all with frames="all". Velocities are drawn for the temperature if all are zero.
      settings: None for the defaults.
      changes: settings by name, such as steps=1000.
    Returns:
      the last frame, with velocities; a list of them where there are several structures.
    Raises:
      ConfigError: impossible settings, or a folder that exists.
      DataError: atoms that cannot be simulated: overlapping, not finite, of unknown elements,
        periodic without a cell, or not periodic in the same directions in a batch.
      CheckpointError: no readable network, or none with a spread for max_spread.
      TrainingFailed: a force, the temperature or the spread passed its limit, or atoms moved too
        far in a step; the folder holds the last good frame.
      Interrupted: a signal stopped it; the folder can be resumed.
    """
    settings = dataclasses.replace(settings or Settings(), **changes)
    frames = structures_of(start, settings)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        if settings.equilibrate:
            require_free(settings.run)
            frames = _equilibrated(network, frames, settings)
        simulation = _Simulation(network, frames, settings)
        simulation.begin()
        with locked(simulation.folder, "simulates"):
            return simulation.proceed()


def _equilibrated(network, frames: list[ase.Atoms], settings: Settings) -> list[ase.Atoms]:
    """Return structures after `equilibrate` steps of Langevin dynamics, which nothing keeps.

    They have no total momentum, but for ensembles that do not conserve it.
    """
    count, friction = settings.equilibrate, max(settings.friction, _FRICTION)
    print(f"equilibrate: {count} steps of langevin, with a friction of {friction:g}/ps", flush=True)
    changes = {"ensemble": "langevin", "steps": count, "friction": friction}
    changes["seed"] = (settings.seed + 2**31) % 2**32  # other noise than that of the same steps
    simulation = _Simulation(network, frames, dataclasses.replace(settings, **changes))
    equilibrated = simulation.unwritten()
    if settings.ensemble in ("nve", "nose-hoover"):
        for atoms in (atoms for atoms in equilibrated if len(atoms) > 1):
            Stationary(atoms, preserve_temperature=False)
    return equilibrated


def resume(folder, steps: int | None = None):
    """Continue a simulation from its checkpoint, with the numbers of one without interruption.

    Args:
      folder: that `run` wrote.
      steps: in all; None: as many as it was begun for.
    Returns:
      as `run`.
    Raises:
      ConfigError: fewer steps than were done, or another process that simulates in the folder.
      CheckpointError: no readable checkpoint, or another network where that of the simulation was.
    """
    folder = Path(os.path.expanduser(folder))
    arrays, metadata = read_checkpoint(folder)
    settings = Settings(**metadata["settings"])
    settings = dataclasses.replace(settings, run=str(folder), steps=steps or settings.steps)
    if settings.steps < metadata["step"]:
        raise ConfigError(
            f"steps={settings.steps}: {folder} is already at step {metadata['step']}; give more"
        )
    frames, infos = [], metadata.get("info") or [{}] * len(arrays["sizes"])
    for k, (count, info) in enumerate(zip(arrays["sizes"], infos, strict=True)):
        names = ("numbers", "state.positions", "masses")
        numbers, positions, masses = (arrays[name][k, :count] for name in names)
        periodic = {"cell": arrays["state.cell"][k], "pbc": arrays["pbc"].tolist()}
        frames.append(ase.Atoms(numbers, positions, masses=masses, info=info, **periodic))
    simulation = _Simulation(metadata["network"], frames, settings)
    if simulation.digest != metadata["digest"]:
        raise CheckpointError(
            f"{metadata['network']} holds another network than when {folder} was begun"
        )
    precise = jax.default_matmul_precision("highest")
    with locked(folder, "simulates"), jax.enable_x64(True), precise:
        simulation.go_on(arrays, metadata)
        return simulation.proceed()


class _Simulation:
    """A simulation between two steps."""

    def __init__(self, network, frames: list[ase.Atoms], settings: Settings):
        require_backend(settings.backend)
        self._settings = settings
        how = {name: getattr(settings, name) for name in ("dtype", "backend", "dispersion")}
        network = Network(network, **how)
        self._path = network.path
        network = network.of_elements(np.concatenate([atoms.numbers for atoms in frames]))
        self._network = network if settings.max_spread is None else with_spread(network)
        self.digest = self._network.metadata["arrays_sha256"]
        self._frames, self._members = frames, []
        for number, atoms in enumerate(frames):
            with naming(f"structure {number}" if len(frames) > 1 else None):
                self._members.append(Member(atoms, self._network, settings))
        for text in unlike_training(self._network, as_structures(frames, self._network.charge_key)):
            warn(text)
        pbc = frames[0].pbc
        for number, atoms in enumerate(frames):
            if (atoms.pbc != pbc).any():
                raise DataError(
                    f"structures 0 and {number} are not periodic in the same directions; those of "
                    "one batch must be: simulate them apart"
                )
        species, masses = zip(*((m.species, m.masses) for m in self._members), strict=True)
        charges = [self._network.charge_of(atoms) for atoms in frames]
        self._stepper = Stepper(self._network, species, masses, pbc, settings, charges)
        self.state = None
        # where max_spread= stops, nothing needs a warning
        known = (self._network.uncertainty or {}) if settings.max_spread is None else {}
        self._spread_limit = known.get("limit")

    def _first_forces(self) -> Advanced:
        """Draw velocities, and compute the first forces."""
        settings, stepper = self._settings, self._stepper
        positions = [member.atoms.positions for member in self._members]
        cells = [member.atoms.cell.array for member in self._members]
        velocities = [
            initial_velocities(atoms, settings.temperature, settings.seed + k)
            for k, atoms in enumerate(self._frames)
        ]
        stepper.begin(positions, cells)
        # a step of no length computes the forces with the program of all steps
        done = stepper.take(stepper.state(positions, velocities, cells), 1, 0.0)
        while not done.state.step[0] and done.reason != LIMIT:
            done = stepper.take(done.state, 1, 0.0)
        if done.reason == LIMIT:
            raise DataError(f"no step can be taken from this structure: {self._excess(done, 0)}")
        self.state = done.state._replace(step=np.zeros_like(done.state.step))
        return done

    def _taken(self, every: int) -> Iterator[tuple[int, Advanced]]:
        """Take all steps; yield the step before each call of the device, and its results."""
        settings = self._settings
        while (step := self._step) < settings.steps:
            wanted = min(every - step % every, MOST_STEPS, settings.steps - step)
            done = self._stepper.take(self.state, wanted, settings.timestep * units.fs)
            self.state = done.state
            yield step, done

    def unwritten(self) -> list[ase.Atoms]:
        """Take all steps, write nothing, and return the structures with their velocities."""
        self._first_forces()
        for step, done in self._taken(MOST_STEPS):
            if done.reason == LIMIT:
                raise TrainingFailed(
                    f"stopped in step {self._step} of equilibrate=: "
                    f"{self._excess(done, self._step - step)}. Take a shorter timestep, or look at "
                    "the structure"
                )
        frames = [atoms.copy() for atoms in self._frames]
        for atoms, (_, state) in zip(frames, self._states(), strict=True):
            atoms.positions = state.positions[: len(atoms)]
            atoms.set_velocities(state.velocities[: len(atoms)])
        return frames

    def begin(self):
        """Compute the first forces, and write the first frames of a new folder."""
        done, settings = self._first_forces(), self._settings
        self.folder = _create(settings, self._path)
        for member, path in self._own_folders():
            member.begin(path)
        self._record(done.rows, 0, 1)
        if renamed := {k: v for member in self._members for k, v in member.renamed.items()}:
            texts = ", ".join(f"{name} as {new}" for name, new in renamed.items())
            print(f"of the start, these are kept under other names: {texts}", flush=True)
        still = done.rows[0, :, COLUMNS.index("force")].max() < _AT_REST
        drawn = settings.temperature and not any(a.get_velocities().any() for a in self._frames)
        if still and drawn and settings.ensemble == "nve" and len(self._frames[0]) > 1:
            print(
                f"the start is at rest in a minimum: half of the kinetic energy of "
                f"{settings.temperature:g} K goes into potential energy, and the temperature will "
                f"be about {settings.temperature / 2:g} K; equilibrate=2000 begins with so many "
                "steps of langevin",
                flush=True,
            )

    def go_on(self, arrays: dict, metadata: dict):
        """Take up the state of a checkpoint."""
        grid = Grid(*(tuple(v) if isinstance(v, list) else v for v in metadata["grid"]))
        grid = grid._replace(axes=tuple(map(tuple, grid.axes)))
        sizes = Sizes(pairs=metadata["pairs"], edges=metadata["edges"])
        if metadata.get("reach"):
            waves, *rest = metadata["reach"]
            sizes = sizes._replace(reach=Reach(tuple(waves), *rest))
        room = Room(grid, sizes)
        self._stepper.go_on(room, (arrays["listed"], arrays["listed_cell"]))
        self.state = State(**{name: arrays[f"state.{name}"] for name in State._fields})
        self.folder = Path(self._settings.run)
        written = zip(metadata["files"], arrays["distances"], arrays["last"], strict=True)
        for (member, path), parts in zip(self._own_folders(), written, strict=True):
            member.reopen(path, *parts)

    def proceed(self):
        """Take all steps, and return the last frames."""
        added = "" if (d3 := self._network.dispersion) is None else f"with {d3}, by dftd3; "
        files = f"trajectory, thermo.csv and checkpoint are written to {self.folder}"
        print(f"{added}{files}", flush=True)
        saved = printed = began = time.perf_counter()
        first = None  # the step from which on nothing compiles
        with StopRequest() as request:
            for before, done in self._taken(self._settings.save_every):
                step = self._step
                self._record(done.rows, before + 1, step - before)
                if done.reason == LIMIT:
                    self._stop(self._excess(done, step - before))
                now = time.perf_counter()
                if first is None:
                    began, first = now, step
                if request.signum is not None:
                    self._finish()
                    text = f"stopped at step {step}; resume={self.folder} goes on"
                    raise Interrupted(request.signum, text)
                if now - saved > _SECONDS_BETWEEN_CHECKPOINTS:
                    self._checkpoint()
                    saved = now
                if step < self._settings.steps and now - printed > _SECONDS_BETWEEN_LINES:
                    self._print(step - first, now - began)
                    printed = now
        self._finish()
        self._print(0 if first is None else self._step - first, time.perf_counter() - began)
        print(f"done; trajectory, thermo.csv and thermo.png are in {self.folder}", flush=True)
        frames = [member.frame(state) for member, state in self._states()]
        return frames if len(frames) > 1 else frames[0]

    @property
    def _step(self) -> int:
        return int(self.state.step[0])

    def _own_folders(self) -> list[tuple[Member, Path]]:
        """Return each structure with its folder, which is inside of that of several."""
        members, digits = self._members, len(str(len(self._members) - 1))
        if len(members) == 1:
            return [(members[0], self.folder)]
        return [(member, self.folder / f"{k:0{digits}}") for k, member in enumerate(members)]

    def _states(self) -> list[tuple[Member, State]]:
        """Return each structure with its part of the state."""
        return [
            (member, jax.tree.map(lambda leaf, k=k: leaf[k], self.state))
            for k, member in enumerate(self._members)
        ]

    def _excess(self, done: Advanced, row: int) -> str:
        """Return the limit that the step of a row passed, and its structure."""
        excesses = map(Member.excess, self._members, done.rows[row])
        number, excess = next(pair for pair in enumerate(excesses) if pair[1])
        return f"structure {number}: {excess}" if len(self._members) > 1 else excess

    def _stop(self, why: str):
        """Write the last good frames and raise the error.

        The checkpoint is of before: the trajectory of a resumed run has no frame off its grid.
        """
        self._checkpoint()
        if self._step % self._settings.save_every:  # else they are there
            for member, state in self._states():
                member.add_frame(state)
        for member in self._members:
            member.draw()
        raise TrainingFailed(
            f"stopped after step {self._step}: {why}; {self.folder} ends with the last good "
            "frame. Take a shorter timestep, or look at the structure"
        )

    def _record(self, rows, first: int, count: int):
        for k, (member, state) in enumerate(self._states()):
            member.record(rows[:count, k], first, state)
        step = first + count - 1
        if count and self._spread_limit is not None and step % self._settings.save_every == 0:
            self._watch_spread(step)

    def _watch_spread(self, step: int):
        """Warn once if the spread of an atom is beyond what was validated, in a frame written."""
        frames = [member.frame(state) for member, state in self._states()]
        spreads = [one.spread.energies.max() for one in predict(self._network, frames)]
        limit, k = float(self._spread_limit), int(np.argmax(spreads))
        if spreads[k] > limit:
            where = f" of structure {k}" if len(frames) > 1 else ""
            warn(
                f"step {step}: the spread of the energy of an atom{where} is {spreads[k]:.2g} eV, "
                f"above {limit:.2g} eV that the network was validated to; max_spread={limit:.2g} "
                "stops there"
            )
            self._spread_limit = None

    def _checkpoint(self):
        members, charge_keys = self._members, {self._network.charge_key} - {None}
        arrays = {
            "sizes": np.array([len(member.atoms) for member in members]),
            "numbers": padded_to_longest([member.atoms.numbers for member in members], np.int64),
            "masses": padded_to_longest([member.masses for member in members]),
            "pbc": members[0].atoms.pbc,
            "distances": np.stack([member.distances for member in members]),
            "last": np.stack([member.last for member in members]),
            **{f"state.{name}": np.asarray(value) for name, value in self.state._asdict().items()},
        }
        (arrays["listed"], arrays["listed_cell"]), room = self._stepper.listed, self._stepper.room
        metadata = {
            "kind": "md",
            "simulation_format": _FORMAT,
            "settings": dataclasses.asdict(self._settings) | {"run": None},
            "files": [member.sizes for member in members],
            "info": [
                {key: np.asarray(a.info[key]).item() for key in charge_keys} for a in self._frames
            ],
            "network": self._path,
            "digest": self.digest,
            "step": self._step,
            "grid": room.grid,
            "pairs": room.sizes.pairs,
            "edges": room.sizes.edges,
            "reach": dataclasses.astuple(room.sizes.reach),
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_whole(self.folder / _CHECKPOINT, encode(arrays, metadata))

    def _finish(self):
        self._checkpoint()
        for member in self._members:
            member.draw()

    def _print(self, steps: int, seconds: float):
        settings, seconds = self._settings, max(seconds, 1e-9)
        values = np.stack([member.last for member in self._members])
        columns = dict(zip(COLUMNS, values.T, strict=True))
        kelvin = columns["temperature"]
        text = f"T {kelvin[0]:.1f} K"
        if len(values) > 1:
            text = f"T {kelvin.min():.1f} to {kelvin.max():.1f} K"
        if settings.ensemble == "npt":
            pressure, volume = (columns[name].mean() for name in ("pressure", "volume"))
            text += f"  V {volume:.2f} Å^3  p {pressure / units.GPa:.3g} GPa"
        rate, left = "", settings.steps - self._step
        if steps:
            speed = steps * settings.timestep * 1e-6 / seconds * 86400
            rate = f"{speed:.3g} ns/day, {steps / seconds:.3g} steps/s"
            rate += f" for each of {len(values)} structures" if len(values) > 1 else ""
            rate += f", {duration(left * seconds / steps)} left" if left else ""
        energy = (columns["potential"] + columns["kinetic"]).mean()
        print(
            f"step {self._step}/{settings.steps}  {self._step * settings.timestep:g} fs  "
            f"E {energy:.6f} eV  {text}  {rate}",
            flush=True,
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


def _create(settings: Settings, network: str) -> Path:
    """Make the folder of a simulation."""
    path = made(settings.run, "md")
    values = {"network": network, **dataclasses.asdict(settings)}
    text = "".join(f"{name}={written(value)}\n" for name, value in values.items())
    write_whole(path / "settings.txt", text)
    return path
