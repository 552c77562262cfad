"""HDF5 files in the layout of mace's mace_prepare_data."""

import ase.build
import h5py
import numpy as np
import pytest

from eqfuse.data import DataError, Keys, read_structures


def write(path, frames):
    """Write frames as mace 0.3.16 does: "None" for what is missing, one batch."""
    with h5py.File(path, "w") as file:
        file.attrs["drop_last"] = False
        batch = file.create_group("config_batch_0")
        for k, frame in enumerate(frames):
            group = batch.create_group(f"config_{k}")
            for key in ("atomic_numbers", "positions", "cell", "pbc", "weight", "config_type"):
                group[key] = frame[key]
            for name in ("properties", "property_weights"):
                inner = group.create_group(name)
                for key, value in frame[name].items():
                    inner[key] = "None" if value is None else value


@pytest.fixture
def frames(rng):
    """Return twelve frames: a molecule, and crystals with stress, virials or nothing."""
    water, copper = ase.build.molecule("H2O"), ase.build.bulk("Cu", cubic=True)
    found = []
    for k, atoms in enumerate([water, *[copper] * 11]):
        labels = {"energy": -3.5 - k, "forces": rng.normal(size=(len(atoms), 3))}
        own = {"atomic_numbers": atoms.numbers, "positions": atoms.positions + 0.1 * k}
        own |= {"cell": atoms.cell.array, "pbc": atoms.pbc, "weight": 1.0, "config_type": "Default"}
        weights = {"energy": 1.0, "forces": 1.0}
        found.append(own | {"properties": labels, "property_weights": weights})
    found[1]["properties"]["stress"] = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    found[2]["properties"]["virials"] = -copper.get_volume() * np.diag([1.0, 2.0, 3.0])
    found[3]["properties"] = {"energy": None, "forces": None, "dft_energy": -7.0}
    found[4] |= {"weight": 2.0, "config_type": "bulk", "property_weights": {"energy": 3.0}}
    found[5]["property_weights"] = {"energy": 0.0, "forces": 1.0}
    return found


def test_configurations(frames, tmp_path):
    """In the order of their numbers: config_10 comes after config_9; see also `test_doors`."""
    write(tmp_path / "train.h5", frames)
    read = read_structures(tmp_path / "train.h5")
    assert len(read) == 12
    assert read[11].origin == f"{tmp_path / 'train.h5'}, frame 11"
    for k in (0, 1, 2, 4, 11):
        assert read[k].energy == frames[k]["properties"]["energy"]
    np.testing.assert_array_equal(read[1].stress, [[1, 6, 5], [6, 2, 4], [5, 4, 3]])
    np.testing.assert_allclose(read[2].stress, np.diag([1.0, 2.0, 3.0]), rtol=1e-12)
    assert read[3].energy is read[3].forces is read[3].stress is None
    assert read[3].unread == {"energy": "dft_energy"}
    assert (read[4].config_type, read[3].config_type) == ("bulk", None)
    assert read[4].weights == (6, 2, 2, 2)
    assert read[5].energy is None
    keys = Keys(energy="dft_energy")
    assert read_structures(tmp_path / "train.h5", keys=keys)[3].energy == -7.0


def test_stress_from_virials_has_their_weight(frames, tmp_path):
    """A stress that is missing has the weight zero in files of mace."""
    frames[2]["properties"]["stress"] = None
    frames[2]["property_weights"] |= {"stress": 0.0, "virials": 2.0}
    write(tmp_path / "train.h5", frames)
    structure = read_structures(tmp_path / "train.h5")[2]
    np.testing.assert_allclose(structure.stress, np.diag([1.0, 2.0, 3.0]), rtol=1e-12)
    assert structure.weights == (1, 1, 2, 1)


def test_total_charges_that_are_not_read_are_remarked(frames, tmp_path):
    for charge in (0.0, 1.0):
        frames[0]["properties"]["total_charge"] = charge
        write(tmp_path / "train.h5", frames[:1])
        assert read_structures(tmp_path / "train.h5")[0].remarks == ("charge",) * int(charge)
    [ion] = read_structures(tmp_path / "train.h5", keys=Keys(charge="total_charge"))
    assert ion.charge == 1


def test_layout_before_groups_of_properties(frames, tmp_path):
    """Up to mace 0.3.12, what is missing is zero, of weight zero."""
    virials = frames[2]["properties"]["virials"]
    labels = [(np.arange(6.0), np.zeros((3, 3)), 1.0), (np.zeros(6), virials, 0.0)]
    with h5py.File(tmp_path / "train.h5", "w") as file:
        for k, (stress, virials, weight) in enumerate(labels):
            group = file.create_group(f"config_batch_0/config_{k}")
            own = {key: value for key, value in frames[2].items() if "propert" not in key}
            own |= frames[2]["properties"] | {"stress": stress, "virials": virials, "head": "a"}
            own |= {"stress_weight": weight, "virials_weight": 1 - weight, "energy_weight": 3.0}
            for key, value in (own | {"forces_weight": 1.0 - k, "dipole": "None"}).items():
                group[key] = value
    first, second = read_structures(tmp_path / "train.h5")
    np.testing.assert_array_equal(first.stress, [[0, 5, 4], [5, 1, 3], [4, 3, 2]])
    np.testing.assert_allclose(second.stress, np.diag([1.0, 2.0, 3.0]), rtol=1e-12)
    assert (first.energy, first.weights) == (-5.5, (3, 1, 1, 1))
    np.testing.assert_array_equal(first.forces, frames[2]["properties"]["forces"])
    assert second.forces is None


def test_other_files_are_refused(frames, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = 1
    with pytest.raises(DataError, match=r"other\.h5 has no groups config_batch_0.*; it has a"):
        read_structures(tmp_path / "other.h5")
    (tmp_path / "text.h5").write_text("text")
    with pytest.raises(DataError, match=r"text\.h5 cannot be read as HDF5"):
        read_structures(tmp_path / "text.h5")
    frames[3]["positions"] = np.zeros((2, 3))
    write(tmp_path / "bad.h5", frames)
    with pytest.raises(DataError, match=r"bad\.h5, frame 3: positions must have shape \(4, 3\)"):
        read_structures(tmp_path / "bad.h5")
