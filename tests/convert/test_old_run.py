"""`eqfuse convert run OLD NEW`, on a run of a version whose checkpoints were written by orbax."""

import csv
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from eqfuse.convert.command import main as convert
from eqfuse.train import CheckpointError, load_run
from eqfuse.train.main import main
from eqfuse.train.run.files import read_file

GOLDEN = Path(__file__).parent / "goldens" / "orbax_run.tar.xz"
# What that version printed of the third epoch, on a CPU.
THIRD = {"train_loss": 1.3977294564247131, "val_loss": 0.9955127998216545, "lr": 0.0014}


@pytest.fixture
def old(tmp_path):
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "orbax_run"


@pytest.fixture
def new(old):
    pytest.importorskip("orbax.checkpoint")
    return old.with_name("new")


def test_an_old_run_is_converted_and_goes_on_where_it_was(old, new, capsys):
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert convert(["run", str(old), str(new)]) == 0
    assert "with the checkpoints best and last" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    _, params, metadata = load_run(new, which="last")
    assert (metadata["step"], metadata["epoch"], metadata["species"]) == (4, 2, [1, 6, 8])
    # parameters of the optimizer's array, which was written beside them
    arrays, _ = read_file(new / "checkpoints" / "last.safetensors")
    embedding = np.asarray(params["params"]["model"]["embedding"]).ravel()
    places = range(len(arrays["state/average"]))
    assert any((arrays["state/average"][k : k + 6] == embedding).all() for k in places)
    assert main([f"resume={new}", "epochs=3"]) == 0
    with open(new / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert {n: float(rows[-1][n]) for n in THIRD} == pytest.approx(THIRD, rel=1e-5)


def test_every_use_of_an_old_run_names_the_command(old, tmp_path, capsys):
    message = f"`eqfuse convert run {old} NEW` writes"
    with pytest.raises(CheckpointError, match="was written by an earlier version") as caught:
        load_run(old)
    assert message in str(caught.value)
    for arguments in ([f"resume={old}"], [f"start_from={old}", "data=ethanol"]):
        assert main([*arguments, f"run={tmp_path / 'run'}"][: len(arguments)]) == 1
        [error] = capsys.readouterr().err.splitlines()
        assert message in error


def in_a_process(old, new):
    """Convert in a process of its own.

    Orbax leaves threads behind where it reads a damaged checkpoint, and these use an event loop
    that it has closed.
    """
    command = [sys.executable, "-m", "eqfuse.cli", "convert", "run", old, new]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_older_checkpoint_is_converted_where_the_newer_is_damaged(old, new):
    last = old / "checkpoints" / "last"
    shutil.copytree(last / "7", last / "8")
    (last / "8" / "state" / "manifest.ocdbt").write_bytes(b"")
    assert in_a_process(old, new).returncode == 0
    assert load_run(new, which="last")[2]["step"] == 4
    shutil.rmtree(new)
    shutil.rmtree(last / "7")
    done = in_a_process(old, new)
    assert done.returncode == 2
    assert "are damaged" in done.stderr
    assert not new.exists()


def test_what_cannot_be_converted_is_refused(old, new, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([old, old], "exists already and is not overwritten"),
        ([tmp_path / "empty", new], "holds no run of an earlier version"),
    ):
        assert convert(["run", *map(str, arguments)]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    assert convert(["run", str(old), str(new)]) == 2
    assert "pip install orbax-checkpoint" in capsys.readouterr().err
    assert not new.exists()
