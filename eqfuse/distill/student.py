"""The student: a small network that is fast enough, and its training from round to round."""

import contextlib
import io
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import ase
import ase.io
import jax
import numpy as np

import eqfuse
from eqfuse import models
from eqfuse.convert.convert import write_run
from eqfuse.convert.converted import Converted
from eqfuse.data import Shape, collate
from eqfuse.inference import uncertainty
from eqfuse.inference.network import UNCERTAINTY
from eqfuse.inference.predict import predict
from eqfuse.runs.files import has_checkpoint
from eqfuse.train.main import fit
from eqfuse.train.settings.options import parse

LADDER = (
    "channels=32 layers=3 cutoff=5",
    "channels=32 layers=2 cutoff=5",
    "channels=32 layers=2 cutoff=4.5",
    "channels=16 layers=2 cutoff=4.5",
    "channels=8 layers=2 cutoff=4.5",
)
"""The settings of students, from the largest to the fastest; all are NequIP of l = 0 and 1."""
_USUAL = "model=nequip lmax=1 model.num_bessel=8 model.radial_hidden=32"
_LR_OF_TUNING = 0.005
_CALLS = 9
_PUBLISHED = ("checkpoints", "config.yaml", "log.txt", "metrics.csv", "errors.csv", "report.html")
_PUBLISHED += ("learning.png", "parity.png", UNCERTAINTY)


def seconds(calculators: Sequence, atoms: ase.Atoms) -> list[float]:
    """Return the time of a step of each calculator: the fastest of nine calls in turns, s."""
    rng, times = np.random.default_rng(0), np.full((_CALLS + 1, len(calculators)), np.inf)
    frame = atoms.copy()
    for call in range(_CALLS + 1):
        frame.positions += 0.01 * rng.normal(size=frame.positions.shape)
        for k, calculator in enumerate(calculators):
            own = frame.copy()
            own.calc = calculator
            start = time.perf_counter()
            own.get_forces()
            if call:  # the first one compiles
                times[call, k] = time.perf_counter() - start
    return times.min(axis=0).tolist()


def untrained(settings: str, atoms: ase.Atoms, folder: Path) -> Path:
    """Write a run of a network with random parameters for the elements of atoms; return it."""
    config = parse([*shlex.split(settings), "data=lif"])
    species = sorted(set(atoms.numbers.tolist()))
    fields = config.model.model_fields(30.0) | {"irreps_out": "0e", "num_species": len(species)}
    if fields.get("distance_transform") is not None:
        fields["atomic_numbers"] = species
    with jax.enable_x64(True):
        graph = collate([], Shape(2, 2, 1), "float64").graph
        arguments = graph.vectors, graph.species, graph.edges
        network = models.build(config.model.name, **fields)
        params = jax.device_get(jax.jit(network.init)(jax.random.key(0), *arguments)["params"])
    ones = (1.0,) * len(species)
    references = dict.fromkeys(species, 0.0)
    network = Converted(
        "eqfuse", config.model.name, fields, params, ones, ones, references, config.dtype
    )
    (folder / "nothing").write_text("")
    write_run([network], folder / "nothing", folder / "run")
    return folder / "run"


def fast_enough(speed: float, teacher, atoms: ase.Atoms) -> tuple[str, float]:
    """Return the largest student that is faster by a factor, or the fastest, and its factor."""
    for settings in LADDER:
        settings = f"{_USUAL} {settings}"
        with tempfile.TemporaryDirectory() as folder:
            run = untrained(settings, atoms, Path(folder))
            slow, fast = seconds([teacher, eqfuse.Calculator(run)], atoms)
        if slow >= speed * fast:
            break
    return settings, slow / fast


def split(labels: Sequence[ase.Atoms]) -> tuple[list[ase.Atoms], list[ase.Atoms]]:
    """Return training and validation frames; each label stays where it was in earlier rounds."""
    validates = [k % 3 == 2 if k < 12 else k % 8 == 7 for k in range(len(labels))]
    sides = [[a for a, v in zip(labels, validates, strict=True) if v is s] for s in (False, True)]
    return sides[0], sides[1]


def train(folder: Path, labels, atoms, settings: str, steps: int, *, seed=0, start=None) -> Path:
    """Train a student on labels, and fit its spread; return the folder of its run.

    What the training prints is in `log.txt` of that folder. A training that was interrupted is
    continued.

    Args:
      folder: of the round, to which train.xyz and val.xyz are written; the run is in it.
      labels: frames with energy, forces and perhaps stress.
      atoms: isolated atoms with their energies, the references; [] to fit these.
      settings: of the network, as `eqfuse train` takes them.
      steps: of the optimizer.
      seed: of the parameters and batches.
      start: the run of the round before, whose network is trained on; None for a new one.
    """
    run = folder / "run"
    if (run / UNCERTAINTY).exists():
        return run
    frames, validation = split(labels)
    ase.io.write(folder / "train.xyz", [*frames, *atoms], format="extxyz")
    ase.io.write(folder / "val.xyz", validation, format="extxyz")
    words = [f"data={folder / 'train.xyz'}", f"data.val={folder / 'val.xyz'}", f"steps={steps}"]
    words += [f"run={run}", f"seed={seed}"]
    if any("stress" in frame.calc.results for frame in frames):
        words.append("training.stress_weight=10")
    if start is None:
        words += shlex.split(settings)
    else:
        words += [f"start_from={start}", f"training.lr={_LR_OF_TUNING}"]
    if has_checkpoint(run, "last"):
        words = [f"resume={run}"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit(*words)
        uncertainty.fit(run)
    return run


def publish(run: Path, folder: Path):
    """Copy the files of a run into a folder, which then is that run."""
    for name in _PUBLISHED:
        source, target = run / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy2(source, target)


class Errors(NamedTuple):
    """The errors of a student on frames that its teacher labelled."""

    forces: float  # RMSE, eV/Å
    energy: float  # RMSE, eV/atom
    spread: float  # RMS of the forces, eV/Å
    relative: float  # RMSE of the forces over their RMS

    @classmethod
    def of(cls, run, frames) -> "Errors":
        """Return those of a run."""
        predicted = predict(run, frames)
        pairs = [*zip(frames, predicted, strict=True)]
        forces = np.concatenate([a.get_forces() for a in frames])
        errors = np.concatenate([p.forces - a.get_forces() for a, p in pairs])
        energies = [(p.energy - a.get_potential_energy()) / len(a) for a, p in pairs]
        spreads = np.concatenate([p.spread.forces for p in predicted])
        rms = [float(np.sqrt(np.mean(np.square(x)))) for x in (errors, energies, forces)]
        # the spread of an atom is that of a vector, and the others are of components
        spread = float(np.sqrt(np.mean(spreads**2) / 3))
        return cls(rms[0], rms[1], spread, rms[0] / max(rms[2], 1e-12))
