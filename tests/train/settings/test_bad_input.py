import os

import numpy as np
import pytest

from eqfuse.ops._backend import has_gpu
from eqfuse.train import CheckpointError, load_run, read_metadata
from eqfuse.train.main import main
from eqfuse.train.run.checkpoint import Checkpoints, read_checkpoint
from eqfuse.train.run.files import RunFolder
from eqfuse.train.settings.options import parse, to_yaml
from eqfuse.train.step import Compiled


@pytest.fixture
def refused(tmp_path, tiny, capsys):
    """Trains on a file; gives the one line with which that was refused."""

    def run(path, *more):
        folder = tmp_path / "run"
        code = main(["data=extxyz", f"data.path={path}", f"run={folder}", *tiny, *more])
        error = capsys.readouterr().err
        assert code == 2
        assert not folder.exists()
        assert error.startswith("error: ")
        assert "Traceback" not in error
        assert len(error.splitlines()) == 1
        return error

    return run


@pytest.mark.parametrize(
    ("before", "after", "settings", "part"),
    [
        ("", "", ["data.path=none.xyz"], "no such file: "),
        ("", "", ["data.path=."], "is a folder; give a file or a pattern: "),
        ("\nO ", "\nQq", [], "frame 0: unknown element or property 'Qq'"),
        ("energy=", "energy=nan other=", [], "frame 0: energy has nan"),
        ("", "", ["data.val=0.01"], "data.val=1"),
        ("", "", ["data.val=20"], "training split is empty: data.val=20 leaves none of 20 frames"),
        ("", "", ["data.train=18"], "only 20"),
        ("", "", ["run=file/run"], "cannot be made"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_data_are_one_line(
    refused, water, tmp_path, monkeypatch, before, after, settings, part
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    text = water.read_text(encoding="utf-8")
    changed = tmp_path / "changed.xyz"
    changed.write_text(text.replace(before, after, 1) if before else text, encoding="utf-8")
    assert part in refused(changed, *settings)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("data.val", "check data.val_path"),
        ("data.test", "check data.test"),
        ("data.reference_energies", "give a file of isolated atoms, energies in eV"),
    ],
)
def test_a_missing_file_names_its_setting(water, tmp_path, capsys, setting, hint):
    settings = ["data=extxyz", f"data.path={water}", f"run={tmp_path / 'run'}"]
    assert main([*settings, f"{setting}={tmp_path / 'missing.xyz'}"]) == 2
    error = capsys.readouterr().err
    assert f"no such file: {tmp_path / 'missing.xyz'}; {hint}" in error
    assert setting in error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipes_and_devices(refused, water, tiny, tmp_path, capsys):
    """None of them is opened, which would wait for ever; a pattern passes them over."""
    tiny.remove("data.val=4")  # which does not go with data.val_path
    pipe = tmp_path / "pipe.xyz"
    os.mkfifo(pipe)
    for path, more in (
        (pipe, []),
        (water, [f"data.val_path={pipe}"]),
        (water, [f"data.reference_energies={pipe}"]),
    ):
        assert "pipe.xyz is a pipe and not a file" in refused(path, *more)
    assert "no file matches" in refused(tmp_path / "p*.xyz")
    assert "/dev/zero is a device and not a file" in refused("/dev/zero")
    assert main(["data=rmd17", "data.path=/dev/zero"]) == 2
    assert "/dev/zero is a device and not a file" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["cutoff=1e9", "cutoff=200"])
def test_too_many_pairs(refused, copper, setting):
    error = refused(copper, setting)
    assert f"{copper}, frame " in error
    assert " pairs within " in error
    assert "lower the cutoff" in error


def test_what_is_refused_late_leaves_no_folder_and_what_failed_leaves_a_free_one(
    water, tiny, tmp_path, monkeypatch, capsys
):
    settings = ["data=extxyz", f"data.path={water}", f"run={tmp_path / 'run'}", *tiny, "steps=1"]
    assert main([*settings, "freeze=embeding"]) == 2
    assert "freeze=embeding matches no parameter" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Compiled, "initial", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(settings)
    assert (tmp_path / "run" / "config.yaml").exists()
    assert main([*settings, "seed=1"]) == 0
    assert read_metadata(tmp_path / "run")["config"]["seed"] == 1
    capsys.readouterr()
    assert main(settings) == 2
    assert "exists already and is not overwritten; go on with it by" in capsys.readouterr().err


LONG = 300 * "x"


@pytest.mark.parametrize(
    "settings",
    [
        ["data=ethanol", f"run={LONG}"],
        ["data=ethanol", f"start_from={LONG}"],
        ["data=ethanol", f"data.reference_energies={LONG}"],
        ["data=extxyz", f"data.path={LONG}"],
        ["data=3bpa", f"data.folder={LONG}"],
        [f"resume={LONG}"],
    ],
    ids=lambda settings: settings[-1][:16],
)
def test_a_name_that_is_too_long(tmp_path, monkeypatch, capsys, settings):
    monkeypatch.chdir(tmp_path)
    assert main(settings) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert LONG in error
    assert "File name too long" in error
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "start_from",
        "resume",
        "data.path",
        "data.val_path",
        "data.energy_key",
        "data.reference_energies",
    ],
)
def test_a_nul_character_in_a_name(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    others = [] if name == "resume" else ["data=extxyz", "data.path=x.xyz"]
    assert main([*others, f"{name}=a\0b"]) == 2
    assert capsys.readouterr().err == (
        f"error: {name}='a\\x00b' is impossible: it must be without NUL characters\n"
    )
    with pytest.raises(CheckpointError, match="NUL character"):
        load_run("a\0b")


def test_a_resume_that_names_nothing(capsys):
    assert main(["resume="]) == 2
    assert "resume= is impossible: it must be the folder of a run" in capsys.readouterr().err


def test_a_cutoff_that_is_too_small(refused, water):
    error = refused(water, "cutoff=1e-9")
    assert "the cutoff must be a positive number of Å, above 1e-06, got 1e-09" in error


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("layers: 1", "layers: 1.0", "model.layers=1.0 is impossible: it must be a whole number"),
        ("channels: 2", "channels: 2.5", "model.channels=2.5 is impossible"),
        ("batch_size: 4", "batch_size: four", "data.batch_size=four is impossible"),
        ("epochs: null", "epochs: six", "epochs=six is impossible: it must be a whole number or"),
        ("epochs: null", "epochs: -6", "epochs=-6 is impossible"),
        ("epochs: null", "epochs: [6]", "epochs=[6] is impossible"),
        ("epochs: null", "epoch: 6", "epoch is not a setting of this run; nearest: epochs"),
        ("lr: 0.01", "lr: fast", "training.lr=fast is impossible: it must be a number"),
        ("run: null", "run: [", "cannot be read"),
        ("run: null", 'run: "a\\0b"', "without NUL characters"),
        ("name: nequip", "name: nequib", "model=nequib is unknown; nearest: nequip"),
        ("name: nequip", "name: [1]", "model=[1] is unknown"),
    ],
)
def test_a_config_that_was_edited_by_hand(tmp_path, tiny, capsys, before, after, message):
    """It is checked as what is typed is."""
    text = to_yaml(parse(["data=ethanol", *tiny]))
    assert before in text
    (tmp_path / "config.yaml").write_text(text.replace(before, after, 1), encoding="utf-8")
    for setting in (f"resume={tmp_path}", f"start_from={tmp_path}"):
        assert main([setting] if "resume" in setting else [setting, "data=ethanol"]) == 2
        [error] = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {tmp_path / 'config.yaml'}")
        assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("name", ["sweep[1]", "a[64,32]b/run", "back\\slash"])
def test_a_run_folder_may_have_any_name(tmp_path, name):
    folder = RunFolder(tmp_path / name, "seed: 0\n")
    folder.close()
    metadata = {"config": {}, "model": "nequip", "model_fields": {}, "potential": {}}
    checkpoints = Checkpoints(folder.checkpoints, metadata)
    checkpoints.offer("last", 3, lambda: {"w": np.zeros(3)}, {"epoch": 1})
    assert read_checkpoint(tmp_path / name, ("last",))[1]["epoch"] == 1


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder(None, "seed: 0\n") for _ in range(3)]
    for folder in folders:
        folder.close()
        assert (folder.path / "config.yaml").exists()
    assert len({folder.path for folder in folders}) == 3


def test_unknown_and_unavailable_backends(tmp_path, capsys):
    assert main(["data=ethanol", "backend=trito", f"run={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "trito" in error
    assert "e3nn" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(has_gpu(), reason="it runs here")
def test_a_backend_for_another_device_is_refused_before_anything_is_made(tmp_path, capsys):
    pytest.importorskip("triton", reason="else that is what is missing")
    assert main(["data=ethanol", "backend=triton", f"run={tmp_path / 'run'}"]) == 2
    assert "JAX has no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
