"""Settings of a network that compiles in seconds, and frames labelled by ASE's EMT."""

import csv
from pathlib import Path
from types import SimpleNamespace

import ase.build
import ase.io
import numpy as np
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from eqfuse.train.arguments import parse
from eqfuse.train.datasets import load_datasets
from eqfuse.train.main import main
from eqfuse.train.parallel import Devices
from eqfuse.train.terminal import lines, report

# A network that compiles in seconds.
TINY = [
    "channels=2",
    "lmax=1",
    "layers=1",
    "model.radial_hidden=4",
    "model.num_bessel=4",
    "data.batch_size=4",
    "data.val=4",
    "training.second_stage=null",  # a run that is made longer is the same as a longer one
]


def train_on_copper(copper, tmp_path_factory, *settings: str):
    """Train on the frames of the fixture `copper`; return the folder of the run.

    Args:
      settings: what differs from `TINY` and a cutoff of 3.6 Å.
    """
    folder = tmp_path_factory.mktemp("runs") / "copper"
    usual = ["data=extxyz", f"data.path={copper}", *TINY, "cutoff=3.6"]
    assert main([*usual, *settings, f"run={folder}"]) == 0
    return folder


def rows_of(path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, or those of metrics.csv in the folder of a run."""
    path = Path(path)
    path = path / "metrics.csv" if path.is_dir() else path
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def refused(arguments, capsys, code: int = 2) -> str:
    """Return the one line with which a training is refused."""
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    return error


def prepared(*settings: str, tiny=TINY):
    """Return the dataset of a run and what it would report of it, without training.

    Raises:
      ConfigError, DataError: settings or data that are refused.
    """
    config = parse([*tiny, *settings])
    dataset, _ = load_datasets(config)
    return dataset, lines(report(config, dataset, SimpleNamespace(path="RUN"), Devices()))


def copper_cell(copies=1, scale: float = 0.05, seed: int = 0):
    """Return a cubic cell of copper, repeated, with atoms that are displaced at random, Å."""
    atoms = ase.build.bulk("Cu", cubic=True).repeat(copies)
    atoms.rattle(scale, seed=seed)
    return atoms


def labelled(atoms, names=("energy", "forces"), calculator=None):
    """Return a copy with its results of EMT or another calculator, eV and Å."""
    atoms.calc = calculator or EMT()
    copy, results = atoms.copy(), {name: atoms.calc.get_property(name, atoms) for name in names}
    copy.calc = SinglePointCalculator(copy, **results)
    return copy


def write_displaced(path, atoms, number: int, seed: int):
    """Write frames of atoms that are displaced at random, by 0.05 Å, and labelled; return path."""
    rng = np.random.default_rng(seed)
    frames = []
    for _ in range(number):
        frame = atoms.copy()
        frame.positions += rng.normal(scale=0.05, size=frame.positions.shape)
        frames.append(labelled(frame))
    ase.io.write(path, frames, format="extxyz")
    return path


def rewritten(source, path, change):
    """Write the frames of a file after `change(number, atoms)` of each; return path."""
    frames = ase.io.read(source, ":")
    for number, atoms in enumerate(frames):
        change(number, atoms)
    ase.io.write(path, frames, format="extxyz")
    return path


def errors_of(run) -> dict[tuple[str, str], dict[str, str]]:
    """Return the rows of errors.csv of a run by set and group."""
    return {(row["set"], row["group"]): row for row in rows_of(Path(run) / "errors.csv")}
