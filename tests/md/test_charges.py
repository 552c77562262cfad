"""Dynamics of networks with latent charges: in cells, of clusters, and under pressure."""

import ase.build
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse import md
from eqfuse.md.simulation import read_checkpoint
from eqfuse.models.ewald import LatentEwald
from tests.md.conftest import table

# 5.65 waves in the cell, and 6 in a larger one
LES = LatentEwald(scale=0.3, charge_key="q", sigma=0.896)


@pytest.fixture
def run(untrained):
    return untrained(numbers=(11, 17), long_range=LES)


@pytest.fixture
def frames():
    """Return cells of 8 and 6 atoms, whose total charges are not the same."""
    frames = [ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True) for _ in range(2)]
    del frames[1][[1, 4]]
    for k, atoms in enumerate(frames):
        atoms.rattle(0.05, seed=k)
        atoms.info["q"] = k
    return frames


TENSION = {"ensemble": "npt", "pressure": -30.0, "compressibility": 0.1, "pressure_time": 10.0}
TENSION |= {"timestep": 0.2, "skin": 2.0, "max_force": 1e3}


@pytest.mark.parametrize("periodic", [True, False])
def test_dynamics_have_the_forces_of_the_calculator(run, frames, periodic, tmp_path):
    """Also where the cell grows by a tenth in three steps, and gets more waves."""
    for atoms in frames:
        atoms.pbc = periodic
    if not periodic:  # a cell that means nothing
        frames[0].cell *= 10
    how = {"steps": 4, "save_every": 2, "log_every": 1} | (TENSION if periodic else {})
    last = md.run(run, frames, temperature=300, run=str(tmp_path / "md"), **how)
    if periodic:
        cells = [atoms.cell.array for atoms in frames]
        before = LES.reach(cells, [[True] * 3] * 2, [8, 6]).waves
        waves, *_ = read_checkpoint(tmp_path / "md")[1]["reach"]
        assert last[0].get_volume() > 1.15 * frames[0].get_volume()
        assert min(waves) > max(before)
    calculator = eqfuse.Calculator(run)
    for k, end in enumerate(last):
        for atoms in (*ase.io.read(tmp_path / "md" / str(k) / "trajectory.xyz", ":"), end):
            again = atoms.copy()
            again.info["q"] = k
            if not periodic:
                again.cell = None
            again.calc = calculator
            energy = again.get_potential_energy()
            assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-7)
            np.testing.assert_allclose(atoms.get_forces(), again.get_forces(), atol=1e-7)
        if not periodic:
            rows = table(tmp_path / "md" / str(k))
            assert np.ptp(rows["conserved_ev"]) < 0.05 * np.ptp(rows["kinetic_ev"])


def test_a_simulation_with_charges_is_resumed(run, frames, tmp_path):
    whole = md.run(run, frames, steps=4, run=str(tmp_path / "whole"))
    md.run(run, frames, steps=2, run=str(tmp_path / "parts"))
    for k, (one, other) in enumerate(
        zip(whole, md.resume(tmp_path / "parts", steps=4), strict=True)
    ):
        np.testing.assert_allclose(one.positions, other.positions, rtol=0, atol=1e-12)
        assert other.info["q"] == k
