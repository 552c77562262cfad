"""Reading extended XYZ files, good and bad, and what all readers have in common."""

import functools

import numpy as np
import pytest

from eqfuse.data import DataError, Keys, Units, read_structures
from tests.data.readers.test_rmd17 import save_md22

WATER = """3
Properties=species:S:1:pos:R:3:{forces}:R:3 {energy}=-14.25 config_type=water pbc="F F F"
O 0.0 0.0 0.0 0.1 0.0 0.0
H 0.96 0.0 0.0 -0.1 0.2 0.0
H -0.24 0.93 0.0 0.0 -0.2 0.0
"""
GOOD = WATER.format(forces="forces", energy="energy")
CELL = """1
Lattice="2.0 0 0 0.5 3.0 0 0 0 4.0" Properties=species:S:1:pos:R:3:forces:R:3 energy=-1.5 {stress}
Si 0.1 0.2 0.3 0.0 0.0 0.0
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="data.xyz"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_custom_keys(write):
    path = write(WATER.format(forces="REF_forces", energy="DFT_energy"))
    (water,) = read_structures(path, keys=Keys("DFT_energy", "REF_forces"))
    assert water.energy == -14.25
    np.testing.assert_array_equal(water.forces[1], [-0.1, 0.2, 0])


def test_cell_of_nested_lists(write):
    cell = '"[[2, 0, 0], [0.5, 3, 0], [0, 0, 4]]"'
    (structure,) = read_structures(write(SLAB.format(**USUAL | {"lattice": f"cell={cell}"})))
    np.testing.assert_array_equal(structure.cell, [[2, 0, 0], [0.5, 3, 0], [0, 0, 4]])


def test_constraints_do_not_change_forces(write):
    text = (
        "2\nProperties=species:S:1:pos:R:3:forces:R:3:move_mask:L:1 energy=-1.0\n"
        "H 0 0 0 1.0 2.0 3.0 F\nH 0.8 0 0 -1.0 -2.0 -3.0 T\n"
    )
    (structure,) = read_structures(write(text))
    np.testing.assert_array_equal(structure.forces, [[1, 2, 3], [-1, -2, -3]])


STRESS = np.array([[0.1, 0.4, 0.5], [0.4, 0.2, 0.6], [0.5, 0.6, 0.3]])
NINE = " ".join(map(str, STRESS.ravel()))
SIX = "0.1 0.2 0.3 0.6 0.5 0.4"
ROWS = str(STRESS.tolist())


@pytest.mark.parametrize(
    ("entry", "key", "factor"),
    [
        (f'DFT_stress="{NINE}"', "DFT_stress", 1),
        (f'DFT_stress="{SIX}"', "DFT_stress", 1),
        (f'REF_virial="{SIX}"', "REF_virial", -1 / 24),
        (f"REF_stress={ROWS}", "REF_stress", 1),
        # ASE itself takes nothing but nine numbers for these two names
        (f'stress="{SIX}"', "stress", 1),
        (f"stress = {{{SIX}}}", "stress", 1),
        (f'virial="{SIX}"', "stress", -1 / 24),
        (f'virial="{SIX}"', "virial", -1 / 24),
        (f'stress="_JSON {ROWS}"', "stress", 1),
        # what is not the key, or is not asked for
        (f'note="no stress=1 \'here" stress="{SIX}" after=\'stress=2\'', "stress", 1),
        (f'stress_old="1 2" my_stress=3 stress-x=4 stress="{SIX}"', "stress", 1),
        (f'stress="1 2" virial=None REF_stress="{SIX}"', "REF_stress", 1),
        (f'stress="{SIX}" cell="9 9 9 90 90 90"', "stress", 1),
    ],
)
def test_stress(write, entry, key, factor):
    """Usual names of nine numbers are those of `test_doors`."""
    (structure,) = read_structures(write(CELL.format(stress=entry)), keys=Keys(stress=key))
    np.testing.assert_allclose(structure.stress, factor * STRESS, rtol=1e-15)
    np.testing.assert_array_equal(structure.cell, [[2, 0, 0], [0.5, 3, 0], [0, 0, 4]])
    assert structure.pbc.all()


def test_stress_of_each_atom_is_not_that_of_the_cell(write):
    text = CELL.format(stress=f'stress="{SIX}"').replace(":forces:R:3", ":forces:R:3:stress:R:1")
    (structure,) = read_structures(write(text.replace("0.3 0.0 0.0 0.0", "0.3 0.0 0.0 0.0 7.0")))
    np.testing.assert_array_equal(structure.stress, STRESS)


def test_a_file_without_any_energy_or_forces_is_refused(write):
    no_energy, no_forces = GOOD.replace("energy=-", "E=-"), GOOD.replace("forces:R:3", "velo:R:3")
    with pytest.raises(DataError, match=r"in none of 2 frames: no energy .*candidates: E \("):
        read_structures(write(2 * no_energy))
    with pytest.raises(DataError, match=r"in none of 2 frames: no forces .*candidates: velo \("):
        read_structures(write(2 * no_forces))
    first, second = read_structures(write(no_energy + no_forces))
    assert (first.energy, second.forces) == (None, None)
    assert second.energy == -14.25
    np.testing.assert_array_equal(first.forces[1], [-0.1, 0.2, 0])


def test_the_weight_of_virials_is_that_of_the_stress_from_them(write):
    weights = "config_virials_weight=4 config_stress_weight=3"
    texts = [CELL.format(stress=f'{key}="1 1 1 0 0 0" {weights}') for key in ("stress", "virials")]
    texts.append(texts[1].replace("config_virials_weight=4", ""))
    frames = read_structures(write("".join(texts)))
    assert [frame.weights[:3] for frame in frames] == [(1, 1, 3), (1, 1, 4), (1, 1, 3)]
    assert [f.stress[0, 0] for f in frames] == pytest.approx([1, -1 / 24, -1 / 24])


def test_a_label_of_weight_zero_is_not_known(write):
    """Files have zeros for labels that they lack, with such a weight."""
    text = GOOD.replace("energy=", "config_forces_weight=0.0 energy=")
    text += "1\nconfig_type=IsolatedAtom config_weight=0 energy=-3\nH 0 0 0\n"
    water, atom = read_structures(write(text), require_labels=False)
    assert water.forces is None
    assert water.energy == -14.25
    assert atom.energy == -3  # its energy is a reference, whatever its weight


SLAB = """2
{lattice} Properties=species:S:1:pos:R:3:forces:R:3 {energy}=-1.5 {pbc}
Si 0.1 0.2 0.3 0.5 0.0 0.0
O 1.1 0.2 0.3 -0.5 0.0 0.0
"""
USUAL = {"lattice": 'Lattice="2.0 0 0 0.5 3.0 0 0 0 4.0"', "energy": "energy", "pbc": "pbc=TTF"}


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ({"lattice": 'cell="2 3 4"'}, "cell must be nine numbers: Lattice="),
        ({"lattice": 'lattice="2 3 4 90 90 90"'}, "lattice must be nine numbers"),
        ({"lattice": 'Box="2 3 4"'}, "Box is not read"),
        ({"lattice": f'{USUAL["lattice"]} lattice="1 0 0 0 1 0 0 0 1"'}, "lattice disagree"),
        ({"pbc": 'PBC="T T"'}, 'PBC="T T" is not three of T and F'),
        ({"pbc": "pbc=2"}, 'pbc="2" is not three of T and F'),
        ({"pbc": "pbc=TTF PBC=TTT"}, "pbc and PBC disagree; keep pbc"),
        ({"pbc": "# CELL(abcABC): 5 5 5 90 90 90 Step: 0"}, r"CELL\(abcABC\): is a cell of i-PI"),
        ({"energy": "Energy=-2 ENERGY"}, "Energy and ENERGY may both be energy; remove one"),
    ],
    ids=str,
)
def test_header_keys_that_are_not_read_are_named(write, spelling, message):
    with pytest.raises(DataError, match=rf"data\.xyz, frame 0: .*{message}"):
        read_structures(write(SLAB.format(**USUAL | spelling)))


def test_entries_that_are_no_labels_stay_ignored(write):
    """They have other shapes, or are cells of what is not periodic."""
    entries = 'Energy=low box="9 9 9" Force=2 cell="0 0 0 0 0 0 0 0 0" pbc='
    text = GOOD.replace("energy=", "forces_std=1 energy=").replace("pbc=", entries)
    [structure] = read_structures(write(text))
    assert structure.energy == -14.25
    assert not structure.pbc.any()
    assert not structure.unread


def test_words_of_a_comment_are_no_labels(write):
    """ASE reads a word without = as true, which is 1."""
    path = write("1\nCoordinates from ORCA-job x E -76.26\nH 0 0 0\n")
    [structure] = read_structures(path, keys=Keys("E"), require_labels=False)
    assert structure.energy is None


def test_labels_under_other_keys_are_remembered(write):
    other = GOOD.replace("energy=", "REF_energy=").replace("forces:", "REF_forces:")
    free = GOOD.replace("energy=-14.25", "energy=-14.25 free_energy=-15.0")
    first, second, third = read_structures(write(GOOD + other + free))
    assert (first.unread, third.unread) == ({}, {"free_energy": "free_energy"})
    assert second.unread == {"energy": "REF_energy", "forces": "REF_forces"}
    assert second.energy is None


PLAIN = CELL.format(stress="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("energy=", "config_forces_weight=-1 energy="),
            "config_forces_weight must be a finite number, zero or more, got -1",
        ),
        (GOOD.replace("O 0.0", "X 0.0"), "unknown element: atom 0"),
        (GOOD.replace("0.96", "nan"), "positions has nan for atom 1"),
        (GOOD.replace("-14.25", "nan"), "energy has nan"),
        ("0\nenergy=1.0\n", "no atoms"),
        (GOOD.replace("-0.1 0.2 0.0", "-0.1"), "not a frame of extended XYZ"),
        (GOOD[:-40], "the file ends after 2 of 3 atoms"),
        ("hello\nworld\n", "expected the number of atoms, got 'hello'"),
        (PLAIN.replace("0.5 3.0 0", "1.0 0.0 0"), "linearly independent lattice vectors"),
        (CELL.format(stress='virials="1 2 3"'), "virials must be 6 or 9 numbers, got 3"),
        (CELL.format(stress="stress=None"), "stress must be 6 or 9 numbers, got 'None'"),
        # ASE would take 750 MB and 25 s for them
        (PLAIN.replace("R:3 en", "R:3000000000 en"), "names 3000000004 columns, .* has 7"),
    ],
    ids=lambda text: text if "\n" not in text else "",
)
def test_bad_frame_is_named(write, text, message):
    with pytest.raises(DataError, match=rf"data\.xyz, frame 1\b.*{message}"):
        read_structures(write(GOOD + text))


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_file(write, text):
    with pytest.raises(DataError, match=r"data\.xyz has no frames"):
        read_structures(write(text))


def test_units_that_are_given_count(write, tmp_path):
    """In atomic units, with forces in Hartree/Bohr and stress in Hartree/Bohr^3."""
    text = CELL.format(stress=f'stress="{NINE}"')
    path = write(text.replace("0.3 0.0 0.0 0.0", "0.3 0.5 -0.2 0.1"))
    (plain,) = read_structures(path)
    units = Units.of("Hartree", "Bohr")
    (atomic,) = read_structures(path, units=units)
    hartree, bohr = 27.211386, 0.52917721  # CODATA, to the digits written
    factors = {"positions": bohr, "cell": bohr, "energy": hartree, "forces": hartree / bohr}
    for name, factor in (factors | {"stress": hartree / bohr**3}).items():
        expected = factor * np.asarray(getattr(plain, name))
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(getattr(atomic, name), expected, rtol=1e-6)
    arrays = save_md22(tmp_path / "m.npz", e_unit=np.array("eV"))
    frame = read_structures(tmp_path / "m.npz", units=units)[2]
    np.testing.assert_allclose(frame.positions, arrays["coords"][2] * bohr, rtol=1e-6)


def test_format_by_its_name(write, tmp_path):
    path = write(GOOD, "frames.dat")
    for known in (None, "extxyz"):
        [water] = read_structures(path, format=known)
        assert (water.config_type, water.volume, water.stress) == ("water", 0, None)
    with pytest.raises(DataError, match="format 'mol' is unknown; choose from: extxyz, rmd17"):
        read_structures(path, format="mol")


@pytest.mark.parametrize("factor", [1, -1, 1 / 160.2])
def test_stress_and_virial_of_a_frame_agree_or_are_refused(write, factor):
    virial = " ".join(f"{-24 * factor * number:.8f}" for number in STRESS.ravel())
    file = write(CELL.format(stress=f'stress="{NINE}" virials="{virial}"'))
    read = functools.partial(read_structures, file)
    if factor == 1:
        np.testing.assert_array_equal(read()[0].stress, STRESS)
        return
    with pytest.raises(DataError, match=r"frame 0: stress and virials disagree: .*=virials"):
        read()
    [structure] = read(keys=Keys(stress="virials"))
    np.testing.assert_allclose(structure.stress, factor * STRESS, rtol=1e-6)
