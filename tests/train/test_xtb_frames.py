"""The example that makes the frames a network may start from."""

import itertools
import runpy
from pathlib import Path

import ase.build
import numpy as np
import pytest
from ase.calculators.emt import EMT

EXAMPLE = Path(__file__).parents[2] / "examples" / "xtb_frames.py"


@pytest.mark.slow
def test_frames_have_their_own_labels():
    trajectory = runpy.run_path(str(EXAMPLE))["trajectory"]
    start = ase.build.molecule("CH3OH")
    frames, others = (trajectory(start, EMT(), 3, 500.0, (0, n)) for n in range(2))
    assert len(frames) == 3
    for frame in frames:
        assert set(frame.arrays) == {"numbers", "positions"}
        again = frame.copy()
        again.calc = EMT()
        assert frame.get_potential_energy() == pytest.approx(again.get_potential_energy())
        np.testing.assert_allclose(frame.get_forces(), again.get_forces(), rtol=0, atol=1e-12)
        assert np.abs(frame.get_forces()).max() > 0.1
    positions = [frame.positions for frame in (*frames, *others)]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in itertools.pairwise(positions))
