"""A simulation: the device takes the steps, and the host writes."""

import dataclasses
import time
from pathlib import Path

import ase
import jax
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse import ops
from eqfuse.data import DataError, Structure
from eqfuse.data.samples import species_index
from eqfuse.inference.predict import Network
from eqfuse.md.integrators import State
from eqfuse.md.neighbors import Grid
from eqfuse.md.output import Folder, read_checkpoint
from eqfuse.md.settings import Settings
from eqfuse.md.start import initial_velocities, read_start, require_apart
from eqfuse.md.stepper import Stepper
from eqfuse.md.steps import COLUMNS, LIMIT, MOST_STEPS, Room
from eqfuse.train import CheckpointError
from eqfuse.train.run.stopping import Interrupted, StopRequest, TrainingFailed
from eqfuse.train.settings.schema import ConfigError

_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_CHECKPOINTS = 2, 10


def run(network, start, settings: Settings | None = None, **changes) -> ase.Atoms:
    """Run a simulation and write its folder: trajectory, table, picture and checkpoint.

    Args:
      network: the folder of a run, or a file of its network (.safetensors).
      start: `ase.Atoms`, or a file of which the last frame is taken. Velocities are used if they
        are not all zero, and drawn for the temperature if they are.
      settings: None for the defaults.
      changes: settings by name, such as steps=1000.
    Returns:
      the last frame, with velocities.
    Raises:
      ConfigError: impossible settings, or a folder that exists.
      DataError: atoms that cannot be simulated: overlapping, not finite, of unknown elements, or
        periodic without a cell.
      CheckpointError: no readable network.
      TrainingFailed: a force or the temperature passed its limit, or atoms moved too far in a step;
        the folder holds the last good frame.
      Interrupted: a signal stopped it; the folder can be resumed.
    """
    settings = dataclasses.replace(settings or Settings(), **changes)
    atoms = start if isinstance(start, ase.Atoms) else read_start(start)
    simulation = _Simulation(network, atoms, settings)
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        simulation.begin(initial_velocities(atoms, settings))
        return simulation.proceed()


def resume(folder, steps: int | None = None) -> ase.Atoms:
    """Continue a simulation from its checkpoint, with the numbers of one without interruption.

    Args:
      folder: that `run` wrote.
      steps: in all; None: as many as it was begun for.
    Raises:
      ConfigError: fewer steps than were done.
      CheckpointError: no readable checkpoint, or another network where that of the simulation was.
    """
    arrays, metadata = read_checkpoint(Path(folder))
    settings = Settings(**metadata["settings"])
    settings = dataclasses.replace(settings, run=str(folder), steps=steps or settings.steps)
    if settings.steps < metadata["step"]:
        raise ConfigError(
            f"steps={settings.steps}: {folder} is already at step {metadata['step']}; give more"
        )
    atoms = ase.Atoms(
        arrays["numbers"],
        arrays["state.positions"],
        cell=arrays["state.cell"],
        pbc=arrays["pbc"].tolist(),
    )
    atoms.set_masses(arrays["masses"])
    simulation = _Simulation(metadata["network"], atoms, settings)
    if simulation.digest != metadata["digest"]:
        raise CheckpointError(
            f"{metadata['network']} holds another network than when {folder} was begun"
        )
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        simulation.go_on(arrays, metadata)
        return simulation.proceed()


class _Simulation:
    """A simulation between two steps.

    Attributes:
      state: the last good state, on the device.
      digest: of the parameters of the network.
    """

    def __init__(self, network, atoms: ase.Atoms, settings: Settings):
        try:
            ops.resolve_here(settings.backend)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if atoms.constraints:
            raise DataError("the atoms have constraints, which are not simulated; remove them")
        self._settings, self._path = settings, str(Path(network).resolve())
        self._network = Network(network, dtype=settings.dtype, backend=settings.backend)
        self.digest = self._network.metadata["arrays_sha256"]
        structure = Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
        self._cell = structure.cell
        # without labels and other properties, which would not be those of later frames
        self._atoms = ase.Atoms(atoms.numbers, atoms.positions, cell=self._cell, pbc=atoms.pbc)
        self._species = species_index(atoms.numbers, self._network.species)
        self._reference = float(self._network.references[self._species].sum())
        self._masses = np.asarray(atoms.get_masses(), np.float64)
        if not (np.isfinite(self._masses) & (self._masses > 0)).all():
            raise DataError("masses must be finite and greater than zero")
        if settings.ensemble == "npt" and not all(atoms.pbc):
            raise DataError(
                "ensemble=npt needs a cell with three periodic directions, and "
                f"pbc={atoms.pbc.tolist()}; choose another ensemble, or make the atoms periodic"
            )
        self._stepper = Stepper(
            self._network, self._species, self._masses, self._atoms.pbc, settings
        )
        self.state, self._last = None, None

    def begin(self, velocities):
        """Compute the first forces, and write the first frame of a new folder."""
        positions = self._atoms.positions
        require_apart(positions, self._cell, self._atoms.pbc)
        stepper = self._stepper
        stepper.begin(positions, self._cell)
        # a step of no length computes the forces with the program of all steps
        done = stepper.take(stepper.state(positions, velocities, self._cell), 1, 0.0)
        while not done.state.step and done.reason != LIMIT:
            done = stepper.take(done.state, 1, 0.0)
        if done.reason == LIMIT:
            raise DataError(f"no step can be taken from this structure: {self._excess(done, 0)}")
        self.state = done.state._replace(step=np.int32(0))
        self._folder = Folder.create(self._settings, self._path)
        self._record(done.rows, 0, 1)

    def go_on(self, arrays: dict, metadata: dict):
        """Take up the state of a checkpoint."""
        grid = Grid(*(tuple(v) if isinstance(v, list) else v for v in metadata["grid"]))
        grid = grid._replace(axes=tuple(map(tuple, grid.axes)))
        room = Room(grid, metadata["pairs"], metadata["edges"])
        self._stepper.go_on(room, (arrays["listed"], arrays["listed_cell"]))
        scalars = {name: arrays[f"state.{name}"].reshape(()) for name in ("heat", "step")}
        others = {n: arrays[f"state.{n}"] for n in State._fields if n not in scalars}
        self.state = State(**others, **scalars)
        self._last = metadata["step"], metadata["row"]
        self._folder = Folder.reopen(self._settings, metadata["sizes"], arrays["distances"])

    def proceed(self) -> ase.Atoms:
        """Take all steps, and return the last frame."""
        saved = printed = began = time.perf_counter()
        first = int(self.state.step)
        with StopRequest() as request:
            while (step := int(self.state.step)) < self._settings.steps:
                every = self._settings.save_every
                wanted = min(every - step % every, MOST_STEPS, self._settings.steps - step)
                done = self._stepper.take(self.state, wanted, self._settings.timestep * units.fs)
                self.state = done.state
                taken = int(done.state.step) - step
                self._record(done.rows, step + 1, taken)
                if done.reason == LIMIT:
                    self._stop(self._excess(done, taken))
                now = time.perf_counter()
                if first == step:  # that compiled
                    began, first = now, step + taken
                if request.signum is not None:
                    self._finish()
                    text = f"stopped at step {step + taken}; resume={self._folder.path} goes on"
                    raise Interrupted(request.signum, text)
                if now - saved > _SECONDS_BETWEEN_CHECKPOINTS:
                    self._checkpoint()
                    saved = now
                more = step + taken < self._settings.steps
                if more and now - printed > _SECONDS_BETWEEN_LINES:
                    self._print(step + taken - first, now - began)
                    printed = now
        self._finish()
        self._print(int(self.state.step) - first, time.perf_counter() - began)
        return self._frame()

    def _excess(self, done, row: int) -> str:
        potential, _, temperature, force = done.rows[row][:4]
        if not np.isfinite([potential, temperature, force]).all():
            return "energy or forces are not finite"
        if force > self._settings.max_force:
            return f"a force of {force:.4g} eV/Å is above max_force={self._settings.max_force:g}"
        limit = self._settings.max_temperature
        return f"a temperature of {temperature:.4g} K is above max_temperature={limit:g}"

    def _stop(self, why: str):
        """Write the last good frame and raise the error."""
        step = int(self.state.step)
        if step % self._settings.save_every:  # else it is there
            self._folder.add_frame(self._frame(), step)
        self._finish()
        raise TrainingFailed(
            f"stopped after step {step}: {why}; {self._folder.path} ends with the last good frame. "
            "Take a shorter timestep, or look at the structure"
        )

    def _record(self, rows, first: int, count: int):
        """Write the rows of steps from number `first` on, and a frame if one is due."""
        rows = np.array(rows[:count])
        rows[:, [COLUMNS.index("potential"), COLUMNS.index("conserved")]] += self._reference
        last = self._settings.steps
        for step, row in enumerate(rows, first):
            if step % self._settings.log_every == 0 or step == last:
                self._folder.add_row(step, dict(zip(COLUMNS, row, strict=True)))
        step = first + count - 1
        if count:
            self._last = step, rows[-1]
            if step % self._settings.save_every == 0 or step == last:
                self._folder.add_frame(self._frame(), step)

    def _frame(self) -> ase.Atoms:
        atoms = self._atoms.copy()
        atoms.positions = self.state.positions
        if atoms.pbc.any():
            atoms.cell = self.state.cell
        atoms.set_masses(self._masses)
        atoms.set_velocities(self.state.velocities)
        results = {"energy": float(self._last[1][0]), "forces": np.array(self.state.forces)}
        atoms.calc = SinglePointCalculator(atoms, **results)
        return atoms

    def _checkpoint(self):
        arrays = {
            "numbers": self._atoms.numbers,
            "masses": self._masses,
            "pbc": self._atoms.pbc,
            "distances": self._folder.distances.counts,
            **{f"state.{name}": np.asarray(value) for name, value in self.state._asdict().items()},
        }
        arrays["listed"], arrays["listed_cell"] = self._stepper.listed
        room = self._stepper.room
        self._folder.write_checkpoint(
            arrays,
            network=self._path,
            digest=self.digest,
            step=int(self.state.step),
            grid=room.grid,
            pairs=room.pairs,
            edges=room.edges,
            row=[float(value) for value in self._last[1]],
        )

    def _finish(self):
        self._checkpoint()
        self._folder.draw(all(self._atoms.pbc))

    def _print(self, steps: int, seconds: float):
        step, (potential, kinetic, temperature, *_) = self._last
        femtoseconds = step * self._settings.timestep
        speed = steps * self._settings.timestep * 1e-6 / max(seconds, 1e-9) * 86400
        rate = f"{speed:.3g} ns/day" if steps else ""
        print(
            f"step {step}/{self._settings.steps}  {femtoseconds:g} fs  "
            f"E {potential + kinetic:.6f} eV  T {temperature:.1f} K  {rate}",
            flush=True,
        )
