import pathlib

import numpy as np
import pytest

from eqfuse.data import DataError, read_embedded
from eqfuse.data.readers import embedded


def test_ethanol():
    structures = read_embedded("ethanol")
    assert [s.config_type for s in structures] == ["300K"] * 500 + ["500K"] * 500
    assert sorted(structures[0].numbers.tolist()) == [1] * 6 + [6, 6, 8]
    assert not any(s.pbc.any() for s in structures)
    energies = np.array([s.energy for s in structures])
    assert -310.5 < energies.min() < energies.max() < -306.0
    forces = np.array([s.forces for s in structures])
    assert np.abs(forces.sum(axis=1)).max() < 1e-4
    rms = np.sqrt((forces**2).mean(axis=(1, 2)))
    assert 1.2 < rms[500:].mean() / rms[:500].mean() < 1.4  # harmonic: sqrt(5 / 3) = 1.29


def test_lithium_fluoride():
    structures = read_embedded("lif")
    assert all(s.pbc.all() and sorted(s.numbers.tolist()) == [3] * 4 + [9] * 4 for s in structures)
    assert np.abs([s.forces.sum(axis=0) for s in structures]).max() < 1e-5
    stresses = np.array([s.stress for s in structures])
    np.testing.assert_allclose(stresses, stresses.swapaxes(1, 2), atol=1e-6)
    names = ["300K_compressed", "300K", "300K_expanded"]
    groups = [[s for s in structures if s.config_type == name] for name in names]
    assert [len(group) for group in groups] == [30] * 3
    volume, energy, pressure = (
        np.array(
            [[(s.volume, s.energy, -np.trace(s.stress) / 3) for s in group] for group in groups]
        )
        .mean(axis=1)
        .T
    )
    # The stress's sign and unit: dE = -p dV, but for the vibrations: at most 12 kT = 0.31 eV.
    work = -(pressure[1:] + pressure[:-1]) / 2 * np.diff(volume)
    np.testing.assert_allclose(np.diff(energy), work, atol=0.31)
    assert (work < -0.5).all()


def test_both_are_small():
    folder = pathlib.Path(embedded.__file__).parent
    files = {path.name: path.stat().st_size for path in folder.glob("*.npz")}
    assert files.keys() == {f"{name}.npz" for name in embedded.NAMES}
    assert sum(files.values()) < 1_000_000


def test_an_unknown_name_is_refused():
    with pytest.raises(DataError, match="choose from: ethanol, lif"):
        read_embedded("methanol")
