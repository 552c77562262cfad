"""Trajectories, databases and other files that ASE reads."""

import ase.build
import ase.io
import numpy as np
import pytest

from eqfuse.data import DataError, Keys, read_structures
from tests.data.readers.test_damaged_files import assert_read_or_refused


@pytest.mark.parametrize("suffix", ["traj", "db", "json"])
def test_frames_and_labels(frames, tmp_path, suffix):
    path = tmp_path / f"frames.{suffix}"
    ase.io.write(path, frames)
    read = read_structures(path)
    assert [s.origin for s in read] == [f"{path}, frame 0", f"{path}, frame 1"]
    for structure, atoms in zip(read, frames, strict=True):
        np.testing.assert_array_equal(structure.numbers, atoms.numbers)
        np.testing.assert_array_equal(structure.positions, atoms.positions)
        np.testing.assert_array_equal(structure.cell, atoms.cell.array)
        assert structure.energy == atoms.get_potential_energy()
        np.testing.assert_array_equal(structure.forces, atoms.get_forces())
    stress = frames[1].get_stress(voigt=False)
    assert np.ptp(np.diag(stress)) > 1e-3
    np.testing.assert_allclose(read[1].stress, stress, rtol=1e-12)
    assert read[0].stress is None


def test_labels_in_columns_of_a_database(frames, tmp_path):
    """Names of one's own are read, with the weight and the config_type of a row."""
    path = tmp_path / "frames.db"
    forces = 2 * frames[0].get_forces()
    with ase.db.connect(path) as database:
        columns = {"dft_energy": -3.5, "config_type": "liquid", "config_energy_weight": 2.0}
        database.write(frames[0], data={"dft_forces": forces}, **columns)
    [structure] = read_structures(path, keys=Keys("dft_energy", "dft_forces"))
    assert structure.energy == -3.5
    np.testing.assert_array_equal(structure.forces, forces)
    assert structure.config_type == "liquid"
    assert structure.weights == (2, 1, 1)
    with pytest.raises(DataError, match=r"none of 1 frame: no energy under the key 'other'"):
        read_structures(path, keys=Keys("other"))


def test_structures_without_labels(frames, tmp_path):
    ase.io.write(tmp_path / "POSCAR", frames[1], format="vasp")
    ase.io.write(tmp_path / "copper.cif", frames[1])
    for name in ("POSCAR", "copper.cif"):
        [structure] = read_structures(tmp_path / name, require_labels=False)
        volume = frames[1].get_volume()
        assert structure.volume == pytest.approx(volume, rel=1e-5)
        with pytest.raises(DataError, match="no energy under the key 'energy'"):
            read_structures(tmp_path / name)


@pytest.mark.parametrize("suffix", ["traj", "db", "json", "cif"])
def test_bad_files_are_named(tmp_path, suffix, frames, rng):
    path = tmp_path / f"frames.{suffix}"
    with pytest.raises(DataError, match=rf"no such file: .*frames\.{suffix}"):
        read_structures(path)
    path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device and not a file"):
        read_structures(path)
    path.unlink()
    if suffix != "cif":
        ase.io.write(path, frames)
        assert_read_or_refused(read_structures, path, rng)
