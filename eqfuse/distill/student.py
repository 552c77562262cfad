"""The student: a small network that is fast enough, its training and its errors."""

import bisect
import contextlib
import functools
import io
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import ase
import ase.io
import numpy as np

import eqfuse
from eqfuse.certify.properties import seconds
from eqfuse.convert.conversion import write_run
from eqfuse.convert.untrained import random_network
from eqfuse.data import error_table, of_atoms
from eqfuse.distill.sampling import of_dynamics
from eqfuse.inference import uncertainty
from eqfuse.runs import ConfigError, has_checkpoint, require, say, warn
from eqfuse.train import fit, parse

LADDER = (
    "lmax=2 channels=32 layers=3 cutoff=5",
    "lmax=2 channels=16 layers=3 cutoff=4.5",  # as fast, and better on a slab, as the next one
    "lmax=2 channels=32 layers=2 cutoff=5",
    "lmax=2 channels=16 layers=2 cutoff=5",
    "lmax=2 channels=16 layers=2 cutoff=4.5",
    "lmax=1 channels=8 layers=2 cutoff=4.5",
)
"""The settings of students, all NequIP, from the largest to the fastest."""
# 8 functions smooth what a teacher has where a shell of neighbours leaves its cutoff, and without
# the repulsion of nuclei atoms fall together that are nearer than in all labels: see the page
_USUAL = "model=nequip model.num_bessel=24 model.zbl=true"
_LR_OF_TUNING = 0.005
_OWN = ("model", "training", "preset", "dtype", "precision", "backend")


def words_of(settings: str) -> list[str]:
    """Return the words of the settings of a student; ConfigError for those of files or folders."""
    try:
        words = shlex.split(settings)
    except ValueError as error:
        raise ConfigError(f"student={settings} is impossible: {error}") from error
    given, usual = (vars(parse([*more, "data=lif"])) for more in (words, ()))
    for name in usual.keys() - {*_OWN}:
        need = f"settings of a network and its training, without {name}="
        require(given[name] == usual[name], "student", settings, need)
    return words


def untrained(settings: str, atoms: ase.Atoms, folder: Path) -> Path:
    """Write a run of a network with random parameters for the elements of atoms; return it."""
    config, species = parse([*words_of(settings), "data=lif"]), sorted({*atoms.numbers.tolist()})
    fields = config.model.model_fields(30.0) | {"irreps_out": "0e", "num_species": len(species)}
    network = random_network(config.model.name, fields, species, dtype=config.dtype)
    (folder / "nothing").write_text("")
    write_run([network], folder / "nothing", folder / "run")
    return folder / "run"


def fast_enough(speed: float, teacher, atoms: ase.Atoms) -> str:
    """Return the settings of the largest student that is faster by a factor, or of the fastest."""

    @functools.cache
    def times_as_fast(settings: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            run = untrained(f"{_USUAL} {settings}", atoms, Path(folder))
            slow, fast = seconds([teacher, eqfuse.Calculator(run)], atoms)
        return slow / fast

    # each is compiled, which takes seconds
    number = bisect.bisect(LADDER, False, key=lambda settings: times_as_fast(settings) >= speed)
    chosen = LADDER[min(number, len(LADDER) - 1)]
    found = times_as_fast(chosen)
    say(f"student    {_USUAL} {chosen}: {found:.1f} times as fast as its teacher")
    if found < speed:
        warn(f"no student is {speed:g} times as fast as its teacher: the fastest is taken")
    return f"{_USUAL} {chosen}"


def train(
    folder: Path, labels, atoms, settings: str, steps: int, minutes: float, *, seed=0, start=None
) -> Path:
    """Train a student, continue that which was interrupted, and fit its spread; return the run.

    Args:
      labels: frames with energy, forces and perhaps stress; one of eight validates in all rounds.
      atoms: isolated atoms with their energies, the references; [] to fit these.
      settings: of the network, as `eqfuse train` takes them.
      steps, minutes: of the training, whichever end first.
      start: the run of the round before, whose network is trained on; None for a new one.
    """
    run, sides = folder / "run", ([], [])
    if (run / uncertainty.UNCERTAINTY).exists():
        return run
    for k, frame in enumerate(labels):
        sides[k % 3 == 2 if k < 12 else k % 8 == 7].append(frame)
    for name, frames in (("train", [*sides[0], *atoms]), ("val", sides[1])):
        ase.io.write(folder / f"{name}.xyz", frames, format="extxyz")
    words = [f"data={folder / 'train.xyz'}", f"data.val={folder / 'val.xyz'}", f"steps={steps}"]
    words += [f"max_minutes={minutes}", f"run={run}", f"seed={seed}"]
    if any("stress" in frame.calc.results for frame in labels):
        words.append("training.stress_weight=1000")  # for elastic constants, see the page
    tuned = [f"start_from={start}", f"training.lr={_LR_OF_TUNING}"]
    words += words_of(settings) if start is None else tuned
    words = [f"resume={run}"] if has_checkpoint(run, "last") else words
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit(*words)
        usual = [*map(of_atoms, of_dynamics(sides[1]))]  # the limit of the spread is theirs
        uncertainty.fit(run, None, usual if len(usual) >= 4 else None)
    return run


def errors_of(frames: Sequence[ase.Atoms], predicted: Sequence) -> dict:
    """Return `error_table`'s row of all frames, with the RMS of the spread of force components."""
    row = error_table([*map(of_atoms, frames)], predicted)[0]
    spreads = np.concatenate([p.spread.forces for p in predicted])
    return row | {"spread_mev_per_a": 1e3 * float(np.sqrt(np.mean(spreads**2) / 3))}
