"""Columns of a start that mean something and have other names than ASE's."""

import ase.build
import ase.io
import numpy as np
import pytest
from ase import units
from ase.calculators.lammps import convert
from ase.constraints import FixAtoms

from eqfuse import md
from eqfuse.data import DataError
from eqfuse.data.readers.ase_files import (
    HELD,
    as_atoms,
    keep,
    labels_of,
    of_atoms,
    unread_names,
    writable,
)
from eqfuse.distill.sampling import not_sampled
from eqfuse.md.settings import Settings
from eqfuse.md.structures import structures_of
from eqfuse.runs import ConfigError

VELOCITIES = np.random.default_rng(0).normal(scale=1e-3, size=(4, 3)).round(6)


@pytest.fixture
def start():
    return ase.build.bulk("Cu", cubic=True)


@pytest.mark.parametrize(
    ("name", "unit", "factor"),
    [
        ("vel", "A/fs", 1 / units.fs),
        ("velo", "A/ps", 1e-3 / units.fs),
        ("Velocities", "bohr/aut", units.Bohr / units.AUT),
        ("velocity", "A/fs", 1 / units.fs),
        ("vxyz", "A/fs", 1 / units.fs),
    ],
)
def test_velocities_of_another_name_need_a_unit(name, unit, factor, start, tmp_path):
    columns = dict(zip(("vx", "vy", "vz"), VELOCITIES.T, strict=True))
    start.arrays |= columns if name == "vxyz" else {name: VELOCITIES}
    ase.io.write(tmp_path / "start.xyz", start)
    for given in (start, tmp_path / "start.xyz"):
        with pytest.raises(DataError, match=r" of the start may be velocities, whose unit is not"):
            md.run("no run", given, steps=1)
        [read] = structures_of(given, Settings(velocities=unit))
        np.testing.assert_allclose(read.get_velocities(), factor * VELOCITIES, atol=1e-6)
        assert not unread_names(read, "velocities")
        [drawn] = structures_of(given, Settings(velocities="drawn"))
        assert not drawn.get_velocities().any()
    assert start.arrays.keys() >= ({*columns} if name == "vxyz" else {name})
    assert not start.has("momenta")
    start.set_velocities(np.ones((4, 3)))
    [own] = structures_of(start, Settings())
    np.testing.assert_allclose(own.get_velocities(), 1)
    [drawn] = structures_of(start, Settings(velocities="drawn"))
    assert not drawn.has("momenta")
    assert start.has("momenta")


def test_a_unit_without_velocities_is_refused(start):
    with pytest.raises(DataError, match=r"velocities=A/ps is of a column .*: there is none"):
        structures_of(start, Settings(velocities="A/ps"))


def test_texts_of_a_trajectory_are_words(start, tmp_path):
    start.arrays |= {"residuenames": np.array(["A", "", "b c", "B"]), "w": np.arange(4)}
    made = start.copy()
    made.arrays = {name: made.arrays[name] for name in ("numbers", "positions")}
    keep(made, start)
    ase.io.write(tmp_path / "made.xyz", made)
    read = ase.io.read(tmp_path / "made.xyz")
    assert read.arrays["residuenames"].tolist() == ["A", "_", "b_c", "B"]
    assert read.arrays["w"].tolist() == [0, 1, 2, 3]


def test_values_of_any_form_are_read_again(start, tmp_path):
    """Whatever is before it, the periodic directions are those of the atoms."""
    texts = [
        "",
        "=",
        "two\nlines",
        "C:\\a b\\",
        "\\alpha",
        "_JSON [1",
        "\tx",
        'a "b" c',
        "'",
        "{",
        "é",
    ]
    values = [*texts, [texts], {"a": texts}, np.array(texts), np.zeros(0), [], np.array([None, 1])]
    start.pbc = (True, True, False)
    start.info = {f"v{k}": value for k, value in enumerate([*values, np.ones(2) * 1j])}
    start.info |= {"a=b": 1, "": 2, "Lattice": "x", "Properties": "y", "pbc": "z", 7: 3}
    made = as_atoms(of_atoms(start))
    assert keep(made, start).keys() == {"Lattice", "Properties", "pbc"}
    assert not labels_of(start)
    ase.io.write(tmp_path / "made.xyz", [writable(made)] * 2)
    read = ase.io.read(tmp_path / "made.xyz", 1)
    np.testing.assert_array_equal(read.pbc, start.pbc)
    np.testing.assert_array_equal(read.cell.array, start.cell.array)
    for name, value in start.info.items():
        new = {"a=b": "a_b", "": "_", 7: "7"}.get(name, name)
        new = f"input_{new}" if new in ("Lattice", "Properties", "pbc") else new
        expected = "[1j, 1j]" if np.iscomplexobj(value) else value
        np.testing.assert_array_equal(read.info[new], expected, err_msg=name)


def test_columns_of_any_form_are_read_again(start, tmp_path):
    columns = {
        "a b": np.arange(4, dtype=np.uint8),
        "c:d": np.full((4, 2), 1j),
        'e"=': np.array([None, 1, "f g", ""], object),
        "dates": np.array(["2020-01-01"] * 4, "M8[D]"),
        "none": np.zeros((4, 0)),
        "ids": np.array([1, 2, 3, 2**60]),
        "Z": np.zeros(4, int),
        "pos": np.ones((4, 3)),
    }
    start.arrays |= columns
    made = as_atoms(of_atoms(start))
    assert keep(made, start).keys() == {"Z", "pos"}
    ase.io.write(tmp_path / "made.xyz", writable(made))
    read = ase.io.read(tmp_path / "made.xyz")
    np.testing.assert_array_equal(read.numbers, start.numbers)
    names = {"a b": "a_b", "c:d": "c_d", 'e"=': "e__", "Z": "input_Z", "pos": "input_pos"}
    expected = {names.get(name, name): column for name, column in columns.items() if column.size}
    assert read.arrays.keys() == {"numbers", "positions", *expected}
    expected["e__"] = ["None", "1", "f_g", "_"]
    for name, column in expected.items():
        text = read.arrays[name].dtype.kind in "UO"
        np.testing.assert_array_equal(read.arrays[name], np.array(column, str if text else None))


def test_all_that_has_one_name_is_kept(start):
    """An entry and a column of one name, and what was renamed before."""
    start.info |= {"step": 7, "input_step": 5, "tag": 3}
    start.arrays["tag"] = np.arange(4)
    made = as_atoms(of_atoms(start))
    made.info["step"] = 0
    assert keep(made, start) == {"step": "input_input_step"}
    assert made.info == {"step": 0, "input_input_step": 7, "input_step": 5, "tag": 3}
    assert made.arrays["tag"].tolist() == [0, 1, 2, 3]


def test_replicas_differ_by_their_equilibration(start):
    start.set_velocities(VELOCITIES)
    how = {"replicas": 2, "ensemble": "nve"}
    with pytest.raises(ConfigError, match="replicas=2 would all be the same"):
        structures_of(start, Settings(**how))
    assert len(structures_of(start, Settings(equilibrate=20, **how))) == 2


def test_momenta_of_another_name_are_refused(start):
    start.arrays["momentum"] = VELOCITIES
    with pytest.raises(DataError, match="momentum of the start may be momenta: rename"):
        structures_of(start, Settings())
    [drawn] = structures_of(start, Settings(velocities="drawn"))
    assert not drawn.get_velocities().any()
    start.set_momenta(VELOCITIES)
    [own] = structures_of(start, Settings())
    np.testing.assert_array_equal(own.get_momenta(), VELOCITIES)


def test_velocities_of_lammps_without_units_are_named(start, tmp_path):
    box = "0 3.61\n" * 3
    head = f"ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n4\nITEM: BOX BOUNDS pp pp pp\n{box}"
    rows = np.column_stack([start.positions, VELOCITIES])
    text = "".join(f"{k} Cu {' '.join(map(str, row))}\n" for k, row in enumerate(rows, 1))
    dump, data = tmp_path / "a.dump", tmp_path / "a.data"
    dump.write_text(f"{head}ITEM: ATOMS id element x y z vx vy vz\n{text}")
    start.set_velocities(convert(VELOCITIES, "velocity", "metal", "ASE"))
    ase.io.write(data, start, format="lammps-data", velocities=True, masses=True)
    text = data.read_text()
    data.write_text("a start" + text[text.index("\n") :])
    for file in (dump, data):
        with pytest.raises(DataError, match="may be velocities"):
            structures_of(file, Settings())
        [read] = structures_of(file, Settings(velocities="A/ps"))
        expected = convert(VELOCITIES, "velocity", "metal", "ASE")
        np.testing.assert_allclose(read.get_velocities(), expected, rtol=1e-5, atol=1e-9)


def test_other_names_of_masses_and_held_atoms_are_named(start, capsys):
    start.arrays |= {"mass": np.full(4, 63.5), "fixed": np.array([True, False, False, False])}
    start.arrays |= {"level": np.zeros((4, 3)), "site": np.arange(4)}
    structures_of(start, Settings())
    printed = capsys.readouterr().out
    assert "mass of the start may be masses" in printed
    assert f"fixed of the start may be {HELD}" in printed
    assert "level" not in printed


def test_a_distillation_names_what_it_does_not_keep(start):
    assert not_sampled([start]) == ""
    start.set_constraint(FixAtoms([0]))
    assert not_sampled([start]) == "constraints"
    start.set_masses([64.0] * 4)
    start.arrays["vel"] = VELOCITIES
    start.info["charge"] = 1
    assert not_sampled([start]) == "masses, constraints, vel, charge"
