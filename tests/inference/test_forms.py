"""What public functions and commands are given: every form, and what they do not use."""

import ase.db
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

import eqfuse
from eqfuse import md
from eqfuse.data import DataError
from eqfuse.data.readers import indexed
from eqfuse.data.readers.ase_files import keep
from eqfuse.distill import rounds
from eqfuse.inference.uncertainty import fit
from tests.small_runs import copper_cell


@pytest.fixture(scope="module")
def two():
    """Return a crystal, and one that is stretched."""
    crystal = copper_cell(seed=1)
    other = crystal.copy()
    other.set_cell(1.02 * crystal.cell.array, scale_atoms=True)
    return [crystal, other]


def _written(frames, folder, name: str):
    ase.io.write(folder / name, frames)
    return folder / name


SEVERAL = {
    "list": lambda two, folder: two,
    "tuple": lambda two, folder: tuple(two),
    "generator": lambda two, folder: (atoms for atoms in two),
    "iread": lambda two, folder: ase.io.iread(_written(two, folder, "two.xyz")),
    "trajectory": lambda two, folder: ase.io.Trajectory(_written(two, folder, "two.traj")),
    "rows": lambda two, folder: ase.db.connect(_written(two, folder, "two.db")).select(),
    "path": lambda two, folder: _written(two, folder, "two.xyz"),
    "files": lambda two, folder: [
        str(_written(two[:1], folder, "one.xyz")),
        _written(two[1:], folder, "other.xyz"),
    ],
    "index": lambda two, folder: f"{_written([*two, two[0]], folder, 'three.xyz')}@:2",
    "structures": lambda two, folder: [eqfuse.data.of_atoms(atoms) for atoms in two],
}
ONE = {
    "atoms": lambda one, folder: one,
    "structure": lambda one, folder: eqfuse.data.of_atoms(one),
}


def _of_dynamics(run, given, folder):
    settings = {"steps": 1, "temperature": 0, "frames": "all", "run": str(folder / "md")}
    last = md.run(run, given, **settings)
    if isinstance(last, ase.Atoms):
        return last.get_potential_energy()
    return [atoms.get_potential_energy() for atoms in last]


# each returns numbers of a structure, or a list of them, in the form of the function's own results
FUNCTIONS = {
    "predict": lambda run, given, _: [p.energy for p in eqfuse.predict(run, given)],
    "relax": lambda run, given, _: [o.first_energy for o in md.relax(run, given, steps=1)],
    "run": _of_dynamics,
    "descriptors": lambda run, given, _: eqfuse.descriptors(run, given),
    "hessian": lambda run, given, _: eqfuse.hessian(run, given),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_every_form(name, trained, two, tmp_path):
    call = FUNCTIONS[name]
    expected = [call(trained, atoms, tmp_path / f"{k}") for k, atoms in enumerate(two)]
    in_list = isinstance(expected[0], list)
    assert not np.allclose(*expected)
    for form, make in (SEVERAL | ONE).items():
        (folder := tmp_path / form).mkdir()
        given = make(two if form in SEVERAL else two[0], folder)
        found = call(trained, given, folder)
        if hasattr(given, "close"):
            given.close()
        if form in SEVERAL:
            wanted = [e[0] for e in expected] if in_list else expected
            assert len(found) == 2, form
        else:
            wanted = expected[0]
            assert isinstance(found, list) == in_list, form
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=form)
    for wrong in ([], {"a": two[0]}, [two], 3):
        with pytest.raises((DataError, TypeError), match=r"structures"):
            call(trained, wrong, tmp_path)
    with pytest.raises(TypeError, match=r"(a network|run) must be"):
        call(3, two[0], tmp_path)


@pytest.mark.parametrize(
    ("index", "expected"),
    [("0", [0]), ("-1", [3]), ("2", [2]), (":", [0, 1, 2, 3]), ("1::2", [1, 3]), ("-2:", [2, 3])],
)
def test_an_index_chooses_frames_and_keeps_their_numbers(index, expected, tmp_path):
    file = tmp_path / "four.xyz"
    ase.io.write(file, [ase.Atoms("H", [(float(k), 0, 0)]) for k in range(4)])
    for given in (file, tmp_path / "at@four.xyz"):
        if given != file:
            file.rename(given)
        read = eqfuse.data.read_structures(f"{given}@{index}", require_labels=False)
        assert [s.positions[0, 0] for s in read] == expected
        assert [s.origin for s in read] == [f"{given}, frame {k}" for k in expected]
    assert indexed(given) == (given, slice(None))
    for wrong in ("x", "", "1:2:0", "1:2:3:4", ":x", "natoms>2"):
        with pytest.raises(DataError, match="is no index of frames"):
            eqfuse.data.read_structures(f"{given}@{wrong}")
    with pytest.raises(DataError, match="has no frames"):
        eqfuse.data.read_structures(f"{given}@4")


def test_frames_of_a_fit_may_be_atoms(trained, copper):
    """Their labels are those that a file of them has."""
    frames = ase.io.read(copper, ":")
    of_file, of_atoms = fit(trained, copper, copper), fit(trained, iter(frames), (*frames,))
    assert of_atoms == of_file
    (trained / "uncertainty.npz").unlink()


def test_a_start_of_distillation_may_have_an_index(two, tmp_path):
    file = _written(two, tmp_path, "two.xyz")
    [start] = rounds.read_frames(f"{file}@1")
    np.testing.assert_allclose(start.cell.array, two[1].cell.array)


@pytest.fixture
def run(untrained):
    return untrained(numbers=(29,))


@pytest.fixture
def given():
    """Return a crystal with identifiers, columns, a label of another name, and results."""
    atoms = copper_cell(seed=1)
    atoms.info |= {"material_id": "demo-17", "note": "two words", "REF_energy": 2.0}
    atoms.arrays |= {"site": np.arange(4), "REF_forces": np.ones((4, 3))}
    atoms.set_tags([0, 0, 1, 1])
    labels = {"energy": 1.5, "forces": np.full((4, 3), 0.25), "stress": np.ones(6)}
    atoms.calc = SinglePointCalculator(atoms, **labels, dipole=np.arange(3.0), free_energy=1.5)
    return atoms


def _has_what_was_given(atoms, given):
    assert atoms.info["material_id"] == "demo-17"
    assert atoms.info["note"] == "two words"
    np.testing.assert_array_equal(atoms.arrays["site"], given.arrays["site"])
    np.testing.assert_array_equal(atoms.get_tags(), given.get_tags())


@pytest.mark.parametrize(
    ("name", "out", "written"),
    [("predict", "out.xyz", "out.xyz"), ("evaluate", "out=out", "out/predictions.xyz")],
)
def test_predictions_keep_what_the_file_has(
    name, out, written, run, given, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    given.set_constraint(FixAtoms([2]))
    given.info["reference_energy"] = 7.0
    ase.io.write("in.xyz", [given, given[:3]])
    expected, _ = eqfuse.predict(run, [given, given[:3]])
    printed = command(name, run, "in.xyz", out).out
    first, _ = ase.io.read(written, ":")
    _has_what_was_given(first, given)
    assert first.info["REF_energy"] == 2.0
    assert first.info["reference_energy"] == 1.5
    np.testing.assert_array_equal(first.arrays["reference_forces"], 0.25)
    [constraint] = first.constraints
    assert constraint.index.tolist() == [2]
    assert "constraints are kept" in printed
    np.testing.assert_allclose(first.calc.results["forces"], expected.forces, atol=1e-7)
    assert set(first.calc.results) == {"energy", "energies", "forces", "stress"}
    for name in ("dipole", "free_energy", "reference_energy"):
        assert f"{name} as input_{name}" in printed
    np.testing.assert_array_equal(first.info["input_dipole"], np.arange(3.0))
    assert first.info["input_reference_energy"] == 7.0


def test_what_moves_keeps_no_labels(run, given, tmp_path, capsys, command):
    """And a simulation that goes on has the frames of one without interruption."""
    given.info["step"] = 5
    ase.io.write(tmp_path / "in.xyz", given)
    how = {"temperature": 30, "save_every": 1}
    for name, steps in (("whole", 4), ("part", 2)):
        md.run(run, tmp_path / "in.xyz", steps=steps, run=str(tmp_path / name), **how)
    printed = capsys.readouterr().out
    assert "REF_energy, REF_forces of the start may be labels" in printed
    assert "step as input_step" in printed
    last = md.resume(tmp_path / "part", steps=4)
    texts = [(tmp_path / n / "trajectory.xyz").read_text() for n in ("whole", "part")]
    assert texts[0] == texts[1]
    command("relax", run, tmp_path / "in.xyz", tmp_path / "out.xyz")
    frames = ase.io.read(tmp_path / "part" / "trajectory.xyz", ":")
    for atoms in (*frames, last, ase.io.read(tmp_path / "out.xyz")):
        _has_what_was_given(atoms, given)
        assert not {*atoms.info, *atoms.arrays} & {"REF_energy", "REF_forces"}
        assert not np.allclose(atoms.calc.results["forces"], 0.25)
    assert [(a.info["step"], a.info["input_step"]) for a in frames] == [(k, 5) for k in range(5)]
    assert last.info["step"] == 4


def test_columns_of_matrices_and_texts_are_written(run, given, tmp_path, command):
    given.calc = None
    matrices = np.arange(36.0).reshape(4, 3, 3)
    with ase.db.connect(tmp_path / "in.db") as database:
        database.write(given, data={"tensors": matrices, "residues": ["A b", "", "C", "D"]})
    command("predict", run, tmp_path / "in.db", tmp_path / "predict.xyz")
    command("relax", run, tmp_path / "in.db", tmp_path / "relax.xyz", "fmax=9")
    md.run(run, tmp_path / "in.db", steps=1, run=str(tmp_path / "md"))
    for name in ("predict.xyz", "relax.xyz", "md/trajectory.xyz"):
        atoms = ase.io.read(tmp_path / name)
        np.testing.assert_array_equal(atoms.arrays["tensors"], matrices.reshape(4, 9))
        assert atoms.arrays["residues"].tolist() == ["A_b", "_", "C", "D"]


def test_molecules_keep_their_cell(run, tmp_path, command):
    """It is not read, and belongs to the user."""
    source, out = tmp_path / "in.xyz", tmp_path / "out.xyz"
    given = ase.Atoms("Cu2", [[0, 0, 0], [0, 0, 2.3]], cell=[8.0, 9.0, 10.0])
    ase.io.write(source, given)
    command("predict", run, source, out)
    command("md", run, source, "steps=1", f"run={tmp_path / 'md'}")
    command("md", f"resume={tmp_path / 'md'}", "steps=2")
    for file in (out, tmp_path / "md" / "trajectory.xyz"):
        for atoms in ase.io.read(file, ":"):
            np.testing.assert_array_equal(atoms.cell.array, given.cell.array)
            assert not atoms.pbc.any()


@pytest.mark.parametrize("suffix", [".cif", ".vasp", ".pdb", ".gen", ".cfg", ".xsf"])
@pytest.mark.parametrize("name", ["predict", "relax"])
def test_formats_without_results_are_refused(name, suffix, run, given, tmp_path, command):
    """Before anything is computed."""
    ase.io.write(tmp_path / "in.xyz", given)
    out = tmp_path / f"out{suffix}"
    error = command(name, run, tmp_path / "in.xyz", out, code=2).err
    assert "hold no energy" in error
    assert ".xyz, .traj, .db or .json" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("suffix", "dropped"), [(".traj", {"site"}), (".db", {"site", "note"}), (".json", {"site"})]
)
def test_what_a_format_drops_is_named(suffix, dropped, run, given, tmp_path, command):
    ase.io.write(tmp_path / "in.xyz", given)
    out = tmp_path / f"out{suffix}"
    error = command("predict", run, tmp_path / "in.xyz", out).err
    names = error.partition(" drops ")[2].partition(";")[0].split(", ")
    assert {"reference_forces", *dropped} <= {*names}
    read = ase.io.read(out)
    assert not {*names} & {*read.info, *read.arrays, *read.calc.results}


def test_what_extended_xyz_cannot_write_is_kept_as_text(given, tmp_path):
    """ASE leaves it out otherwise; its builders put such values there."""
    made, given.info["slab"] = ase.Atoms("H"), {"cell": np.eye(2)}
    assert keep(made, given[:1]) == {}
    ase.io.write(tmp_path / "out.xyz", made)
    assert "array([[1., 0.]" in ase.io.read(tmp_path / "out.xyz").info["slab"]
