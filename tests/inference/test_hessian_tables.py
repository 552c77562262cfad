"""Hessians of networks with tables, whose radial functions are written to memory once."""

import ase
import numpy as np
import pytest

import eqfuse
from eqfuse.inference.network import Network
from eqfuse.models.radial_table import RadialTable
from tests.lammps.untrained import untrained_run


def test_hessian_reads_radial_functions_from_memory(tmp_path, monkeypatch):
    """It is that of the networks, and no product computes functions of a table again."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path))
    atoms, run = ase.Atoms([13, 29], [[0, 0, 0], [0.2, 0.1, 2.3]]), untrained_run(tmp_path)
    atoms.calc = eqfuse.Calculator(run, radial="network")
    expected = eqfuse.hessian(atoms)
    atoms.calc = eqfuse.Calculator(run)
    assert "tables of" in Network(run).radial
    atoms.get_potential_energy()  # which kernels compute from tables
    monkeypatch.setattr(RadialTable, "tabulated", lambda *_: pytest.fail("a table is read"))
    assert np.abs(eqfuse.hessian(atoms) - expected).max() <= 1e-5 * np.abs(expected).max()
