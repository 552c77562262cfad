"""LAMMPS's dumps and data files: elements, boxes, units, frames that were cut off."""

import numpy as np
import pytest

from eqfuse.data import DataError, read_structures
from eqfuse.data.readers import iterate_atoms

DUMP = """ITEM: TIMESTEP
{step}
ITEM: NUMBER OF ATOMS
3
ITEM: BOX BOUNDS {bounds}
0 9
0 9
0 9
ITEM: ATOMS {columns}
2 2 4.9 4.2 4.0 {second}
1 1 4.0 4.0 4.0 {first}
3 2 3.5 4.8 4.1 {second}
"""


def dump(tmp_path, more="", first="", second="", bounds="pp pp ff", before="", steps=1):
    columns = f"id type x y z {more}".strip()
    given = {"bounds": bounds, "columns": columns, "first": first, "second": second}
    path = tmp_path / "water.lammpstrj"
    path.write_text(before + "\n".join(DUMP.format(step=k, **given) for k in range(steps)))
    return path


def read(path, types=None):
    return read_structures(path, types=types, require_labels=False)


@pytest.mark.parametrize("types", ["O H", "O,H", ["O", "H"]])
def test_dump_of_named_types(tmp_path, types):
    frames = read(dump(tmp_path, steps=2), types)
    assert len(frames) == 2
    np.testing.assert_array_equal(frames[1].numbers, [8, 1, 1])
    assert (frames[1].energy, frames[1].forces) == (None, None)


@pytest.mark.parametrize("columns", [("element", "O", "H"), ("mass", "16", "1.0")])
def test_dump_of_elements_or_masses(tmp_path, columns):
    [structure] = read(dump(tmp_path, *columns))
    np.testing.assert_array_equal(structure.numbers, [8, 1, 1])


@pytest.mark.parametrize(
    ("given", "types", "message"),
    [
        ({}, None, r"frame 0: a LAMMPS dump without elements: name .*types=Si,O"),
        # what LAMMPS writes if nobody named the elements
        ({"more": "element", "first": "C", "second": "C"}, None, "a LAMMPS dump without elements"),
        ({"more": "element", "first": "OW", "second": "H"}, None, "'OW', which is no element"),
        ({"more": "mass", "first": "16", "second": "2"}, None, "a mass of 2 u is not that of one"),
        ({}, "O", "there are 2 types and 1 elements are named"),
        ({}, "O X", "the type 2 is named 'X', which is no element"),
        ({"bounds": ""}, "O H", "does not say which directions are periodic"),
        ({"before": "ITEM: UNITS\nlj\n"}, "O H", "its units are lj, which are no lengths"),
        ({"more": "vx", "first": "0.1"}, "O H", "rows without 6 columns; the file may have been"),
    ],
)
def test_dump_without_elements_is_refused(tmp_path, given, types, message):
    with pytest.raises(DataError, match=message):
        read(dump(tmp_path, **given), types)


def test_dump_of_scaled_coordinates_and_other_columns(tmp_path):
    """Places are those in the box, which begins at 1 1 1; a column of words is not read."""
    path = dump(tmp_path, "label", "OW", "HW")
    text = path.read_text().replace("0 9\n", "1 9\n").replace("x y z", "xs ys zs")
    path.write_text(text.replace("4.9 4.2 4.0", "0.5 0.25 0.75"))
    [structure] = read(path, "O H")
    np.testing.assert_allclose(structure.positions[1], [5.0, 3.0, 7.0], rtol=1e-12)
    np.testing.assert_array_equal(structure.cell, 8 * np.eye(3))
    [atoms] = iterate_atoms(path, types="O H")
    assert not atoms.info
    assert not atoms.get_celldisp().any()


def test_dump_that_was_cut_off_is_refused(tmp_path):
    path = dump(tmp_path, steps=2)
    path.write_text(path.read_text().rstrip().rpartition("\n")[0])
    with pytest.raises(DataError, match="frame 1: there are 2 rows of 3 atoms"):
        read(path, "O H")


def test_dump_in_units_of_real(tmp_path):
    """Forces are in kcal/mol/Å there, and in nobody knows what where the file has no units."""
    given = "fx fy fz", "1 0 0", "0 0 23.060548"
    [unnamed] = read(dump(tmp_path, *given), "O H")
    assert unnamed.forces is None
    path = dump(tmp_path, *given, before="ITEM: UNITS\nreal\n", steps=2)
    for structure in read(path, "O H"):
        expected = [[0.0433641, 0, 0], [0, 0, 1], [0, 0, 1]]
        np.testing.assert_allclose(structure.forces, expected, rtol=1e-6)
        assert structure.energy is None


@pytest.mark.parametrize(("units", "u", "e"), [("metal", 1, 1), ("micro", 1.66054e-12, 1.60218e-7)])
@pytest.mark.parametrize("types", ["O H", None])
def test_dump_of_masses_and_charges(tmp_path, units, u, e, types):
    """In u and e, from those of the file; an isotope keeps its mass where elements are named."""
    masses = f"{16 * u} {-0.8 * e}", f"{(2.014 if types else 1) * u} 0"
    path = dump(tmp_path, "mass q", *masses, before=f"ITEM: UNITS\n{units}\n")
    [atoms] = iterate_atoms(path, types=types)
    np.testing.assert_array_equal(atoms.numbers, [8, 1, 1])
    np.testing.assert_allclose(atoms.get_masses()[:2], [16, 2.014 if types else 1], rtol=1e-5)
    np.testing.assert_allclose(atoms.get_initial_charges(), [-0.8, 0, 0], rtol=1e-5)


DATA = """LAMMPS data file via write_data, units = {units}

3 atoms
2 atom types
0 9 xlo xhi
0 9 ylo yhi
0 9 zlo zhi
{masses}
Atoms # atomic

1 1 4.0 4.0 4.0
3 2 3.5 4.8 4.1
2 2 4.9 4.2 4.0
"""


@pytest.mark.parametrize(
    ("masses", "types", "message"),
    [
        ("\nMasses\n\n1 15.9994\n2 1.008 # hydrogen\n", None, None),
        ("\nAtom Type Labels\n\n1 O\n2 H\n\nMasses\n\n1 1.0\n2 1.0\n", None, None),
        ("\nMasses\n\n1 1.0\n2 1.0\n", "O H", None),
        ("", "O H", None),
        ("", None, "water.lmp, frame 0: a LAMMPS data file without elements or masses: name"),
        ("\nMasses\n\n1 40\n2 1\n", None, "a mass of 40 u is not that of one element"),
        ("", "O", "there are 2 types and 1 elements are named"),
        ("lj", "O H", "its units are lj"),
    ],
)
def test_data_file(tmp_path, masses, types, message):
    path, units = tmp_path / "water.lmp", "lj" if masses == "lj" else "metal"
    path.write_text(DATA.format(masses=masses.removeprefix("lj"), units=units))
    if message is None:
        [structure] = read(path, types)
        np.testing.assert_array_equal(structure.numbers, [8, 1, 1])
        return
    with pytest.raises(DataError, match=message):
        read(path, types)


@pytest.mark.parametrize(("style", "molecule"), [("atomic", ""), ("molecular", "7 ")])
@pytest.mark.parametrize(("types", "numbers"), [(None, [8, 1, 1]), ("S,H", [16, 1, 1])])
def test_labels_in_place_of_types(tmp_path, style, molecule, types, numbers):
    """Atoms may be in any order; masses and bonds are those of the atoms."""
    sections = "\nAtom Type Labels\n\n1 O\n2 H\n\nMasses\n\nO 15.9994\nH 2.014 # heavy\n"
    rows = (f"3 {molecule}H 3 4 4\n", f" 1 {molecule}O 1 4 4\n", f"2 {molecule}H 2 4 4\n")
    head = DATA.format(masses=sections, units="metal").replace("atomic", style).split("1 1 4.0")[0]
    bonds = "\nBonds\n\n1 1 1 2\n2 1 1 3\n"
    (tmp_path / "water.lmp").write_text(head + "".join(rows) + bonds)
    [atoms] = iterate_atoms(tmp_path / "water.lmp", types=types)
    np.testing.assert_array_equal(atoms.numbers, numbers)
    np.testing.assert_allclose(atoms.get_masses(), [15.9994, 2.014, 2.014], rtol=1e-8)
    np.testing.assert_array_equal(atoms.positions[:, 0], [1, 2, 3])
    assert atoms.arrays["bonds"][0] == "1(1),2(1)"


def test_types_are_of_lammps(tmp_path):
    path = tmp_path / "atom.xyz"
    path.write_text("1\n\nH 0 0 0\n")
    with pytest.raises(DataError, match=r"atom\.xyz is no file of LAMMPS, so that it has no types"):
        read(path, "O H")
