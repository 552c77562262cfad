"""A run that was interrupted, by SIGKILL too, damaged or made longer ends like a whole one."""

import fcntl
import functools
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import TrainingFailed
from eqfuse.runs.files import RunFolder
from eqfuse.train import molecule, read_metadata
from eqfuse.train.loop import Fit
from eqfuse.train.main import main
from eqfuse.train.start import kept_references
from tests.child import ROOT, start_python
from tests.small_runs import TINY, refused, rows_of

EPOCHS = 4
CONSTANT = ["training.schedule=constant"]  # which does not depend on where the end is
SECOND = ["training.second_stage=0.5", "training.second_energy_weight=300", "epochs=6"]
WSD = ["training.second_stage=0.75", "training.schedule=wsd", "model.radial=table"]
KINDS = {
    "plain": [f"epochs={EPOCHS}"],
    "steps": [*CONSTANT, "training.checkpoint_seconds=10", "steps=10"],
    "every": [*CONSTANT, "training.validate_every=3", "steps=10"],
    "second stage": [*SECOND, "dtype=float64"],
    "wsd": [*WSD, f"epochs={EPOCHS}"],
}
"""Runs of four steps an epoch."""


@pytest.fixture(scope="module")
def settings(water):
    return [f"data={water}", *TINY, "training.checkpoint_seconds=0"]


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """Return a function of a kind: the folder of a run that nothing interrupted."""

    @functools.cache
    def finished(kind):
        folder = tmp_path_factory.mktemp("runs") / kind.replace(" ", "-")
        assert main([*settings, *KINDS[kind], f"run={folder}"]) == 0
        return folder

    return finished


@pytest.fixture
def whole(finished, tmp_path):
    """Return a copy of the plain one."""
    return Path(shutil.copytree(finished("plain"), tmp_path / "whole"))


def history(folder):
    times = ("ms_per_step", "elapsed_s")
    return [{k: v for k, v in row.items() if k not in times} for row in rows_of(folder)]


def assert_same(first, second):
    assert history(first) == history(second)
    for name in ("best", "last"):
        ends = [read_checkpoint(folder, (name,)) for folder in (first, second)]
        jax.tree.map(np.testing.assert_array_equal, *(params for params, *_ in ends))
        # The digest of the state covers parameters, optimiser, average and step, bit for bit.
        for key in ("arrays_sha256", "step", "epoch", "validation"):
            assert ends[0][1][key] == ends[1][1][key], (name, key)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_a_killed_run_ends_like_one_that_was_not(settings, whole, tmp_path, kills):
    def train(*arguments):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return start_python(ROOT / "train.py", *arguments, **quiet)

    folder = tmp_path / "killed"
    rng = np.random.default_rng(time.time_ns())  # other moments in every run of the test
    process = train(*settings, *KINDS["plain"], f"run={folder}")
    for _ in range(kills):
        while process.poll() is None and not (folder / "checkpoints").exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = train(f"resume={folder}")
    assert process.wait() == 0
    assert_same(whole, folder)


@pytest.mark.parametrize(
    ("kind", "at_step", "signum"),
    [
        ("plain", 6, None),
        ("plain", 3, signal.SIGUSR1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("plain", 8, signal.SIGTERM),
                *(("every", step, None) for step in (4, 5, 6)),  # around an epoch and a validation
                ("second stage", 18, signal.SIGUSR1),
            )
        ),
    ],
)
def test_an_interrupted_run_ends_like_one_that_was_not(
    settings, finished, tmp_path, monkeypatch, capsys, kind, at_step, signum
):
    """By an exception as Ctrl-C raises it, or by a signal, at which a checkpoint is written."""
    folder, keep, sent = tmp_path / "interrupted", Fit._keep, []

    def interrupt(self, state, *rest):
        keep(self, state, *rest)
        if int(state.step) == at_step and not sent:  # once: a second signal stops at once
            sent.append(at_step)
            if not signum:
                raise KeyboardInterrupt
            os.kill(os.getpid(), signum)

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_keep", interrupt)
        assert main([*settings, *KINDS[kind], f"run={folder}"]) == 128 + (signum or signal.SIGINT)
    if signum:
        assert f"step {at_step}; the checkpoint is in" in capsys.readouterr().err
        assert read_metadata(folder, which="last")["step"] == at_step
    assert main([f"resume={folder}"]) == 0
    assert_same(finished(kind), folder)


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_again(whole, tmp_path, capsys):
    folder = tmp_path / "early"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.safetensors.part").write_bytes(b"begun")
    shutil.copy(whole / "config.yaml", folder)
    assert main([f"resume={folder}"]) == 0
    assert "from the beginning" in capsys.readouterr().out
    assert_same(whole, folder)
    shutil.rmtree(folder / "checkpoints")
    assert main([f"resume={folder}"]) == 1, "with metrics but no checkpoint something is lost"
    assert "no checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "shorter", "length"),
    [
        ("wsd", "epochs=3", f"epochs={EPOCHS}"),
        pytest.param("steps", "steps=6", "steps=10", marks=pytest.mark.slow),  # within an epoch
        pytest.param("every", "steps=8", "steps=10", marks=pytest.mark.slow),  # forgets a line
    ],
)
def test_a_run_that_is_made_longer_is_as_if_it_had_been_so_long(
    settings, finished, tmp_path, capsys, kind, shorter, length
):
    folder = tmp_path / "longer"
    assert main([*settings, *KINDS[kind][:-1], shorter, f"run={folder}"]) == 0
    assert main([f"resume={folder}", length]) == 0
    said = capsys.readouterr()
    falls = "epoch 3, batch 1 of the epoch, where the learning rate began to fall" in said.out
    assert falls == (kind == "wsd")
    assert "longer" not in said.err
    assert_same(finished(kind), folder)


def test_a_longer_run_whose_learning_rate_rises_is_a_warning(whole, capsys):
    assert main([f"resume={whole}", "epochs=2"]) == 0
    out = capsys.readouterr().out
    assert "has done 16 steps, 4 epochs, and was asked for 8 steps; more epochs=" in out
    assert main([f"resume={whole}", f"epochs={EPOCHS + 2}"]) == 0
    assert len(history(whole)) == EPOCHS + 2
    warning = capsys.readouterr().err
    assert "learning rate rises from 3.4e-06 to 8.5e-04" in warning
    assert f"start_from={whole}" in warning
    assert main([f"resume={whole}"]) == 0  # as long as it was made
    said = capsys.readouterr()
    assert "learning rate rises" not in said.err
    assert "has done 24 steps, 6 epochs, and was asked for 24 steps" in said.out


@pytest.mark.slow
def test_validation_every_third_step(finished):
    rows = history(finished("every"))
    steps = [("1", "3"), ("2", "6"), ("3", "9"), ("3", "10")]
    assert [(row["epoch"], row["step"]) for row in rows] == steps
    best = min(rows, key=lambda row: float(row["val_loss"]))
    assert str(read_checkpoint(finished("every"), ("best",))[1]["step"]) == best["step"]


@pytest.mark.slow
def test_the_best_of_a_run_that_ended_within_an_epoch_stays(settings, tmp_path):
    """It is written when the limit ends the epoch, and what comes later must be better."""
    folder = tmp_path / "run"
    settings = [*settings, *CONSTANT, "training.warmup_steps=1"]
    assert main([*settings, "steps=6", "lr=0.001", f"run={folder}"]) == 0
    losses = [float(row["val_loss"]) for row in history(folder)]
    assert losses[1] < losses[0], "the test needs the broken epoch to be the best"
    assert read_checkpoint(folder, ("best",))[1]["step"] == 6
    assert read_checkpoint(folder, ("last",))[1]["position"]["best"] == losses[1]


@pytest.fixture
def logged(tmp_path):
    """Return the folder of a run, open to write, and a row of its log, which has two."""
    folder = RunFolder(tmp_path / "run", "seed: 0\n")
    row = dict.fromkeys(("epoch", "step", "val_loss"), 0.0)
    for epoch in (1, 2):
        folder.log(row | {"epoch": epoch, "step": 4 * epoch})
    yield folder, row
    folder.close()


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        (b"\n1,", b"\n1.5,", ["2"]),
        (b"\n1,", b"\none,", ["2"]),
        (b"\n1,", b"\n1,2,", ["2"]),
        (b"\n1,", b"\n\xff\xfe1,", ["2"]),
        (b"epoch,", b"epoch;", []),
        # cut off
        (b"\n2,8,0.0\r\n", b"\n2,8,0.0\r\n3,12", ["1", "2"]),
        (b"\n2,8,0.0\r\n", b"\n2,8,0.0", ["1", "2"]),
        (b"\n2,8,0.0\r\n", b"\n2,8,0.0\r", ["1", "2"]),
    ],
)
def test_damaged_lines_of_a_log_are_left_out(logged, before, after, kept):
    folder, row = logged
    content = folder.metrics.read_bytes()
    assert before in content
    folder.metrics.write_bytes(content.replace(before, after))
    folder.forget_after(8)
    folder.log(row | {"epoch": 3, "step": 12})
    assert [line["epoch"] for line in rows_of(folder.path)] == [*kept, "3"]


def test_a_folder_in_place_of_the_log_ends_the_run_with_a_line(logged):
    folder, _ = logged
    folder.metrics.unlink()
    folder.metrics.mkdir()
    with pytest.raises(TrainingFailed, match="cannot be written: Is a directory"):
        folder.forget_after(8)


def test_ctrl_c_twice_stops_at_once(settings, tmp_path, monkeypatch, capsys):
    """What waits is written; no picture is drawn."""

    def stopped(self, resume):
        raise KeyboardInterrupt

    monkeypatch.setattr(Fit, "run", stopped)
    monkeypatch.setattr(molecule, "write_results", lambda *_, **__: pytest.fail("it was drawn"))
    assert main([*settings, f"run={tmp_path / 'run'}"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def test_resume_of_bad_run_is_refused(whole, water, tmp_path, capsys):
    resume = [f"resume={whole}"]
    locked = shutil.copytree(whole, tmp_path / "locked")
    (locked / ".lock").unlink()
    (locked / ".lock").mkdir()  # cannot be opened, as in a folder that is read-only
    assert "cannot be written to" in refused([f"resume={locked}"], capsys)
    assert f"resume={whole}" in refused([f"data={water}", f"run={whole}"], capsys)
    with open(whole / ".lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "another process trains" in refused([*resume, "epochs=20"], capsys)
    original = water.read_bytes()
    try:
        water.write_bytes(original.replace(b" 0.", b" 1.", 1))
        assert "is not as it was" in refused(resume, capsys)
    finally:
        water.write_bytes(original)
    config = whole / "config.yaml"
    text = config.read_text(encoding="utf-8").replace("channels: 2", "channels: 3")
    config.write_text(text, encoding="utf-8")
    assert "channels (2 there, 3 here)" in refused(resume, capsys)


def test_references_of_the_run_are_kept(finished, tmp_path):
    folder = finished("plain")
    kept = {int(z): e for z, e in read_metadata(folder)["reference_energies"].items()}
    assert kept_references(folder, kept) == kept
    assert kept_references(folder, [*kept, 99]) is None
    assert kept_references(tmp_path / "none", kept) is None
