"""Runs on copper of a few epochs, for calculators."""

import pytest

import eqfuse
from tests.lammps.untrained import untrained_run
from tests.small_runs import copper_cell


def slope_of_forces(atoms, atom: int, axis: int, step: float = 1e-4):
    """Return a row of the Hessian from central differences of the forces of all atoms."""
    ends = []
    for sign in (1, -1):
        moved = atoms.copy()
        moved.positions[atom, axis] += sign * step
        ends.append(atoms.calc.get_forces(moved))
    return (ends[1] - ends[0]) / (2 * step)


@pytest.fixture(scope="session")
def run(trained):
    return trained


@pytest.fixture
def atoms(run):
    atoms = copper_cell()
    atoms.calc = eqfuse.Calculator(run)
    return atoms


@pytest.fixture(scope="session")
def committee(tmp_path_factory):
    """Return a folder with two runs, as seeds=2 makes it, of networks that nothing trained."""
    folder = tmp_path_factory.mktemp("committee")
    for seed in range(2):
        untrained_run(folder, numbers=(29,), seed=seed).rename(folder / f"seed={seed}")
    return folder
