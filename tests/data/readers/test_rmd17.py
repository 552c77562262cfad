"""Reading rMD17 and MD22 files, good and bad."""

import pickle

import numpy as np
import pytest

from eqfuse.data import DataError, read_structures
from eqfuse.data.readers import iterate_atoms


def rmd17_arrays():
    rng = np.random.default_rng(0)
    return {
        "nuclear_charges": np.array([8, 1, 1], np.uint8),
        "coords": rng.normal(size=(4, 3, 3)),
        "energies": np.array([-1.0, -2.0, -3.0, -4.0]),
        "forces": rng.normal(size=(4, 3, 3)),
    }


def save_md22(path, keys="zREF", **units):
    arrays = rmd17_arrays()
    np.savez(path, **dict(zip(keys, arrays.values(), strict=True)), **units)
    return arrays


@pytest.mark.parametrize("keys", ["zREF", [*rmd17_arrays()]], ids=["md22", "rmd17"])
@pytest.mark.parametrize("length", [None, "Ang", b"Angstrom", "Å"])
@pytest.mark.parametrize(
    ("energy", "factor"),
    [(None, 0.0433641), (b"kcal/mol", 0.0433641), ("kcal mol^-1", 0.0433641), ("eV", 1.0)],
)
def test_files_are_read_in_their_own_units(tmp_path, energy, factor, length, keys):
    units = {"e_unit": energy, "r_unit": length}
    units = {key: np.array(unit) for key, unit in units.items() if unit is not None}
    arrays = save_md22(tmp_path / "m.npz", keys, **units)
    frames = read_structures(tmp_path / "m.npz")
    assert len(frames) == 4
    np.testing.assert_array_equal(frames[2].numbers, [8, 1, 1])
    np.testing.assert_array_equal(frames[2].positions, arrays["coords"][2])
    assert frames[2].energy == pytest.approx(-3 * factor, rel=1e-6)
    np.testing.assert_allclose(frames[2].forces, arrays["forces"][2] * factor, rtol=1e-6)


def test_atoms_are_in_angstrom_whatever_the_file_is_in(tmp_path):
    arrays = save_md22(tmp_path / "m.npz", r_unit=np.array("bohr"))
    atoms = list(iterate_atoms(tmp_path / "m.npz"))
    np.testing.assert_allclose(atoms[2].positions, 0.52917721 * arrays["coords"][2], rtol=1e-7)
    assert atoms[2].calc is None
    assert not atoms[2].info


@pytest.mark.parametrize(("key", "unit"), [("e_unit", "meV"), ("e_unit", ""), ("r_unit", 1)])
def test_unknown_units_are_refused(tmp_path, key, unit):
    save_md22(tmp_path / "m.npz", **{key: np.array(unit)})
    with pytest.raises(DataError, match=rf"m\.npz \(e_unit, r_unit\): .* '{unit}' is unknown"):
        read_structures(tmp_path / "m.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forces": None}, "has no forces; it has nuclear_charges, coords, energies"),
        ({"energies": np.zeros(3)}, "shapes do not fit"),
        ({"coords": np.zeros((4, 2, 3))}, "shapes do not fit"),
        ({"energies": np.array([0, 0, np.nan, 0])}, "frame 2: energy has nan"),
        ({"nuclear_charges": np.array([8, 1, 0])}, "frame 0: unknown element: atom 2"),
        ({"nuclear_charges": np.array([8.0, 1, 1])}, "nuclear_charges must be integers, and is f"),
        ({"forces": np.full((4, 3, 3), 1j)}, "forces must be real numbers, and is complex128"),
        (
            {"lattice": 9 * np.eye(3)},
            "m.npz has a lattice, and rMD17 and MD22 are molecules; write",
        ),
        ({"energies": np.full(4, "low")}, "energies must be real numbers, and is <U3"),
    ],
)
def test_bad_rmd17(tmp_path, change, message):
    arrays = {k: v for k, v in (rmd17_arrays() | change).items() if v is not None}
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(DataError, match=r"m\.npz") as error:
        read_structures(tmp_path / "m.npz")
    assert message in str(error.value)


@pytest.mark.parametrize("key", ["forces", "e_unit"])
def test_pickled_arrays_are_not_read(tmp_path, key):
    arrays = rmd17_arrays()
    np.savez(tmp_path / "m.npz", **{**arrays, key: np.array([{}, "eV"], dtype=object)})
    with pytest.raises(DataError, match=r"m\.npz cannot be read .* pickled Python objects"):
        read_structures(tmp_path / "m.npz")
    (tmp_path / "no.npz").write_bytes(pickle.dumps(arrays))
    with pytest.raises(DataError, match=r"no\.npz cannot be read as an npz file: it has another"):
        read_structures(tmp_path / "no.npz")
