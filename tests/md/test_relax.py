import ase.io
import numpy as np
import pytest
from ase import units
from ase.constraints import FixAtoms, FixedLine

import eqfuse
from eqfuse import md
from eqfuse.certify.check import frames_of
from eqfuse.data import DataError, Dataset, read_structures
from eqfuse.md import relaxation
from eqfuse.md.structures import read_frames
from tests.md.conftest import BAD
from tests.small_runs import copper_cell


@pytest.fixture
def run(trained):
    return trained


@pytest.fixture
def frames():
    """Return cells of several sizes."""
    made = [copper_cell(copies, 0.08, seed) for seed, copies in enumerate((1, (2, 1, 1), 1))]
    made[2].set_cell(1.03 * made[2].cell.array, scale_atoms=True)
    return made


def test_frames_relax_with_their_constraints(run, frames):
    """The forces of a calculator vanish where atoms may move, and in different numbers of steps."""
    frames[1].set_constraint([FixAtoms([0, 3]), FixedLine([1], [0, 0, 1])])
    cluster = frames[0].copy()
    cluster.pbc, cluster.cell = False, None
    before = [atoms.positions.copy() for atoms in (*frames, cluster)]
    outcomes, calculator = md.relax(run, [*frames, cluster], fmax=0.02), eqfuse.Calculator(run)
    for positions, atoms, outcome in zip(before, [*frames, cluster], outcomes, strict=True):
        np.testing.assert_array_equal(atoms.positions, positions)
        relaxed, energy = outcome.atoms.copy(), outcome.atoms.get_potential_energy()
        relaxed.calc = calculator
        largest = np.linalg.norm(relaxed.get_forces(), axis=1).max()
        assert outcome.is_relaxed
        assert largest == pytest.approx(outcome.largest, abs=1e-9)
        assert largest < 0.02
        assert energy == pytest.approx(relaxed.get_potential_energy())
        assert outcome.first_energy > energy + 1e-4
    moved = outcomes[1].atoms.positions - frames[1].positions
    assert not moved[[0, 3]].any()
    assert not moved[1, :2].any()
    assert moved[1, 2]
    assert len({outcome.steps for outcome in outcomes}) > 1


def test_a_cell_relaxes_to_the_pressure(run, frames):
    calculator, expected = eqfuse.Calculator(run), -units.GPa * np.array([1, 1, 1, 0, 0, 0])
    for outcome in md.relax(run, frames[:2], cell=True, fmax=0.001, pressure=1.0):
        stress = calculator.get_stress(outcome.atoms)
        np.testing.assert_allclose(stress, expected, atol=0.001 * len(outcome.atoms) / 40)
        np.testing.assert_allclose(outcome.atoms.get_stress(), stress, atol=1e-9)


def test_atoms_that_overlap_are_refused_by_every_command(run, frames, tmp_path):
    """One limit and one message: nothing is computed of two atoms nearer than 0.3 Å."""
    atoms, file = frames[0], tmp_path / "near.xyz"
    atoms.positions[1] = atoms.positions[0] + [0.1, 0.1, 0.0]
    ase.io.write(file, [frames[2], atoms], format="extxyz")
    for task in (
        lambda: md.relax(run, [frames[2], atoms]),
        lambda: md.run(run, str(file), run=str(tmp_path / "md")),
        lambda: eqfuse.predict(run, file),
        lambda: frames_of(file, 2),
        lambda: Dataset.build(read_structures(file, require_labels=False), cutoff=4.0, val_size=1),
    ):
        with pytest.raises(DataError, match=r"atoms 0 and 1 overlap: they are 0\.141 Å"):
            task()
        assert not (tmp_path / "md").exists()


DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
2
ITEM: BOX BOUNDS ff ff ff
0 9
0 9
0 9
ITEM: ATOMS id type x y z
1 2 4.0 4.0 4.0
2 2 6.2 4.0 4.0
"""


def test_types_of_a_dump_are_needed_by_every_command(run, tmp_path, command):
    """The type 2 is no helium."""
    dump, out = tmp_path / "pair.lammpstrj", tmp_path / "out.xyz"
    dump.write_text(DUMP)
    for words in (
        ("relax", run, dump, out),
        ("md", run, dump, f"run={tmp_path / 'md'}"),
        ("predict", run, dump, out),
        ("evaluate", run, dump),
        ("check", run, dump),
        ("compare", run, run, dump),
        ("export", run, tmp_path / "e", "--structure", dump),
        ("train", f"data={dump}"),
    ):
        error = command(*words, code=2).err
        assert "a LAMMPS dump without elements: name those of types" in error, words
    assert [path.name for path in tmp_path.iterdir()] == [dump.name]
    command("relax", run, dump, out, "--types", "Au", "Cu", "fmax=0.1")
    command("predict", run, dump, f"{out}.xyz", "types=Au,Cu")
    for written in (out, f"{out}.xyz"):
        assert ase.io.read(written).symbols.get_chemical_formula() == "Cu2"


def test_the_command_writes_what_is_relaxed(run, frames, tmp_path, command, capsys):
    source = tmp_path / "frames.xyz"
    ase.io.write(source, frames[:2], format="extxyz")
    assert [len(atoms) for atoms in read_frames(source, last=True)] == [8]
    assert f"start: frame 1 of {source}, its last" in capsys.readouterr().out
    assert "2 structures in" in command("relax", run, source, "fmax=0.05", "steps=100").out
    relaxed = ase.io.read(tmp_path / "frames_relaxed.xyz", ":")
    assert [len(atoms) for atoms in relaxed] == [4, 8]
    assert all(np.linalg.norm(a.get_forces(), axis=1).max() < 0.05 for a in relaxed)
    assert "exists" in command("relax", run, source, code=2).err
    error = command("relax", run, source, tmp_path / "no" / "x.xyz", code=2).err
    assert "there is no folder" in error  # before anything is computed
    target = tmp_path / "other.xyz"
    error = command("relax", run, source, target, "fmax=1e-9", "steps=1", code=1).err
    assert "2 of 2 structures are not relaxed after 1 steps" in error
    assert len(ase.io.read(target, ":")) == 2


@pytest.mark.parametrize(("error", "code"), [(DataError("pressed"), 2), (KeyboardInterrupt, 130)])
def test_what_is_relaxed_before_an_error_is_written(
    error, code, run, frames, tmp_path, command, monkeypatch
):
    source, target = tmp_path / "frames.xyz", tmp_path / "out.xyz"
    ase.io.write(source, frames, format="extxyz")
    relax = relaxation._relax

    def fails(calculator, atoms, settings):
        if len(atoms) == 8:
            raise error
        return relax(calculator, atoms, settings)

    monkeypatch.setattr(relaxation, "_relax", fails)
    printed = command("relax", run, source, target, "fmax=9", code=code)
    assert f"1 structures in {target}" in printed.out
    assert "frame 1: pressed" in printed.err or code == 130
    assert len(ase.io.read(target, ":")) == 1


def test_constraints_that_extended_xyz_drops_are_named(run, frames, tmp_path, command):
    frames[0].set_constraint([FixAtoms([0]), FixedLine([1], [0, 0, 1])])
    source = tmp_path / "frames.traj"
    ase.io.write(source, frames[0])
    for name in ("relax", "predict"):
        given = ("fmax=9",) if name == "relax" else ()
        error = command(name, run, source, tmp_path / f"{name}.xyz", *given).err
        assert f"{name}.xyz: extended XYZ drops the constraints FixedLine; files" in error
        assert not command(name, run, source, tmp_path / f"{name}.traj", *given).err
        assert len(ase.io.read(tmp_path / f"{name}.traj").constraints) == 2


def test_relax_refuses_what_it_cannot_relax(run, frames, tmp_path, command):
    slab = (lambda a: a.set_pbc((True, True, False))), "needs three periodic directions"
    for change, message in (*BAD, slab):
        atoms = frames[0].copy()
        change(atoms)
        with pytest.raises(DataError, match=f"frame 1: .*{message}"):
            md.relax(run, [frames[0], atoms], cell=message == slab[1])
    assert "no such file" in command("relax", run, tmp_path / "no.xyz", code=2).err
