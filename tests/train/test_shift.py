"""The energy of an atom besides what the network computes."""

import pytest

from eqfuse.data import Dataset, Structure
from eqfuse.train.molecule import build_potential
from eqfuse.train.settings.options import parse


@pytest.mark.parametrize(("shift", "expected"), [("mean", -1.5), ("zero", 0.0)])
def test_atoms_begin_at_the_mean_energy_or_at_their_reference(shift, expected):
    frames = [Structure([1, 1], [[0, 0, 0], [0, 0, d]], energy=-5.0) for d in (0.7, 0.8, 0.9)]
    dataset = Dataset.build(frames, cutoff=3.0, val_size=1, references={1: -1.0})
    config = parse(["model=mace", "data=ethanol", "channels=2", f"model.shift={shift}"])
    potential, fields = build_potential(config.model, dataset, None)
    assert potential.shift == (expected,)
    assert "shift" not in fields
