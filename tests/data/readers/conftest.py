"""Frames that several readers read."""

import ase.build
import numpy as np
import pytest

from tests.small_runs import labelled


def assert_read(structure, atoms):
    """Compare a structure with the labelled frame that it was read from."""
    for name in ("numbers", "positions", "pbc"):
        np.testing.assert_array_equal(getattr(structure, name), getattr(atoms, name))
    np.testing.assert_array_equal(structure.cell, atoms.cell.array)
    assert structure.energy == atoms.get_potential_energy()
    np.testing.assert_array_equal(structure.forces, atoms.get_forces())
    if not atoms.pbc.any():
        assert structure.stress is None
        return
    stress = atoms.get_stress(voigt=False)
    assert np.ptp(np.diag(stress)) > 1e-3
    np.testing.assert_allclose(structure.stress, stress, rtol=1e-12)


@pytest.fixture
def frames(rng):
    """Return a molecule and a stretched crystal, with labels."""
    cell = ase.build.bulk("Cu", cubic=True)
    cell.set_cell(cell.cell.array * [[1.02], [1.0], [0.97]], scale_atoms=True)
    cell.positions += rng.normal(scale=0.05, size=(4, 3))
    names = ("energy", "forces", "stress")
    return [labelled(ase.build.molecule("H2O")), labelled(cell, names)]
