"""A simulation: the device takes the steps, and the host writes."""

import dataclasses
import time
from pathlib import Path

import ase
import jax
import numpy as np
from ase import units

from eqfuse import ops
from eqfuse.data import DataError
from eqfuse.inference.evaluator import Sizes
from eqfuse.inference.network import Network
from eqfuse.inference.spread import with_spread
from eqfuse.md.integrators import State
from eqfuse.md.settings import Settings
from eqfuse.md.steps import COLUMNS, LIMIT, MOST_STEPS, Stepper
from eqfuse.md.structures import Member, initial_velocities, read_frames
from eqfuse.train import CheckpointError
from eqfuse.train.run.files import encode, read_file, write_whole
from eqfuse.train.run.stopping import Interrupted, StopRequest, TrainingFailed
from eqfuse.train.run.terminal import duration
from eqfuse.train.settings.schema import ConfigError

_CHECKPOINT, _FORMAT = "checkpoint.safetensors", 5
_AT_REST = 0.02
"""eV/Å, of the largest force of a structure in a minimum."""
_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_CHECKPOINTS = 2, 10


def run(network, start, settings: Settings | None = None, **changes):
    """Run a simulation and write its folder: trajectory, table, picture and checkpoint.

    Args:
      network: the folder of a run, or a file of its network (.safetensors).
      start: `ase.Atoms`, or a file, of which the last frame is taken. Velocities are drawn for the
        temperature if they are all zero.
      settings: None for the defaults.
      changes: settings by name, such as steps=1000.
    Returns:
      the last frame, with velocities.
    Raises:
      ConfigError: impossible settings, or a folder that exists.
      DataError: atoms that cannot be simulated: overlapping, not finite, of unknown elements, or
        periodic without a cell.
      CheckpointError: no readable network, or none with a spread for max_spread.
      TrainingFailed: a force, the temperature or the spread passed its limit, or atoms moved too
        far in a step; the folder holds the last good frame.
      Interrupted: a signal stopped it; the folder can be resumed.
    """
    settings = dataclasses.replace(settings or Settings(), **changes)
    atoms = start if isinstance(start, ase.Atoms) else read_frames(start, "-1:")[0]
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        simulation = _Simulation(network, atoms, settings)
        simulation.begin()
        return simulation.proceed()


def resume(folder, steps: int | None = None):
    """Continue a simulation from its checkpoint, with the numbers of one without interruption.

    Args:
      folder: that `run` wrote.
      steps: in all; None: as many as it was begun for.
    Returns:
      as `run`.
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
    periodic = {"cell": arrays["state.cell"], "pbc": arrays["pbc"].tolist()}
    given = (arrays[name] for name in ("numbers", "state.positions"))
    atoms = ase.Atoms(*given, masses=arrays["masses"], **periodic)
    simulation = _Simulation(metadata["network"], atoms, settings)
    if simulation.digest != metadata["digest"]:
        raise CheckpointError(
            f"{metadata['network']} holds another network than when {folder} was begun"
        )
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        simulation.go_on(arrays, metadata)
        return simulation.proceed()


class _Simulation:
    """A simulation between two steps."""

    def __init__(self, network, atoms: ase.Atoms, settings: Settings):
        try:
            ops.resolve_here(settings.backend)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self._settings, self._path = settings, str(Path(network).resolve())
        network = Network(network, dtype=settings.dtype, backend=settings.backend)
        network = network.of_elements(atoms.numbers)
        self._network = network if settings.max_spread is None else with_spread(network)
        self.digest = self._network.metadata["arrays_sha256"]
        self._start, self._member = atoms, Member(atoms, self._network, settings)
        of_atoms = self._member.species, self._member.masses, self._member.atoms.pbc
        self._stepper = Stepper(self._network, *of_atoms, settings)
        self.state = None

    def begin(self):
        """Draw velocities, compute the first forces, and write the first frame."""
        settings, stepper = self._settings, self._stepper
        velocities = initial_velocities(self._start, settings.temperature, settings.seed)
        state = State.first(self._start.positions, velocities, self._member.atoms.cell.array)
        stepper.begin(state.positions, state.cell)
        # a step of no length computes the forces with the program of all steps
        done = stepper.take(state, 1, 0.0)
        while not done.state.step and done.reason != LIMIT:
            done = stepper.take(done.state, 1, 0.0)
        if done.reason == LIMIT:
            raise DataError(
                f"no step can be taken from this structure: {self._member.excess(done.rows[0])}"
            )
        self.state = done.state._replace(step=np.zeros_like(done.state.step))
        self._folder = _create(settings, self._path)
        self._member.begin(self._folder)
        self._record(done.rows, 0, 1)
        still = done.rows[0, COLUMNS.index("force")] < _AT_REST
        drawn = settings.temperature and not self._start.get_velocities().any()
        if still and drawn and settings.ensemble == "nve" and len(self._start) > 1:
            print(
                f"the start is at rest in a minimum: half of the kinetic energy of "
                f"{settings.temperature:g} K goes into potential energy, and the temperature will "
                f"be about {settings.temperature / 2:g} K; for a start at that temperature, take "
                "some ps of ensemble=langevin first, and START from their trajectory.xyz",
                flush=True,
            )

    def go_on(self, arrays: dict, metadata: dict):
        """Take up the state of a checkpoint."""
        sizes = Sizes(pairs=metadata["pairs"], edges=metadata["edges"])
        self._stepper.begin(arrays["listed"], arrays["listed_cell"], sizes)
        self.state = State(**{name: arrays[f"state.{name}"] for name in State._fields})
        self._folder = Path(self._settings.run)
        self._member.reopen(self._folder, metadata["files"], arrays["last"])

    def proceed(self):
        """Take all steps, and return the last frames."""
        print(f"trajectory, thermo.csv and checkpoint are written to {self._folder}", flush=True)
        saved = printed = began = time.perf_counter()
        first = None  # the step from which on nothing compiles
        with StopRequest() as request:
            while (step := self._step) < self._settings.steps:
                every = self._settings.save_every
                wanted = min(every - step % every, MOST_STEPS, self._settings.steps - step)
                timestep = self._settings.timestep * units.fs
                try:
                    done = self._stepper.take(self.state, wanted, timestep)
                except DataError as error:  # no list can be made
                    self._stop(str(error))
                self.state = done.state
                taken = self._step - step
                self._record(done.rows, step + 1, taken)
                if done.reason == LIMIT:
                    self._stop(self._member.excess(done.rows[taken]))
                now = time.perf_counter()
                if first is None:
                    began, first = now, step + taken
                if request.signum is not None:
                    self._finish()
                    text = f"stopped at step {step + taken}; resume={self._folder} goes on"
                    raise Interrupted(request.signum, text)
                if now - saved > _SECONDS_BETWEEN_CHECKPOINTS:
                    self._checkpoint()
                    saved = now
                more = step + taken < self._settings.steps
                if more and now - printed > _SECONDS_BETWEEN_LINES:
                    self._print(step + taken - first, now - began)
                    printed = now
        self._finish()
        self._print(0 if first is None else self._step - first, time.perf_counter() - began)
        print(f"done; trajectory, thermo.csv and thermo.png are in {self._folder}", flush=True)
        return self._member.frame(self.state)

    @property
    def _step(self) -> int:
        return int(self.state.step)

    def _stop(self, why: str):
        """Write the last good frame and raise the error."""
        if self._step % self._settings.save_every:  # else it is there
            self._member.add_frame(self.state)
        self._finish()
        raise TrainingFailed(
            f"stopped after step {self._step}: {why}; {self._folder} ends with the last good "
            "frame. Take a shorter timestep, or look at the structure"
        )

    def _record(self, rows, first: int, count: int):
        self._member.record(rows[:count], first, self.state)

    def _checkpoint(self):
        member = self._member
        arrays = {
            "numbers": member.atoms.numbers,
            "masses": member.masses,
            "pbc": member.atoms.pbc,
            "last": member.last,
            **{f"state.{name}": np.asarray(value) for name, value in self.state._asdict().items()},
        }
        arrays["listed"], arrays["listed_cell"] = self._stepper.listed
        metadata = {
            "kind": "md",
            "simulation_format": _FORMAT,
            "settings": dataclasses.asdict(self._settings) | {"run": None},
            "files": member.sizes,
            "network": self._path,
            "digest": self.digest,
            "step": self._step,
            "pairs": self._stepper.sizes.pairs,
            "edges": self._stepper.sizes.edges,
        }
        arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
        write_whole(self._folder / _CHECKPOINT, encode(arrays, metadata))

    def _finish(self):
        self._checkpoint()
        self._member.draw()

    def _print(self, steps: int, seconds: float):
        femtoseconds = self._step * self._settings.timestep
        speed = steps * self._settings.timestep * 1e-6 / max(seconds, 1e-9) * 86400
        rate = f"{speed:.3g} ns/day, {steps / max(seconds, 1e-9):.3g} steps/s" if steps else ""
        values = dict(zip(COLUMNS, self._member.last, strict=True))
        kelvin = f"T {values['temperature']:.1f} K"
        if self._settings.ensemble == "npt":
            pressure = values["pressure"] / units.GPa
            kelvin += f"  V {values['volume']:.2f} Å^3  p {pressure:.3g} GPa"
        left = self._settings.steps - self._step
        if steps and left:
            rate += f", {duration(left * seconds / steps)} left"
        energy = values["potential"] + values["kinetic"]
        print(
            f"step {self._step}/{self._settings.steps}  {femtoseconds:g} fs  "
            f"E {energy:.6f} eV  {kelvin}  {rate}",
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
    path = Path(settings.run or f"runs/{time.strftime('%Y%m%d-%H%M%S')}_md")
    try:
        path.mkdir(parents=True)
    except OSError as error:
        hint = "; give another folder, or continue it with resume=" if path.exists() else ""
        raise ConfigError(f"run={path} cannot be made: {error}{hint}") from error
    values = {"network": network, **dataclasses.asdict(settings)}
    text = "".join(f"{name}={value}\n" for name, value in values.items())
    write_whole(path / "settings.txt", text)
    return path
