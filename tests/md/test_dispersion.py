"""Dynamics with DFT-D3: the forces of the calculator, at constant energy and pressure."""

from unittest import mock

import ase.build
import ase.io
import numpy as np
import pytest
from ase import units

import eqfuse
from eqfuse import md
from eqfuse.data import DataError
from eqfuse.train.dispersion import Dispersion
from tests.md.conftest import table
from tests.small_runs import copper_cell

pytest.importorskip("dftd3")


@pytest.fixture
def frames():
    """Return a slab without a third vector, and one of more atoms."""
    frames = [ase.build.fcc111("Cu", size, periodic=False) for size in ((2, 2, 2), (2, 2, 3))]
    for k, atoms in enumerate(frames):
        atoms.pbc, atoms.cell[2] = (True, True, False), 0.0
        atoms.rattle(0.05, seed=k)
    return frames


@pytest.mark.parametrize("steps", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_dynamics_have_the_forces_of_the_calculator_and_conserve_the_energy(
    steps, run, frames, tmp_path, capsys
):
    how = {"dispersion": "d3(bj)", "steps": steps, "timestep": 1.0, "save_every": steps // 2}
    last = md.run(run, frames, temperature=600, run=str(tmp_path / "md"), **how)
    assert "with d3(bj,pbe), by dftd3" in capsys.readouterr().out
    plain, whole = eqfuse.Calculator(run), eqfuse.Calculator(run, dispersion="d3(bj)")
    for k, end in enumerate(last):
        written = ase.io.read(tmp_path / "md" / str(k) / "trajectory.xyz", ":")
        assert len(written) == 3
        for atoms in (*written, end):
            assert atoms.info["dispersion"] == "d3(bj,pbe)"
            energy = whole.get_potential_energy(atoms)
            assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-8)
            forces = whole.get_forces(atoms)
            np.testing.assert_allclose(atoms.get_forces(), forces, rtol=0, atol=1e-8)
            assert abs(plain.get_potential_energy(atoms) - energy) > 0.1
        rows = table(tmp_path / "md" / str(k))
        if steps == 100:
            assert np.ptp(rows["kinetic_ev"]) > 0.03
            assert np.ptp(rows["conserved_ev"]) < 0.01 * np.ptp(rows["kinetic_ev"])


def test_the_pressure_has_it(run, tmp_path):
    atoms = copper_cell()
    how = {"dispersion": "d3(zero)", "ensemble": "npt", "steps": 2, "log_every": 1}
    end = md.run(run, atoms, run=str(tmp_path / "md"), **how)
    rows = table(tmp_path / "md")
    atoms.calc = eqfuse.Calculator(run, dispersion="d3(zero)")
    for place, step in ((atoms, 0), (end, 2)):
        again = place.copy()
        again.calc = atoms.calc
        pressure = -np.trace(again.get_stress(voigt=False)) / 3
        pressure += 2 * rows["kinetic_ev"][step] / (3 * again.get_volume())
        assert rows["pressure_gpa"][step] * units.GPa == pytest.approx(pressure, abs=1e-8)


def test_atoms_without_a_dispersion_are_refused(run, frames, tmp_path, monkeypatch):
    monkeypatch.setattr(Dispersion, "of", mock.Mock(side_effect=DataError("no parameters")))
    with pytest.raises(DataError, match="structure 0: no parameters"):
        md.run(run, frames, steps=1, dispersion="d3(bj)", run=str(tmp_path / "md"))
    assert not (tmp_path / "md").exists()
