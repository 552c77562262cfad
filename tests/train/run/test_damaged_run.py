"""A run whose files a crash or a hand has damaged goes on, and says what it lost."""

import shutil
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_a_run_with_one_last_checkpoint_goes_on(three_epochs, folder, capsys):
    """As one that was stopped early, or converted, has it."""
    (folder / "checkpoints" / "previous.safetensors").unlink()
    assert main([f"resume={folder}", "epochs=3"]) == 0
    assert capsys.readouterr().err == ""
    assert_same(three_epochs, folder)


def to_folder(path):
    path.unlink()
    path.mkdir()
    (path / "mine").touch()


def changed(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (changed(lambda text: text.partition(b"\n")[2]), "first line"),
        (changed(lambda text: text.replace(b"\n1,", b"\n1.0,")), "line 2 is not one of numbers"),
        (changed(lambda text: text.replace(b"\n1,", b"\none,")), "line 2 is not one of numbers"),
        (changed(lambda text: text.replace(b",", b";", 40)), "first line"),
        (changed(lambda text: text.replace(b"\n1,", b"\n1,2,")), "line 2 is not"),
        (changed(lambda text: text + b"\xff\xfe"), "is no text"),
        (changed(lambda text: text.replace(b"val_loss", b"loss")), "its columns are not those"),
        (to_folder, "it is no file"),
    ],
    ids=["header", "float", "word", "semicolons", "long", "bytes", "columns", "folder"],
)
def test_a_damaged_log_is_set_aside(folder, capsys, damage, said):
    """Nothing that was set aside before is overwritten."""
    row = dict.fromkeys(history(folder)[0], 0.0) | {"epoch": 3, "ms_per_step": 1, "elapsed_s": 1}
    log = folder / "metrics.csv"
    original = log.read_bytes()
    for kept in ("metrics.csv.damaged", "metrics.csv.damaged.2"):
        log.unlink()
        log.write_bytes(original)
        damage(log)
        before = None if log.is_dir() else log.read_bytes()
        opened = RunFolder(folder, None)
        opened.forget_after(8)
        opened.log(row)
        opened.close()
        [warning] = capsys.readouterr().err.splitlines()
        assert warning.startswith(f"warning: {log} is damaged (")
        assert said in warning
        assert f"it is now {kept}" in warning
        if before is None:
            assert (folder / kept / "mine").exists()
        else:
            assert (folder / kept).read_bytes() == before
        assert [line["epoch"] for line in history(folder)] == ["3"]


@pytest.mark.parametrize("end", [b"3,12,0.0", b"", b"\r", bytes(512)])
def test_a_log_that_was_cut_off_is_not_damaged(folder, capsys, end):
    log = folder / "metrics.csv"
    opened = RunFolder(folder, None)
    rows, text = history(folder), log.read_bytes()
    log.write_bytes(text + end if len(end) > 1 else text.removesuffix(b"\r\n") + end)
    opened.forget_after(8)
    opened.close()
    assert capsys.readouterr().err == ""
    assert history(folder) == rows


@pytest.mark.parametrize("end", [b"", b"\n", b"\n2,8,"])
def test_a_log_that_lost_lines_of_finished_epochs_says_so(folder, capsys, end):
    """A killed run loses only the line of an epoch that it trains again."""
    log = folder / "metrics.csv"
    log.write_bytes(log.read_bytes().rpartition(b"\n2,")[0] + end)
    opened = RunFolder(folder, None)
    opened.forget_after(8)
    opened.close()
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {log} was cut off: it has no line of what was ")
    assert "validated after step 4 and up to step 8;" in warning
    assert [line["epoch"] for line in history(folder)] == ["1"]


@pytest.mark.slow
def test_a_run_with_a_damaged_log_goes_on(three_epochs, folder, capsys):
    log = folder / "metrics.csv"
    log.write_bytes(b"\xff" + log.read_bytes())
    assert main([f"resume={folder}", "epochs=3"]) == 0
    [warning] = capsys.readouterr().err.splitlines()
    assert warning.endswith("it is now metrics.csv.damaged, and a new one begins here")
    assert history(folder) == history(three_epochs)[2:]
