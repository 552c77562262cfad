"""Small files of structures with energies and forces, labelled by ASE's EMT."""

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

# A network that compiles in seconds.
TINY = [
    "channels=2",
    "lmax=1",
    "layers=1",
    "model.radial_hidden=4",
    "model.num_bessel=4",
    "data.batch_size=4",
    "data.val=4",
]


@pytest.fixture
def tiny() -> list[str]:
    return list(TINY)


def labelled(atoms, names=("energy", "forces")):
    """A copy with its EMT results, eV and Å."""
    atoms.calc = EMT()
    results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
    if "stress" in names:
        results["stress"] = atoms.get_stress()
    copy = atoms.copy()
    copy.calc = SinglePointCalculator(copy, **{name: results[name] for name in names})
    return copy


@pytest.fixture(scope="session")
def water(tmp_path_factory):
    """Path of 20 distorted water molecules."""
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(20):
        atoms = ase.build.molecule("H2O")
        atoms.positions += rng.normal(scale=0.05, size=(3, 3))
        frames.append(labelled(atoms))
    path = tmp_path_factory.mktemp("data") / "water.xyz"
    ase.io.write(path, frames, format="extxyz")
    return path


@pytest.fixture(scope="session")
def copper(tmp_path_factory):
    """Path of 12 distorted periodic cells of copper with 4 atoms and stress."""
    rng = np.random.default_rng(1)
    frames = []
    for _ in range(12):
        atoms = ase.build.bulk("Cu", cubic=True)
        atoms.set_cell(atoms.cell.array * (1 + rng.normal(scale=0.02)), scale_atoms=True)
        atoms.positions += rng.normal(scale=0.05, size=(4, 3))
        frames.append(labelled(atoms, ("energy", "forces", "stress")))
    path = tmp_path_factory.mktemp("data") / "copper.xyz"
    ase.io.write(path, frames, format="extxyz")
    return path
