"""The student: a small network that is fast enough, its training and its errors."""

import contextlib
import io
import shlex
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
import jax
import numpy as np

import eqfuse
from eqfuse import models
from eqfuse.convert.convert import write_run
from eqfuse.convert.converted import Converted
from eqfuse.data import Shape, collate
from eqfuse.data.readers.ase_files import of_atoms
from eqfuse.distill.sampling import of_dynamics
from eqfuse.inference import uncertainty
from eqfuse.inference.network import UNCERTAINTY
from eqfuse.runs.files import has_checkpoint
from eqfuse.runs.log import say, warn
from eqfuse.train.main import fit
from eqfuse.train.settings.options import parse

LADDER = (
    "lmax=2 channels=32 layers=3 cutoff=5",
    "lmax=2 channels=32 layers=2 cutoff=5",
    "lmax=2 channels=16 layers=2 cutoff=5",
    "lmax=2 channels=16 layers=2 cutoff=4.5",
    "lmax=1 channels=8 layers=2 cutoff=4.5",
)
"""The settings of students, from the largest to the fastest; all are NequIP."""
_USUAL = "model=nequip model.num_bessel=8 model.radial_hidden=32"
_LR_OF_TUNING = 0.005
_CALLS = 9


def seconds(calculators: Sequence, atoms: ase.Atoms) -> list[float]:
    """Return the time of a step of each calculator: the fastest of nine calls in turns, s."""
    rng, times, frame = np.random.default_rng(0), [], atoms.copy()
    for _ in range(_CALLS + 1):
        frame.positions += 0.01 * rng.normal(size=frame.positions.shape)
        times.append([])
        for calculator in calculators:
            own = frame.copy()
            own.calc = calculator
            start = time.perf_counter()
            own.get_forces()
            times[-1].append(time.perf_counter() - start)
    return np.min(times[1:], axis=0).tolist()  # the first one compiles


def untrained(settings: str, atoms: ase.Atoms, folder: Path) -> Path:
    """Write a run of a network with random parameters for the elements of atoms; return it."""
    config, species = parse([*shlex.split(settings), "data=lif"]), sorted({*atoms.numbers.tolist()})
    fields = config.model.model_fields(30.0) | {"irreps_out": "0e", "num_species": len(species)}
    if fields.get("distance_transform") is not None:
        fields["atomic_numbers"] = species
    with jax.enable_x64(True):
        graph = collate([], Shape(2, 2, 1), "float64").graph
        network = models.build(config.model.name, **fields)
        given = jax.random.key(0), graph.vectors, graph.species, graph.edges
        params = jax.device_get(jax.jit(network.init)(*given)["params"])
    ones, references = (1.0,) * len(species), dict.fromkeys(species, 0.0)
    name, dtype = config.model.name, config.dtype
    network = Converted("eqfuse", name, fields, params, ones, ones, references, dtype)
    (folder / "nothing").write_text("")
    write_run([network], folder / "nothing", folder / "run")
    return folder / "run"


def fast_enough(speed: float, teacher, atoms: ase.Atoms) -> str:
    """Return the settings of the largest student that is faster by a factor, or of the fastest."""
    for settings in LADDER:
        settings = f"{_USUAL} {settings}"
        with tempfile.TemporaryDirectory() as folder:
            run = untrained(settings, atoms, Path(folder))
            slow, fast = seconds([teacher, eqfuse.Calculator(run)], atoms)
        if slow >= speed * fast:
            break
    say(f"student    {settings}: {slow / fast:.1f} times as fast as its teacher")
    if slow < speed * fast:
        warn(f"no student is {speed:g} times as fast as its teacher: the fastest is taken")
    return settings


def train(folder: Path, labels, atoms, settings: str, steps: int, *, seed=0, start=None) -> Path:
    """Train a student on labels, and fit its spread; return the folder of its run.

    A training that was interrupted is continued. What it prints is in `log.txt` of that folder.

    Args:
      folder: of the round, to which train.xyz and val.xyz are written; the run is in it.
      labels: frames with energy, forces and perhaps stress; one of eight validates, and does so in
        all rounds.
      atoms: isolated atoms with their energies, the references; [] to fit these.
      settings: of the network, as `eqfuse train` takes them.
      steps: of the optimizer.
      seed: of the parameters and batches.
      start: the run of the round before, whose network is trained on; None for a new one.
    """
    run = folder / "run"
    if (run / UNCERTAINTY).exists():
        return run
    sides = [], []
    for k, frame in enumerate(labels):
        sides[k % 3 == 2 if k < 12 else k % 8 == 7].append(frame)
    ase.io.write(folder / "train.xyz", [*sides[0], *atoms], format="extxyz")
    ase.io.write(folder / "val.xyz", sides[1], format="extxyz")
    words = [f"data={folder / 'train.xyz'}", f"data.val={folder / 'val.xyz'}", f"steps={steps}"]
    words += [f"run={run}", f"seed={seed}"]
    if any("stress" in frame.calc.results for frame in labels):
        words.append("training.stress_weight=10")
    tuned = [f"start_from={start}", f"training.lr={_LR_OF_TUNING}"]
    words += shlex.split(settings) if start is None else tuned
    if has_checkpoint(run, "last"):
        words = [f"resume={run}"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit(*words)
        usual = [*map(of_atoms, of_dynamics(sides[1]))]  # the limit of the spread is theirs
        uncertainty.fit(run, None, usual if len(usual) >= 4 else None)
    return run


def errors_of(frames: Sequence[ase.Atoms], predicted: Sequence) -> dict[str, float]:
    """Return the RMSE of predictions of labelled frames: energy, forces, and stress if there is.

    The keys have the units: meV/atom, meV/Å (of components) and meV/Å^3. `spread_mev_per_a` is the
    RMS of the spread of the forces, whose square is that of a vector, and not of a component.
    """
    pairs = [*zip(frames, predicted, strict=True)]
    energies = [(p.energy - a.get_potential_energy()) / len(a) for a, p in pairs]
    forces = np.concatenate([p.forces - a.get_forces() for a, p in pairs])
    spreads = np.concatenate([p.spread.forces for p in predicted]) / 3**0.5
    found = {"energy_mev_per_atom": energies, "forces_mev_per_a": forces}
    stressed = [(a, p) for a, p in pairs if "stress" in a.calc.results]
    if stressed:
        stresses = [p.stress - a.get_stress(voigt=False) for a, p in stressed]
        found["stress_mev_per_a3"] = stresses
    found["spread_mev_per_a"] = spreads
    return {name: 1e3 * float(np.sqrt(np.mean(np.square(v)))) for name, v in found.items()}
