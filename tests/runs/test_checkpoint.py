import functools
import os
import shutil
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import save_file

from eqfuse import models
from eqfuse.runs.checkpoint import (
    Checkpoints,
    DamagedCheckpointWarning,
    named_arrays,
    read_checkpoint,
)
from eqfuse.runs.errors import CheckpointError
from eqfuse.runs.files import FORMAT, encode
from eqfuse.train import load_run
from eqfuse.train.flat import Flat
from eqfuse.train.optimizer import muon
from eqfuse.train.step import init_state
from tests.runs.test_files import small_disk

METADATA = {
    "model": "nequip",
    "config": {"dtype": "float32"},
    "model_fields": {"channels": 3, "layers": 1, "num_species": 2, "cutoff": 4.0},
    "potential": {"scale": [0.5, 0.5], "shift": [-1.0, -2.0], "trainable_scale_shift": False},
    "species": [1, 8],
    "reference_energies": {"1": -13.6, "8": -432.0},
}


def params(value: float) -> dict:
    return {"params": {"w": np.full((2, 3), value, np.float32)}}


def checkpoints_in(folder, **how):
    return Checkpoints(folder / "checkpoints", METADATA, **how)


def written(folder, *steps):
    """Write a run with these checkpoints, one after the other."""
    checkpoints = checkpoints_in(folder)
    for step in steps:
        for name in ("best", "last"):
            checkpoints.offer(name, step, functools.partial(params, step), {})
    return checkpoints


def test_a_run_is_read_back(tmp_path):
    checkpoints = checkpoints_in(tmp_path)
    checkpoints.offer("best", 3, lambda: params(3.0), {"epoch": 1})
    checkpoints.offer("last", 5, lambda: params(5.0), {"epoch": 2})
    checkpoints.flush()
    module, read, metadata = load_run(tmp_path)
    assert isinstance(module, models.Potential)
    assert (module.scale, module.shift) == ((0.5, 0.5), (-1.0, -2.0))
    assert module.model == models.build("nequip", channels=3, layers=1, num_species=2, cutoff=4.0)
    jax.tree.map(np.testing.assert_array_equal, read, params(3.0))
    assert (metadata["step"], metadata["epoch"], metadata["species"]) == (3, 1, [1, 8])
    _, read, metadata = load_run(tmp_path, which="last")
    jax.tree.map(np.testing.assert_array_equal, read, params(5.0))
    assert metadata["step"] == 5
    # a network is one file, wherever it is
    file = shutil.move(tmp_path / "checkpoints" / "best.safetensors", tmp_path / "a.safetensors")
    again, read, metadata = load_run(file)
    assert (again, metadata["step"]) == (module, 3)
    jax.tree.map(np.testing.assert_array_equal, read, params(3.0))
    with pytest.raises(ValueError, match="is for the folder of a run"):
        load_run(file, which="best")


def states():
    """States of all kinds of optimizers, and arrays of all dtypes."""
    tree = {
        "a": jnp.linspace(0, 1, 6).reshape(2, 3),
        "w[0,0] 2x0e,2x1o": jnp.eye(3) / 3,
        "b": {"scale": jnp.float32(0.1)},
    }
    flat = Flat.of(tree)
    array = flat.flatten(tree)
    gradient = jnp.cos(jnp.arange(array.size, dtype=array.dtype))
    for name, optimizer, at, slope in (
        ("muon", muon(flat), array, gradient),
        ("adam", optax.adam(0.1), tree, jax.tree.map(jnp.sin, tree)),
    ):
        state = init_state(at, optimizer)
        update = jax.jit(optimizer.update)
        yield name, state.replace(optimizer=update(slope, state.optimizer, at)[1])
    dtypes = ("bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32", "float64")
    yield "dtypes", [np.arange(6).reshape(2, 3).astype(jnp.dtype(dtype)) for dtype in dtypes]
    yield "odd", (np.float64(np.pi), np.zeros((0, 3)), np.arange(6).reshape(2, 3).T, None, {})
    yield "special", [np.array([np.nan, np.inf, -0.0, 5e-324])]


@pytest.mark.parametrize("name", ["muon", "adam", "dtypes", "odd", "special"])
def test_a_state_is_read_back_to_the_last_bit(tmp_path, name):
    state = dict(states())[name]
    checkpoints_in(tmp_path).offer("last", 1, lambda: params(1.0), {}, state=state)
    _, _, read = read_checkpoint(tmp_path, ("last",), state)
    assert jax.tree.structure(read) == jax.tree.structure(state)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(read), strict=True):
        ours = np.asarray(ours)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize(
    "other",
    [{"w": np.zeros(3)}, {"v": np.zeros(2)}, {"w": np.zeros(2, np.float32)}, {}],
    ids=["shape", "name", "dtype", "none"],
)
def test_the_state_of_another_model_is_refused(tmp_path, other):
    checkpoints_in(tmp_path).offer("last", 1, lambda: params(1.0), {}, state={"w": np.zeros(2)})
    with pytest.raises(CheckpointError, match="is of another model or optimizer"):
        read_checkpoint(tmp_path, ("last",), other)


def test_a_checkpoint_is_on_disk_before_another_one_is_replaced(tmp_path, monkeypatch):
    checkpoints = written(tmp_path, 1, 2)
    folder, done = tmp_path / "checkpoints", []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def replaced(old, new):
        done.append((os.path.basename(old), os.path.basename(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    checkpoints.offer("last", 3, functools.partial(params, 3), {})
    assert done == [
        ("sync", "last.safetensors.part"),
        ("last.safetensors", "previous.safetensors"),
        ("last.safetensors.part", "last.safetensors"),
        ("sync", folder.name),
    ]


# A signal that arrives within `open` is raised before the file is in the hands of `with`, and one
# between two renames leaves the older checkpoint only.
@pytest.mark.filterwarnings("ignore::eqfuse.runs.checkpoint.DamagedCheckpointWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_signal_at_any_moment_of_a_write_leaves_whole_checkpoints(tmp_path):
    def stopped(*_):
        raise KeyboardInterrupt

    rng = np.random.default_rng(time.time_ns())
    arrays = {"params": {str(k): np.full(300_000, k, np.float32) for k in range(12)}}
    checkpoints = checkpoints_in(tmp_path)
    checkpoints.offer("last", 0, lambda: arrays, {})
    before = signal.signal(signal.SIGUSR1, stopped)
    try:
        for step in range(1, 16):
            delay = rng.uniform(0.0, 0.08)
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGUSR1))

            def params(timer=timer):
                """Start the clock here: a signal before this finds no checkpoint on offer."""
                if timer.ident is None:
                    timer.start()
                return arrays

            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come anywhere
                checkpoints.offer("last", step, params, {})
                timer.join()
                time.sleep(1.0)
            assert read_checkpoint(tmp_path, ("last",))[1]["step"] in (step - 1, step)
            checkpoints.flush()  # what the signal kept from being written
            assert read_checkpoint(tmp_path, ("last",))[1]["step"] == step
    finally:
        signal.signal(signal.SIGUSR1, before)
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["last.safetensors", "previous.safetensors"]


@pytest.mark.parametrize("damage", ["empty", "zeros", "cut", "gone", "folder"])
def test_the_older_checkpoint_is_taken_where_the_newer_is_damaged(tmp_path, damage):
    """As a power loss may leave it, for instance."""
    written(tmp_path, 1, 2)
    best, newest, _ = sorted((tmp_path / "checkpoints").iterdir())  # the best, and the last two
    best.unlink()
    content = newest.read_bytes()
    newest.unlink()
    left = {"empty": b"", "zeros": bytes(len(content)), "cut": content[: len(content) // 2]}
    if damage == "folder":
        newest.mkdir()
    elif damage != "gone":
        newest.write_bytes(left[damage])
    match = r"last.safetensors is (damaged|missing).*previous.safetensors, is taken"
    with pytest.warns(DamagedCheckpointWarning, match=match):
        _, read, metadata = load_run(tmp_path)
    assert metadata["step"] == 1
    jax.tree.map(np.testing.assert_array_equal, read, params(1))
    newest.with_name("previous.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"is damaged|has no checkpoint"):
        load_run(tmp_path)


def test_every_changed_byte_is_noticed_or_changes_nothing(tmp_path):
    written(tmp_path, 1)
    path = tmp_path / "checkpoints" / "best.safetensors"
    content, (_, before, metadata) = path.read_bytes(), load_run(tmp_path)
    refusals = 0
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            _, after, read = load_run(tmp_path)
        except CheckpointError as error:
            assert "damaged" in str(error)  # noqa: PT017 - it may also not be raised
            refusals += 1
        else:
            jax.tree.map(np.testing.assert_array_equal, before, after)
            assert read == metadata
    assert refusals > 0.95 * len(content)


def test_files_of_others_and_of_later_versions_are_refused(tmp_path):
    save_file({"w": np.zeros(3)}, other := tmp_path / "other.safetensors")
    later = encode(named_arrays("params", params(1.0)), {**METADATA, "format": 99})
    (tmp_path / "later.safetensors").write_bytes(later)
    for run, message in (
        (other, "not a network of eqfuse"),
        (tmp_path / "later.safetensors", f"has format 99, this version reads {FORMAT}"),
        ("a\0b", "NUL character"),
        (tmp_path, "no checkpoint"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_run(run)


def test_a_disk_that_is_full_at_any_byte_leaves_the_checkpoint_before(tmp_path):
    arrays = {str(k): np.random.default_rng(k).random(300).astype(np.float32) for k in range(6)}
    failures, step = [], 0
    # No file can be longer than this; a checkpoint has 17 kB.
    for limit in (0, 30, 100, 300, 600, 1000, 2000, 4000, 8000, 16_000, 40_000):
        checkpoints = checkpoints_in(tmp_path)
        checkpoints.offer("last", step, lambda: arrays, {}, state=arrays)
        left = [path.name for path in (tmp_path / "checkpoints").iterdir()]
        assert len(left) == 1 + bool(step), left  # what failed before is gone
        try:
            with small_disk(limit):
                checkpoints.offer("last", step + 1, lambda: arrays, {}, state=arrays)
                checkpoints.flush()
            step += 1
        except CheckpointError as error:
            failures.append(str(error))
        read, metadata, state = read_checkpoint(tmp_path, ("last",), arrays)
        assert metadata["step"] == step, limit
        jax.tree.map(np.testing.assert_array_equal, (read, state), (arrays, arrays))
        step += 1
    assert 5 <= len(failures) < 11, "with the largest limit it is written"
    for message in failures:
        assert "File too large; free or repair the disk" in message
        assert "what was written before is intact" in message


def test_frequent_offers_wait_until_flushed(tmp_path):
    checkpoints = checkpoints_in(tmp_path, seconds=1000.0)
    for step in (1, 2, 3):
        checkpoints.offer("last", step, functools.partial(params, step), {})
    assert load_run(tmp_path)[2]["step"] == 1
    for _ in range(2):
        checkpoints.flush()
        assert load_run(tmp_path)[2]["step"] == 3
