"""Runs on copper of a few epochs, for calculators."""

import ase
import ase.build
import ase.io
import pytest

import eqfuse
from tests.lammps.untrained import untrained_run


@pytest.fixture(scope="session")
def run(trained):
    return trained


@pytest.fixture
def atoms(run):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    atoms.calc = eqfuse.Calculator(run)
    return atoms


@pytest.fixture(scope="session")
def committee(tmp_path_factory):
    """Return a folder with two runs, as seeds=2 makes it, of networks that nothing trained."""
    folder = tmp_path_factory.mktemp("committee")
    for seed in range(2):
        untrained_run(folder, numbers=(29,), seed=seed).rename(folder / f"seed={seed}")
    return folder
