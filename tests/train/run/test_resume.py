"""A run that was interrupted, by SIGKILL too, ends like one that never was."""

import csv
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from eqfuse.train import molecule, read_metadata
from eqfuse.train.loop import Fit
from eqfuse.train.main import main
from eqfuse.train.run.checkpoint import read_checkpoint
from eqfuse.train.run.resume import check_same_run
from eqfuse.train.settings.options import parse
from eqfuse.train.settings.schema import ConfigError
from eqfuse.train.start import kept_references
from tests.small_runs import TINY

ROOT = Path(__file__).parents[3]
EPOCHS = 4


@pytest.fixture
def settings(water, tiny):
    return ["data=extxyz", f"data.path={water}", *tiny, "training.checkpoint_seconds=0"]


@pytest.fixture(scope="module")
def finished(water, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    data = ["data=extxyz", f"data.path={water}", *TINY, "training.checkpoint_seconds=0"]
    assert main([*data, f"epochs={EPOCHS}", f"run={folder}"]) == 0
    return folder


@pytest.fixture
def whole(finished, tmp_path):
    """Folder of a run that nothing interrupted; a copy."""
    return Path(shutil.copytree(finished, tmp_path / "whole"))


def history(folder):
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("ms_per_step", "elapsed_s")} for row in rows]


def assert_same(first, second):
    assert history(first) == history(second)
    for name in ("best", "last"):
        (params, metadata, _), (others, other, _) = (
            read_checkpoint(folder, (name,)) for folder in (first, second)
        )
        jax.tree.map(np.testing.assert_array_equal, params, others)
        assert metadata["step"] == other["step"]
        # The digest of the state covers parameters, optimiser, average and step, bit for bit.
        assert metadata["arrays_sha256"] == other["arrays_sha256"]


def start(arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_run_ends_like_one_that_was_not(settings, whole, tmp_path, kills):
    folder = tmp_path / "killed"
    rng = np.random.default_rng(time.time_ns())  # other moments in every run of the test
    process = start([*settings, f"epochs={EPOCHS}", f"run={folder}"])
    for _ in range(kills):
        while process.poll() is None and not (folder / "checkpoints").exists():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = start([f"resume={folder}"])
    assert process.wait() == 0
    assert_same(whole, folder)


@pytest.mark.parametrize("at_step", [6, pytest.param(8, marks=pytest.mark.slow)])
def test_an_interrupted_run_ends_like_one_that_was_not(
    settings, whole, tmp_path, monkeypatch, at_step
):
    from eqfuse.train import loop

    folder, calls = tmp_path / "interrupted", []
    keep = loop.Fit._keep

    def interrupt(self, state, *rest):
        keep(self, state, *rest)
        calls.append(int(state.step))
        if calls[-1] == at_step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.Fit, "_keep", interrupt)
        assert main([*settings, f"epochs={EPOCHS}", f"run={folder}"]) == 130
    assert main([f"resume={folder}"]) == 0
    assert_same(whole, folder)


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


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(settings, whole, capsys):
    assert main([f"resume={whole}", "epochs=2"]) == 0
    out = capsys.readouterr().out
    assert "has done 16 steps, 4 epochs, and was asked for 8 steps; more epochs=" in out
    assert "all steps done" in out
    assert main([f"resume={whole}", f"epochs={EPOCHS + 1}"]) == 0
    assert len(history(whole)) == EPOCHS + 1


def test_a_run_that_is_made_longer_with_wsd_is_as_if_it_had_been_so_long(
    settings, tmp_path, capsys
):
    stages = ["training.second_stage=0.75", "training.schedule=wsd"]
    for name, epochs in (("whole", 4), ("longer", 3)):
        assert main([*settings, *stages, f"epochs={epochs}", f"run={tmp_path / name}"]) == 0
    assert main([f"resume={tmp_path / 'longer'}", "epochs=4"]) == 0
    said = capsys.readouterr()
    assert "epoch 3, batch 1 of the epoch, where the learning rate began to fall" in said.out
    assert "longer" not in said.err
    assert_same(tmp_path / "whole", tmp_path / "longer")


def test_a_longer_run_whose_learning_rate_rises_is_a_warning(whole, capsys):
    assert main([f"resume={whole}", f"epochs={EPOCHS + 2}"]) == 0
    warning = capsys.readouterr().err
    assert "learning rate rises from 3.4e-06 to 8.5e-04" in warning
    assert f"start_from={whole}" in warning
    assert main([f"resume={whole}"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_run_that_ended_within_an_epoch_goes_on_in_it(settings, tmp_path):
    """With a learning rate that does not depend on where the end is."""
    settings = [*settings, "training.schedule=constant", "training.checkpoint_seconds=10"]
    for name, steps in (("whole", 10), ("longer", 6)):
        assert main([*settings, f"steps={steps}", f"run={tmp_path / name}"]) == 0
    assert main([f"resume={tmp_path / 'longer'}", "steps=10"]) == 0
    assert_same(tmp_path / "whole", tmp_path / "longer")


@pytest.mark.slow
def test_the_best_of_a_run_that_ended_within_an_epoch_stays(settings, tmp_path):
    """It is written when the limit ends the epoch, and what comes later must be better."""
    folder = tmp_path / "run"
    settings = [*settings, "training.schedule=constant", "training.warmup_steps=1"]
    assert main([*settings, "steps=6", "lr=0.001", f"run={folder}"]) == 0
    losses = [float(row["val_loss"]) for row in history(folder)]
    assert losses[1] < losses[0], "the test needs the broken epoch to be the best"
    _, best, _ = read_checkpoint(folder, ("best",))
    assert best["step"] == 6
    _, last, _ = read_checkpoint(folder, ("last",))
    assert last["position"]["best"] == losses[1]


def test_ctrl_c_twice_stops_at_once(settings, tmp_path, monkeypatch, capsys):
    """What waits is written; no picture is drawn."""

    def stopped(self, resume):
        raise KeyboardInterrupt

    monkeypatch.setattr(Fit, "run", stopped)
    monkeypatch.setattr(molecule, "write_results", lambda *_, **__: pytest.fail("it was drawn"))
    assert main([*settings, f"run={tmp_path / 'run'}"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def refused(arguments, capsys, code=2):
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    return error


def test_what_cannot_be_resumed_is_refused(whole, water, tmp_path, capsys):
    assert "channels cannot be given" in refused([f"resume={whole}", "channels=3"], capsys)
    assert "holds no run" in refused([f"resume={tmp_path / 'none'}"], capsys)
    locked = shutil.copytree(whole, tmp_path / "locked")
    (locked / ".lock").unlink()
    (locked / ".lock").mkdir()  # cannot be opened, as in a folder that is read-only
    assert "cannot be written to" in refused([f"resume={locked}"], capsys)
    again = refused(["data=extxyz", f"data.path={water}", f"run={whole}"], capsys)
    assert f"resume={whole}" in again
    other = tmp_path / "other"
    shutil.copytree(whole, other)
    text = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(text.replace("seed: 0", "seed: 1"), encoding="utf-8")
    assert "seed (0 there, 1 here)" in refused([f"resume={other}"], capsys)
    (other / "config.yaml").write_text(text.replace("channels: 2", "channels: 3"), encoding="utf-8")
    assert "channels (2 there, 3 here)" in refused([f"resume={other}"], capsys)


def test_changed_data_are_refused(settings, whole, tmp_path, capsys):
    path = tmp_path / "whole" / "config.yaml"
    water = Path(settings[1].partition("=")[2])
    changed = tmp_path / "changed.xyz"
    lines = water.read_text(encoding="utf-8").splitlines()
    lines[2] = lines[2].replace("0.", "1.", 1)
    changed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    original = water.read_bytes()
    try:
        water.write_bytes(changed.read_bytes())
        assert "is not as it was" in refused([f"resume={path.parent}"], capsys)
    finally:
        water.write_bytes(original)


def test_two_processes_do_not_share_a_folder(whole, capsys):
    import fcntl

    with open(whole / ".lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "another process trains" in refused([f"resume={whole}", "epochs=20"], capsys)


def test_a_config_that_is_not_that_of_the_checkpoint_is_refused(tmp_path):
    one, other = (
        dataclasses.asdict(parse(["model=mace", "data=ethanol", f"model.zbl={zbl}"]))
        for zbl in ("false", "true")
    )
    check_same_run(one, one, tmp_path)
    with pytest.raises(ConfigError, match=r"model.zbl \(False there, True here\)"):
        check_same_run(other, one, tmp_path)


def test_references_of_the_run_are_kept(finished, tmp_path):
    kept = {int(z): e for z, e in read_metadata(finished)["reference_energies"].items()}
    assert kept_references(finished, kept) == kept
    assert kept_references(finished, [*kept, 99]) is None
    assert kept_references(tmp_path / "none", kept) is None
