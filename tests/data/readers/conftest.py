"""Frames that several readers read."""

import ase.build
import pytest

from tests.small_runs import labelled


@pytest.fixture
def frames(rng):
    """Return a molecule and a stretched crystal, with labels."""
    cell = ase.build.bulk("Cu", cubic=True)
    cell.set_cell(cell.cell.array * [[1.02], [1.0], [0.97]], scale_atoms=True)
    cell.positions += rng.normal(scale=0.05, size=(4, 3))
    names = ("energy", "forces", "stress")
    return [labelled(ase.build.molecule("H2O")), labelled(cell, names)]
