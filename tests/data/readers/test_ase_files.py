"""Trajectories, databases and other files that ASE reads, and LMDB files of rows of ASE."""

import gzip
import pickle
import zlib

import ase.build
import ase.io
import lmdb
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.db.row import AtomsRow
from ase.io.jsonio import encode

from eqfuse.data import DataError, Keys, read_structures
from eqfuse.data.readers import iterate_atoms, read_with_atoms
from eqfuse.data.readers.ase_files import as_atoms, for_trajectory, keep, of_atoms, unread_names


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
    assert structure.weights[:3] == (2, 1, 1)
    with pytest.raises(DataError, match=r"none of 1 frame: no energy under the key 'other'"):
        read_structures(path, keys=Keys("other"))


def test_labels_that_there_are_twice_are_the_calculators(frames, tmp_path):
    """All of them: an energy of another method would not be that of the forces."""
    atoms = frames[1]
    atoms.info |= {"energy": -1.0, "stress": np.eye(3)}
    ase.io.write(tmp_path / "frames.traj", atoms)
    [structure] = read_structures(tmp_path / "frames.traj")
    assert structure.energy == atoms.get_potential_energy()
    np.testing.assert_array_equal(structure.forces, atoms.get_forces())
    np.testing.assert_array_equal(structure.stress, atoms.get_stress(voigt=False))


def test_lists_of_a_database_are_columns_or_kept_as_they_are(frames, tmp_path):
    """Lists of several lengths, such as bonds, and of objects are no arrays."""
    kept = {"bonds": [[1], [0, 2]], "parts": [[1], [0, 2], []], "groups": [{"a": 1}, {}, {}]}
    with ase.db.connect(tmp_path / "frames.db") as database:
        database.write(frames[0], data=kept | {"charges_of": [0.1, 0.2, 0.3]})
    [(_, atoms)] = read_with_atoms(tmp_path / "frames.db", Keys())
    assert {name: atoms.info[name] for name in kept} == kept
    np.testing.assert_array_equal(atoms.arrays["charges_of"], [0.1, 0.2, 0.3])
    assert not [*unread_names(atoms, "masses"), *unread_names(atoms, "velocities")]
    made = as_atoms(of_atoms(atoms))
    keep(made, atoms)
    ase.io.write(tmp_path / "frames.xyz", made)
    [(_, atoms)] = read_with_atoms(tmp_path / "frames.xyz", Keys())
    assert [atoms.info["bonds"], atoms.info["groups"]] == ["[[1], [0, 2]]", kept["groups"]]


def test_results_of_other_positions_are_no_labels(frames, tmp_path):
    atoms = frames[0]
    energy = of_atoms(atoms).energy
    assert energy is not None
    atoms.set_cell([[5.0, 0, 0], [1, 5, 0], [0, 2, 5]])
    atoms.pbc = [True, True, False]
    atoms.calc = SinglePointCalculator(atoms, energy=energy)
    atoms.positions[1] += atoms.cell[0] - 2 * atoms.cell[1]
    assert of_atoms(atoms).energy == energy
    ase.io.write(tmp_path / "wrapped.traj", for_trajectory(atoms))
    assert ase.io.read(tmp_path / "wrapped.traj").get_potential_energy() == energy
    atoms.positions[1] += atoms.cell[2]
    assert of_atoms(atoms).energy is None


def test_a_trajectory_keeps_labels_of_any_name(frames, tmp_path, rng):
    """To the bit, of the calculator or not, those of a moved structure left out."""
    atoms, hessian = frames[0], rng.normal(size=(3, 27))
    atoms.info |= {"REF_energy": 0.1, "config_energy_weight": 2.0, "note": "x"}
    atoms.arrays |= {"hessian": hessian, "REF_forces": rng.normal(size=(3, 3)).astype("float32")}
    atoms.calc.results["DFT_forces"] = rng.normal(size=(3, 3))
    frames[1].rattle(0.1)
    ase.io.write(tmp_path / "frames.traj", [for_trajectory(one) for one in frames])
    for forces in ("forces", "REF_forces", "DFT_forces"):
        keys = Keys(energy="energy" if forces == "forces" else "REF_energy", forces=forces)
        read, moved = read_structures(tmp_path / "frames.traj", keys=keys)
        expected = of_atoms(atoms, keys)
        assert (read.energy, read.weights) == (expected.energy, expected.weights)
        np.testing.assert_array_equal(read.forces, expected.forces)
        np.testing.assert_array_equal(read.hessian.ravel(), hessian.ravel())
        assert (moved.energy, moved.forces) == (None, None)


def test_stress_in_columns_of_three_atoms_is_none_of_each_atom(frames, tmp_path):
    atoms, stress = frames[1][:3], np.array([[1.0, 4, 5], [4, 2, 6], [5, 6, 3]])
    with ase.db.connect(tmp_path / "frames.db") as database:
        database.write(atoms, data={"dft_stress": stress})
    keys = Keys(stress="dft_stress")
    [structure] = read_structures(tmp_path / "frames.db", keys=keys, require_labels=False)
    np.testing.assert_array_equal(structure.stress, stress)


def write(path, rows: dict[str, bytes], subdir=False):
    with lmdb.open(str(path), map_size=2**24, subdir=subdir) as file, file.begin(write=True) as to:
        for key, value in rows.items():
            to.put(key.encode(), value)


def encoded(atoms, **columns) -> bytes:
    """Return a row as the package ase-db-backends 0.11 writes it."""
    row = AtomsRow(atoms)
    hidden = {key for key in row.__dict__ if key[0] == "_" or key in row._keys or key == "id"}
    fields = {key: row[key] for key in row.__dict__ if key not in hidden}
    fields["cell"] = np.asarray(fields["cell"])
    fields |= {"mtime": 0.0, "key_value_pairs": columns, "data": {}}
    return zlib.compress(encode(fields).encode())


@pytest.fixture
def rows(frames):
    """Return twelve rows, and what besides rows is in such a file."""
    rows = {str(k + 1): encoded(frames[k % 2], config_type=f"group {k}", E=1.0) for k in range(12)}
    others = {"nextid": 13, "deleted_ids": [], "metadata": {"format": "x"}}
    return rows | {key: zlib.compress(encode(value).encode()) for key, value in others.items()}


@pytest.mark.parametrize("subdir", [False, True])
def test_rows_in_the_order_of_their_ids(frames, rows, tmp_path, subdir):
    path = tmp_path / "frames.aselmdb"
    write(path, rows, subdir)
    read = read_structures(path)
    assert [s.config_type for s in read] == [f"group {k}" for k in range(12)]
    assert [s.energy for s in read] == 6 * [atoms.get_potential_energy() for atoms in frames]
    assert read_structures(path, keys=Keys(energy="E"))[3].energy == 1.0


def test_a_folder_of_files(rows, tmp_path):
    for name in ("b", "a"):
        write(tmp_path / f"{name}.aselmdb", {"1": rows["1" if name == "a" else "2"]})
    read = read_structures(tmp_path, format="lmdb")
    assert [s.config_type for s in read] == ["group 0", "group 1"]


def test_pickled_objects_and_other_files_are_refused(rows, tmp_path):
    """Without executing what they hold."""
    write(tmp_path / "old.lmdb", {"0": pickle.dumps({"pos": 1})})
    with pytest.raises(DataError, match="files of pickled objects are not read"):
        read_structures(tmp_path / "old.lmdb")
    (tmp_path / "text.lmdb").write_text("text" * 10000)
    with pytest.raises(DataError, match="cannot be read as LMDB"):
        read_structures(tmp_path / "text.lmdb")
    write(tmp_path / "damaged.lmdb", {"1": rows["1"], "2": zlib.compress(b"{}")})
    with pytest.raises(DataError, match=r"damaged\.lmdb: a row is damaged"):
        read_structures(tmp_path / "damaged.lmdb")


@pytest.mark.parametrize("suffix", ["traj", "db", "json"])
def test_names_in_upper_case_and_compressed_ones(frames, tmp_path, suffix):
    """What ASE does not read compressed is refused."""
    file, other = tmp_path / f"frames.{suffix}", tmp_path / f"FRAMES.{suffix.upper()}"
    ase.io.write(file, frames)
    other.write_bytes(file.read_bytes())
    assert len(read_structures(other)) == 2
    for end in (".gz", ".GZ"):
        packed = tmp_path / f"{other.name}{end}"
        packed.write_bytes(gzip.compress(file.read_bytes()))
        if (suffix, end) == ("traj", ".gz"):
            assert len(read_structures(packed)) == 2
            continue
        with pytest.raises(DataError, match=f"{packed.name} is not read while .* unpack it"):
            read_structures(packed)


@pytest.mark.parametrize("suffix", ["xyz", "traj", "db"])
def test_atoms_have_what_a_simulation_starts_from(frames, tmp_path, suffix):
    """Velocities, masses and constraints, without labels, which would be those of other places."""
    atoms = frames[1]
    atoms.set_masses([60.0, 61, 62, 63])
    atoms.set_velocities(np.arange(12.0).reshape(4, 3))
    atoms.set_constraint(FixAtoms([1]))
    atoms.info["virial"] = -atoms.get_volume() * atoms.get_stress(voigt=False)
    path = tmp_path / f"frames.{suffix}"
    ase.io.write(path, frames)
    water, copper = iterate_atoms(path)
    assert len(water) == 3
    np.testing.assert_allclose(copper.positions, atoms.positions, atol=1e-7)
    np.testing.assert_allclose(copper.get_velocities(), atoms.get_velocities(), atol=1e-7)
    np.testing.assert_array_equal(copper.get_masses(), [60, 61, 62, 63])
    assert [c.index.tolist() for c in copper.constraints] == [[1]]
    assert copper.calc is None
    assert not [key for key in copper.info if key.startswith("eqfuse")]
