"""A simulation: the host makes neighbour lists and writes, the device takes the steps."""

import dataclasses
import math
import time
from pathlib import Path

import ase
import jax
import numpy as np
from ase import units
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse import ops
from eqfuse.data import DataError, Structure, neighbor_list
from eqfuse.data.samples import species_index
from eqfuse.inference.predict import Network
from eqfuse.md.output import Folder, read_checkpoint
from eqfuse.md.settings import Settings
from eqfuse.md.start import initial_velocities, read_start, require_apart
from eqfuse.md.steps import (
    LIMIT,
    MOST_STEPS,
    NEW_LIST,
    Listing,
    State,
    compile_steps,
    total_energy,
)
from eqfuse.ops import Edges
from eqfuse.train import CheckpointError
from eqfuse.train.run.stopping import Interrupted, StopRequest, TrainingFailed
from eqfuse.train.settings.schema import ConfigError

_HEADROOM, _EDGE_MULTIPLE = 1.1, 64
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
        arrays["numbers"], arrays["positions"], cell=arrays["cell"], pbc=arrays["pbc"].tolist()
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
        self._capacity, self._listing, self._advance = 0, None, None
        self.state, self._last = None, None

    def begin(self, velocities):
        """Compute the first forces, and write the first frame of a new folder."""
        positions = self._atoms.positions
        require_apart(positions, self._cell, self._atoms.pbc)
        self._list(positions)
        zero = np.zeros(positions.shape)
        self.state = State(positions.copy(), np.array(velocities), zero, np.int32(0))
        # a step of no length computes the forces with the program of all steps
        done = self._take(1, 0.0)
        if done.reason == LIMIT:
            raise DataError(f"no step can be taken from this structure: {self._excess(done, 0)}")
        self.state = done.state._replace(step=np.int32(0))
        self._folder = Folder.create(self._settings, self._path)
        self._record(done.rows, 0, 1)

    def go_on(self, arrays: dict, metadata: dict):
        """Take up the state of a checkpoint."""
        self._capacity = metadata["capacity"]
        self._list(arrays["listed"])
        names = ("positions", "velocities", "forces")
        self.state = State(*(arrays[name] for name in names), np.int32(metadata["step"]))
        self._last = metadata["step"], metadata["row"]
        self._folder = Folder.reopen(self._settings, metadata["sizes"])

    def proceed(self) -> ase.Atoms:
        """Take all steps, and return the last frame."""
        saved = printed = began = time.perf_counter()
        first = int(self.state.step)
        with StopRequest() as request:
            while (step := int(self.state.step)) < self._settings.steps:
                every = self._settings.save_every
                wanted = min(every - step % every, MOST_STEPS, self._settings.steps - step)
                done = self._take(wanted, self._settings.timestep * units.fs)
                self.state = done.state
                taken = int(done.state.step) - step
                self._record(done.rows, step + 1, taken)
                if done.reason == LIMIT:
                    self._stop(self._excess(done, taken))
                if done.reason == NEW_LIST:
                    self._renew(done, taken)
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

    def _take(self, steps: int, timestep: float):
        """Return what some steps on the device did, on the host."""
        if self._advance is None:
            network = self._network
            energy = total_energy(
                network._potential, network._params, network.cutoff, network.dtype
            )
            # noise acts on the total momentum too; without it the momentum is conserved
            count = 3 * len(self._species)
            free = count - 3 if self._settings.ensemble == "nve" and count > 3 else count
            self._advance = compile_steps(energy, self._species, self._masses, self._settings, free)
        return jax.device_get(
            self._advance(self.state, self._listing, np.int32(steps), np.float64(timestep))
        )

    def _list(self, positions):
        """Make the neighbour list of positions, padded to the capacity, which grows if needed."""
        reach = self._network.cutoff + self._settings.skin
        senders, receivers, shifts = neighbor_list(positions, self._cell, self._atoms.pbc, reach)
        count, atoms = len(senders), len(positions)
        if count > self._capacity or not self._capacity:
            room = math.ceil((_HEADROOM * count + 1) / _EDGE_MULTIPLE)
            self._capacity = room * _EDGE_MULTIPLE
        padding = self._capacity - count
        # spread over the atoms: the edges of one are summed one after the other
        loops = np.arange(padding) * atoms // max(padding, 1)
        senders, receivers = np.append(senders, loops), np.append(receivers, loops)
        order = np.lexsort((senders, receivers))
        shifts = np.concatenate([shifts, np.zeros((padding, 3))])[order]
        edges = Edges.from_arrays(senders[order], receivers[order], atoms)
        self._listing = jax.device_put(Listing(edges, shifts, np.array(positions)))

    def _renew(self, done, taken: int):
        """Make a new neighbour list, unless the old one is new: then a step was too long."""
        fresh = np.array_equal(self._listing.positions, done.state.positions)
        if fresh and not taken:
            self._stop(
                f"an atom moved by {done.moved:.3g} Å in one step, more than half the skin of "
                f"{self._settings.skin} Å"
            )
        try:
            self._list(done.state.positions)
        except DataError as error:
            self._stop(str(error))

    def _excess(self, done, row: int) -> str:
        potential, _, temperature, force = done.rows[row]
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
        rows[:, 0] += self._reference
        last = self._settings.steps
        for step, row in enumerate(rows, first):
            if step % self._settings.log_every == 0 or step == last:
                self._folder.add_row(step, row[:3])
        step = first + count - 1
        if count:
            self._last = step, rows[-1]
            if step % self._settings.save_every == 0 or step == last:
                self._folder.add_frame(self._frame(), step)

    def _frame(self) -> ase.Atoms:
        atoms = self._atoms.copy()
        atoms.positions = self.state.positions
        atoms.set_masses(self._masses)
        atoms.set_velocities(self.state.velocities)
        results = {"energy": float(self._last[1][0]), "forces": np.array(self.state.forces)}
        atoms.calc = SinglePointCalculator(atoms, **results)
        return atoms

    def _checkpoint(self):
        arrays = {
            "numbers": self._atoms.numbers,
            "masses": self._masses,
            "cell": self._atoms.cell.array,
            "pbc": self._atoms.pbc,
            "listed": np.asarray(self._listing.positions),
            **{name: np.asarray(getattr(self.state, name)) for name in self.state._fields[:3]},
        }
        self._folder.write_checkpoint(
            arrays,
            network=self._path,
            digest=self.digest,
            step=int(self.state.step),
            capacity=self._capacity,
            row=[float(value) for value in self._last[1]],
        )

    def _finish(self):
        self._checkpoint()
        self._folder.draw()

    def _print(self, steps: int, seconds: float):
        step, (potential, kinetic, temperature, _) = self._last
        femtoseconds = step * self._settings.timestep
        speed = steps * self._settings.timestep * 1e-6 / max(seconds, 1e-9) * 86400
        rate = f"{speed:.3g} ns/day" if steps else ""
        print(
            f"step {step}/{self._settings.steps}  {femtoseconds:g} fs  "
            f"E {potential + kinetic:.6f} eV  T {temperature:.1f} K  {rate}",
            flush=True,
        )
