"""What commands do with what they do not use, and with formats that do not hold their results."""

import ase.build
import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

import eqfuse
from eqfuse import md
from eqfuse.cli import main as eqfuse_command
from eqfuse.data.readers.ase_files import keep
from eqfuse.inference.evaluate import main as evaluate
from eqfuse.md.command import relax_main
from tests.lammps.untrained import untrained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("untrained"), numbers=(29,))


@pytest.fixture
def given():
    """Return a crystal with identifiers, columns, a label of another name, and results."""
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=1)
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


def _predicted(run, file, folder):
    assert eqfuse_command(["predict", str(run), str(file), str(folder / "out.xyz")]) == 0
    return folder / "out.xyz"


def _evaluated(run, file, folder):
    assert evaluate([str(run), str(file), f"out={folder / 'out'}"]) == 0
    return folder / "out" / "predictions.xyz"


@pytest.mark.parametrize("command", [_predicted, _evaluated])
def test_predictions_keep_what_the_file_has(command, run, given, tmp_path, capsys):
    given.set_constraint(FixAtoms([2]))
    given.info["reference_energy"] = 7.0
    ase.io.write(tmp_path / "in.xyz", [given, given[:3]])
    file, [expected, _] = tmp_path / "in.xyz", eqfuse.predict(run, [given, given[:3]])
    first, _ = ase.io.read(command(run, file, tmp_path), ":")
    printed = capsys.readouterr().out
    _has_what_was_given(first, given)
    assert first.info["REF_energy"] == 2.0
    assert first.info["reference_energy"] == 1.5
    [constraint] = first.constraints
    assert constraint.index.tolist() == [2]
    assert "constraints are kept" in printed
    np.testing.assert_allclose(first.calc.results["forces"], expected.forces, atol=1e-7)
    assert set(first.calc.results) == {"energy", "energies", "forces", "stress"}
    for name in ("dipole", "free_energy", "reference_energy"):
        assert f"{name} as input_{name}" in printed
    np.testing.assert_array_equal(first.info["input_dipole"], np.arange(3.0))
    assert first.info["input_reference_energy"] == 7.0


def test_what_moves_keeps_no_labels(run, given, tmp_path, capsys):
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
    assert relax_main([str(run), str(tmp_path / "in.xyz"), str(tmp_path / "out.xyz")]) == 0
    frames = ase.io.read(tmp_path / "part" / "trajectory.xyz", ":")
    for atoms in (*frames, last, ase.io.read(tmp_path / "out.xyz")):
        _has_what_was_given(atoms, given)
        assert not {*atoms.info, *atoms.arrays} & {"REF_energy", "REF_forces"}
        assert not np.allclose(atoms.calc.results["forces"], 0.25)
    assert [(a.info["step"], a.info["input_step"]) for a in frames] == [(k, 5) for k in range(5)]
    assert last.info["step"] == 4


@pytest.mark.parametrize("suffix", [".cif", ".vasp", ".pdb", ".gen", ".cfg", ".xsf"])
def test_formats_without_results_are_refused(suffix, given, tmp_path, capsys):
    """Before anything is computed."""
    ase.io.write(tmp_path / "in.xyz", given)
    out, run = tmp_path / f"out{suffix}", untrained_run(tmp_path, numbers=(29,))
    arguments = [str(run), str(tmp_path / "in.xyz"), str(out)]
    for command in (lambda given: eqfuse_command(["predict", *given]), relax_main):
        assert command(arguments) == 2
        error = capsys.readouterr().err
        assert "hold no energy" in error
        assert ".xyz, .traj, .db or .json" in error
        assert not out.exists()


@pytest.mark.parametrize(
    ("suffix", "dropped"), [(".traj", {"site"}), (".db", {"site", "note"}), (".json", {"site"})]
)
def test_what_a_format_drops_is_named(suffix, dropped, run, given, tmp_path, capsys):
    ase.io.write(tmp_path / "in.xyz", given)
    out = tmp_path / f"out{suffix}"
    assert eqfuse_command(["predict", str(run), str(tmp_path / "in.xyz"), str(out)]) == 0
    error = capsys.readouterr().err
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
