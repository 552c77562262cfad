"""Runs on copper of a few epochs, for calculators."""

import ase
import ase.build
import ase.io
import pytest

import eqfuse
from tests.small_runs import train_on_copper


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
def committee(copper, tmp_path_factory):
    """Return a folder with two runs of one step each, as seeds=2 makes it."""
    more = ["cutoff=3", "steps=1", "seeds=2", "dtype=float64"]
    return train_on_copper(copper, tmp_path_factory, *more)
