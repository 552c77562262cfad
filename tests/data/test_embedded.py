import numpy as np
import pytest

from eqfuse.data import DataError, read_embedded


def test_ethanol():
    structures = read_embedded("ethanol")
    assert [s.config_type for s in structures] == ["300K"] * 500 + ["500K"] * 500
    assert sorted(structures[0].numbers.tolist()) == [1] * 6 + [6, 6, 8]
    energies = np.array([s.energy for s in structures])
    assert -310.5 < energies.min() < energies.max() < -306.0
    forces = np.array([s.forces for s in structures])
    assert np.abs(forces.sum(axis=1)).max() < 1e-4
    rms = np.sqrt((forces**2).mean(axis=(1, 2)))
    assert 1.2 < rms[500:].mean() / rms[:500].mean() < 1.4  # harmonic: sqrt(5 / 3) = 1.29


def test_an_unknown_name_is_refused():
    with pytest.raises(DataError, match="choose from: ethanol"):
        read_embedded("methanol")
