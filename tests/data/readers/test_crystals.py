"""CIF, PDB and POSCAR files whose elements or occupancies ASE would guess."""

import ase.build
import ase.io
import numpy as np
import pytest

from eqfuse.data import DataError, read_structures

CIF = """data_salt
_cell_length_a 5.6
_cell_length_b 5.6
_cell_length_c 5.6
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_space_group_name_H-M_alt 'F m -3 m'
_space_group_IT_number 225
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
_atom_site_occupancy
Na1 {sodium} 0 0 0 {occupancy}
{more}
Cl1 Cl 0.5 0.5 0.5 {second}
"""


def salt(tmp_path, sodium="Na", occupancy="1.0", second="1", more=""):
    path = tmp_path / "salt.cif"
    text = CIF.format(sodium=sodium, occupancy=occupancy, second=second, more=more)
    path.write_text(text.replace("\n\n", "\n"))
    return path


@pytest.mark.parametrize("occupancy", ["1", "1.000(3)", "?", "."])
def test_cif_of_whole_atoms(tmp_path, occupancy):
    [structure] = read_structures(salt(tmp_path, occupancy=occupancy), require_labels=False)
    np.testing.assert_array_equal(np.bincount(structure.numbers)[[11, 17]], [4, 4])
    np.testing.assert_allclose(structure.cell, 5.6 * np.eye(3), atol=1e-12)
    assert structure.pbc.all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"occupancy": "0.6", "more": "K1 K 0 0 0 0.4"}, "salt: the site Na1 is occupied by 0.6"),
        ({"second": "0.5"}, r"the site Cl1 is occupied by 0\.5 of an atom, .* choose which atoms"),
        ({"occupancy": "?", "second": "'0.5'"}, "the site Cl1 is occupied by 0.5"),
        ({"more": "K1 K 0 0 0 1"}, "scaled_positions 0 and 1 are equivalent"),
        ({"sodium": "NA"}, "the site Na1 has the element 'NA'"),
    ],
)
def test_cif_partial_occupancy_is_refused(tmp_path, given, message):
    """Also two atoms of one site, and elements that ASE would read by their first letter."""
    with pytest.raises(DataError, match=message):
        read_structures(salt(tmp_path, **given), require_labels=False)


ATOM = "ATOM  {:>5} {:<4}{}{} A   1    {:>8.3f}{:>8.3f}{:>8.3f}  1.00  0.00          {:>2}\n"
NAMES = [" N  ", " CA ", " C  ", " O  "]
PLACES = [(0, 0, 0), (1.46, 0, 0), (2, 1.42, 0), (1.3, 2.4, 0.1)]


def glycine(tmp_path, cryst="", elements=("N", "C", "C", "O"), alternate=" ", models=1):
    text, path = "", tmp_path / "glycine.pdb"
    for k, (name, place, element) in enumerate(zip(NAMES, PLACES, elements, strict=True)):
        text += ATOM.format(k + 1, name, alternate, "GLY", *place, element)
    if models > 1:
        text = "".join(f"MODEL     {k}\n{text}ENDMDL\n" for k in range(models))
    path.write_text(f"{cryst}{text}END\n")
    return path


CRYST = "CRYST1{:9.3f}{:9.3f}{:9.3f}{:7.2f}{:7.2f}{:7.2f} P 1           1\n"


@pytest.mark.parametrize(
    ("cell", "lengths"),
    [(None, None), ((1, 1, 1, 90, 90, 90), None), ((9, 10, 11, 90, 90, 90), (9, 10, 11))],
)
@pytest.mark.parametrize("models", [1, 3])
def test_pdb_models_and_cells(tmp_path, cell, lengths, models):
    """CRYST1 stands once, before all models, and 1 1 1 is no cell."""
    cryst = "" if cell is None else CRYST.format(*cell)
    read = read_structures(glycine(tmp_path, cryst, models=models), require_labels=False)
    assert len(read) == models
    for structure in read:
        np.testing.assert_array_equal(structure.numbers, [7, 6, 6, 8])
        np.testing.assert_allclose(structure.positions, PLACES, atol=1e-12)
        expected = np.zeros((3, 3)) if lengths is None else np.diag(lengths)
        np.testing.assert_allclose(structure.cell, expected, atol=1e-12)
        assert structure.pbc.tolist() == 3 * [lengths is not None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"elements": ("", "", "", "")}, r"line 1: no element in columns 77 and 78, .* ' N  '"),
        ({"elements": ("N", "", "C", "O")}, r"line 2: .* the name ' CA ' does not tell it"),
        ({"alternate": "A"}, "line 1: N is in the alternate place 'A'"),
    ],
)
def test_pdb_without_elements_is_refused(tmp_path, given, message):
    with pytest.raises(DataError, match=message):
        read_structures(glycine(tmp_path, **given), require_labels=False)


@pytest.mark.parametrize("first", ["I want silicon", "Si", "Si Si", ""])
def test_poscar_without_elements_is_refused(tmp_path, first):
    """ASE takes the I for iodine."""
    path = tmp_path / "POSCAR_1"
    ase.io.write(path, ase.build.bulk("Si"), format="vasp")
    lines = path.read_text().splitlines()
    assert lines[5].split() == ["Si"]
    path.write_text("\n".join([first, *lines[1:5], *lines[6:]]) + "\n")
    if first == "Si":
        [structure] = read_structures(path, require_labels=False)
        np.testing.assert_array_equal(structure.numbers, [14, 14])
        return
    with pytest.raises(DataError, match=r"POSCAR_1 names no elements above their numbers \(2\)"):
        read_structures(path, require_labels=False)
