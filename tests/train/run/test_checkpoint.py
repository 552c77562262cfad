import asyncio
import contextlib
import errno
import functools
import gc
import os
import shutil
import signal
import sys
import threading
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from eqfuse import models
from eqfuse.train import CheckpointError, load_run, read_metadata
from eqfuse.train.run import checkpoint, saving
from eqfuse.train.run.checkpoint import DamagedCheckpointWarning, read_checkpoint
from eqfuse.train.run.quiet import quiet
from eqfuse.train.run.saving import Checkpoints

METADATA = {
    "model": "nequip",
    "model_fields": {"channels": 3, "layers": 1, "num_species": 2},
    "potential": {"scale": [0.5, 0.5], "shift": [-1.0, -2.0], "trainable_scale_shift": False},
    "species": [1, 8],
}


def params(value: float) -> dict:
    return {"params": {"w": np.full((2, 3), value, np.float32)}}


def test_a_run_is_read_back(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    checkpoints.offer("best", 3, lambda: params(3.0), {"epoch": 1})
    checkpoints.offer("last", 5, lambda: params(5.0), {"epoch": 2})
    checkpoints.close()
    module, read, metadata = load_run(tmp_path)
    assert isinstance(module, models.Potential)
    assert (module.scale, module.shift) == ((0.5, 0.5), (-1.0, -2.0))
    assert module.model == models.build("nequip", channels=3, layers=1, num_species=2)
    jax.tree.map(np.testing.assert_array_equal, read, params(3.0))
    assert (metadata["step"], metadata["epoch"], metadata["species"]) == (3, 1, [1, 8])
    _, read, metadata = load_run(tmp_path, which="last")
    jax.tree.map(np.testing.assert_array_equal, read, params(5.0))
    assert metadata["step"] == 5


def test_a_run_that_is_training_can_be_read(tmp_path, monkeypatch):
    """A checkpoint that is replaced while it is read is read again, as the newer one."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    checkpoints.offer("last", 1, lambda: params(1.0), {})
    restore, calls = checkpoint._restore, []

    def replaced(path, serial, **arguments):
        calls.append(serial)
        if len(calls) == 1:
            for step in (2, 3):
                checkpoints.offer("last", step, functools.partial(params, step), {})
        return restore(path, serial, **arguments)

    monkeypatch.setattr(checkpoint, "_restore", replaced)
    _, read, metadata = load_run(tmp_path)
    assert metadata["step"] == 3
    assert set(calls) == {1, 3}
    jax.tree.map(np.testing.assert_array_equal, read, params(3.0))
    checkpoints.close()


def test_only_the_best_and_the_last_two_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    for step in (1, 2, 3, 4):
        for name in ("best", "last"):
            checkpoints.offer(name, step, functools.partial(params, step), {})
    checkpoints.close()
    for name, kept in (("best", ["4"]), ("last", ["3", "4"])):
        names = [path.name for path in (tmp_path / "checkpoints" / name).iterdir()]
        assert sorted(names) == kept


def test_a_checkpoint_is_on_disk_before_another_one_is_removed(tmp_path, monkeypatch):
    """All its files and folders are synced, and the folder with its name."""
    last, synced, looks = tmp_path / "checkpoints" / "last", [], []
    fsync, delete = os.fsync, ocp.CheckpointManager.delete

    def noted(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def looked(self, step):
        looks.append((step, list(synced)))
        delete(self, step)

    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    for step in (1, 2):
        checkpoints.offer("last", step, functools.partial(params, step), {})
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(ocp.CheckpointManager, "delete", looked)
    checkpoints.offer("last", 3, functools.partial(params, 3), {})
    checkpoints.close()
    [(removed, before)] = looks
    assert removed == 1
    assert {str(path) for path in (last / "3").rglob("*")} < set(before)
    assert before[-3:] == [str(last), str(last.parent), str(tmp_path)]


def test_a_signal_waits_until_a_checkpoint_is_written(tmp_path, capfd):
    """Raised within a write, or a read, it would leave orbax's threads to a closed event loop."""

    def stopped(*_):
        raise KeyboardInterrupt

    rng = np.random.default_rng(time.time_ns())
    arrays = {"params": {str(k): np.full(3000, k, np.float32) for k in range(12)}}
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    before = signal.signal(signal.SIGUSR1, stopped)
    try:
        for step in range(1, 16):
            delay = rng.uniform(0.0, 0.08)
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGUSR1))
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come anywhere
                timer.start()
                checkpoints.offer("last", step, lambda: arrays, {})
                read_checkpoint(tmp_path, ("last",))
                timer.join()
                time.sleep(1.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    checkpoints.offer("last", 100, lambda: arrays, {})
    checkpoints.close()
    assert load_run(tmp_path)[2]["step"] == 100
    assert capfd.readouterr().err == ""


def test_the_older_checkpoint_is_taken_where_the_newer_is_damaged(tmp_path):
    """As a power loss may leave it: files of no length, or of zeros."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    for step in (1, 2):
        checkpoints.offer("last", step, functools.partial(params, step), {})
    checkpoints.close()
    newest = tmp_path / "checkpoints" / "last" / "2"
    for path in [path for path in newest.rglob("*") if path.is_file()]:
        path.write_bytes(b"")
    with pytest.warns(DamagedCheckpointWarning, match=r"2 is damaged.*last/1, is taken"):
        _, read, metadata = load_run(tmp_path)
    assert metadata["step"] == 1
    jax.tree.map(np.testing.assert_array_equal, read, params(1))
    shutil.rmtree(newest.with_name("1"))
    with pytest.raises(CheckpointError, match="2 is damaged"):
        load_run(tmp_path)


def test_an_unknown_checkpoint_is_refused_by_name(tmp_path):
    for read in (load_run, read_metadata):
        with pytest.raises(ValueError, match='which=\'foo\' is unknown; it is "best", "last"'):
            read(tmp_path, which="foo")


@pytest.mark.parametrize(
    ("written", "intact"),
    [
        ((), "none has been written yet"),
        (("best",), "the one in best is intact"),
        (("best", "last"), "the one before it is intact"),
    ],
)
def test_only_what_is_there_is_said_to_be_intact(tmp_path, monkeypatch, written, intact):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    for name in written:
        checkpoints.offer(name, 1, lambda: params(1.0), {})
    checkpoints.flush()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saving, "sync_tree", full)
    with pytest.raises(CheckpointError, match=f"No space left on device; free.*: {intact}$"):
        checkpoints.offer("last", 2, lambda: params(2.0), {})
    if written:
        assert load_run(tmp_path, which=written[-1])[2]["step"] == 1


def test_frequent_offers_wait_until_flushed(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA, seconds=1000.0)
    for step in (1, 2, 3):
        checkpoints.offer("last", step, functools.partial(params, step), {})
    assert load_run(tmp_path)[2]["step"] == 1
    checkpoints.flush()
    assert load_run(tmp_path)[2]["step"] == 3
    checkpoints.close()


def test_what_fails_but_not_by_the_disk_is_not_blamed_on_it(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    with pytest.raises(CheckpointError, match="no fault of the disk") as caught:
        checkpoints.offer("last", 1, lambda: {"params": {"w": np.array(["no number"])}}, {})
    assert isinstance(caught.value.__cause__, ValueError | RuntimeError)


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_checkpoint_is_refused(tmp_path, folder):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load_run(tmp_path / folder)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    checkpoints.offer("last", 1, lambda: params(1.0), {})
    checkpoints.close()
    shutil.rmtree(tmp_path / "checkpoints" / "last" / "1" / "params")
    with pytest.raises(CheckpointError, match="damaged"):
        load_run(tmp_path)


def test_a_damaged_checkpoint_prints_nothing_of_closed_event_loops(tmp_path, monkeypatch):
    """orbax closes its loop at the first error; each of the other arrays would print a stack."""
    arrays = {"params": {str(k): np.full(3000, k, np.float32) for k in range(40)}}
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    checkpoints.offer("last", 1, lambda: arrays, {})
    checkpoints.close()
    manifest = tmp_path / "checkpoints" / "last" / "1" / "params" / "manifest.ocdbt"
    manifest.write_bytes(manifest.read_bytes()[:50])
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for _ in range(10):
        with pytest.raises(CheckpointError, match="damaged"):
            read_checkpoint(tmp_path, ("last",))
    time.sleep(0.2)  # tensorstore's threads go on for a while
    assert printed == []


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('DATA_LOSS: Error reading "w/.zarray" in OCDBT database', False),
        ("NOT_FOUND: no such file [tensorstore_spec='{}']", False),
        ("mine", True),
    ],
)
def test_tasks_of_a_damaged_checkpoint_that_fail_too_are_not_printed(caplog, message, said):
    """orbax asks for one error of several; asyncio complains of the others when they are gone."""

    async def fail():
        raise ValueError(message)

    async def leave():
        asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(0.01)

    with contextlib.suppress(KeyError), quiet():
        raise KeyError
    asyncio.run(leave())
    gc.collect()
    assert ("Task exception was never retrieved" in caplog.text) == said
