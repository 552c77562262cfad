"""Runs on copper of a few epochs, for calculators."""

import ase
import ase.build
import ase.io
import pytest

import eqfuse
from eqfuse.train.main import main
from tests.small_runs import TINY


@pytest.fixture(scope="session")
def run(copper, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "copper"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "dtype=float64", "epochs=60"]
    # in so few steps Adam comes further
    assert main([*settings, "cutoff=3.6", "training.optimizer=adam", f"run={folder}"]) == 0
    return folder


@pytest.fixture
def atoms(run):
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    atoms.calc = eqfuse.Calculator(run)
    return atoms


@pytest.fixture(scope="session")
def single(copper, tmp_path_factory):
    """Trained until forces are more than the rounding of what they are sums of."""
    folder = tmp_path_factory.mktemp("runs") / "copper"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "cutoff=3.6", "epochs=60"]
    assert main([*settings, "training.optimizer=adam", f"run={folder}"]) == 0
    return folder
