"""A run whose files a crash or a hand has damaged goes on, and says what it lost."""

import shutil
from pathlib import Path

import pytest

from eqfuse.train import TrainingFailed
from eqfuse.train.main import main
from eqfuse.train.run.files import RunFolder
from tests.small_runs import TINY
from tests.train.run.test_resume import assert_same, history

# A learning rate that does not depend on where the end is.
SETTINGS = [*TINY, "training.schedule=constant", "training.checkpoint_seconds=0"]


@pytest.fixture(scope="module")
def two_epochs(water, tmp_path_factory):
    """Return the folder of a run after two epochs."""
    return trained(water, tmp_path_factory, 2)


@pytest.fixture(scope="module")
def three_epochs(water, tmp_path_factory):
    """Return that of the same run after three."""
    return trained(water, tmp_path_factory, 3)


def trained(water, tmp_path_factory, epochs: int) -> Path:
    folder = tmp_path_factory.mktemp("runs") / str(epochs)
    data = ["data=extxyz", f"data.path={water}", f"epochs={epochs}"]
    assert main([*data, *SETTINGS, f"run={folder}"]) == 0
    return folder


@pytest.fixture
def folder(two_epochs, tmp_path):
    return Path(shutil.copytree(two_epochs, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["zeros", "gone"])
def test_a_run_goes_on_from_the_older_checkpoint(three_epochs, folder, damage, capsys):
    """As a power loss leaves the newer one; the damaged one is kept, and does not count."""
    newer = folder / "checkpoints" / "last.safetensors"
    if damage == "gone":
        newer.unlink()
    else:
        newer.write_bytes(bytes(newer.stat().st_size))
    assert main([f"resume={folder}", "epochs=3"]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    kind = "missing" if damage == "gone" else "damaged"
    assert warnings[0].startswith(f"warning: checkpoint {newer} is {kind}")
    older = newer.with_name("previous.safetensors")
    assert f"the one before it, {older}, is taken" in warnings[0]
    assert newer.with_name("last.safetensors.damaged").exists() == (damage == "zeros")
    assert newer.exists()
    assert older.exists()
    assert_same(three_epochs, folder)


@pytest.mark.parametrize(
    ("before", "after", "kept", "damaged"),
    [
        (b"\n1,", b"\n1.0,", ["2"], 1),
        (b"\n1,", b"\none,", ["2"], 1),
        (b"\n1,", b"\n1,2,", ["2"], 1),
        (b"\n1,", b"\n\xff\xfe1,", ["2"], 1),
        (b"epoch,", b"epoch;", [], 2),
    ],
    ids=["float", "word", "long", "bytes", "header"],
)
def test_damaged_lines_of_a_log_are_left_out(folder, capsys, before, after, kept, damaged):
    row = dict.fromkeys(history(folder)[0], 0.0) | {"epoch": 3, "ms_per_step": 1, "elapsed_s": 1}
    log = folder / "metrics.csv"
    log.write_bytes(log.read_bytes().replace(before, after))
    opened = RunFolder(folder, None)
    opened.forget_after(8)
    opened.log(row)
    opened.close()
    assert capsys.readouterr().err == f"warning: {log} has {damaged} damaged lines\n"
    assert [line["epoch"] for line in history(folder)] == [*kept, "3"]


def test_a_folder_in_place_of_the_log_ends_the_run_with_a_line(folder):
    (folder / "metrics.csv").unlink()
    (folder / "metrics.csv").mkdir()
    opened = RunFolder(folder, None)
    with pytest.raises(TrainingFailed, match="cannot be written: Is a directory"):
        opened.forget_after(8)
    opened.close()


@pytest.mark.parametrize("end", [b"3,12,0.0", b"", b"\r"])
def test_a_log_that_was_cut_off_is_not_damaged(folder, capsys, end):
    log = folder / "metrics.csv"
    opened = RunFolder(folder, None)
    rows, text = history(folder), log.read_bytes()
    log.write_bytes(text + end if len(end) > 1 else text.removesuffix(b"\r\n") + end)
    opened.forget_after(8)
    opened.close()
    assert capsys.readouterr().err == ""
    assert history(folder) == rows
