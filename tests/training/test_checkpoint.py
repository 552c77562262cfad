import functools
import shutil

import jax
import numpy as np
import pytest

from eqfuse import models
from eqfuse.training import CheckpointError, checkpoint, load_run
from eqfuse.training.checkpoint import Checkpoints

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
            checkpoints.offer("last", 2, lambda: params(2.0), {})
        return restore(path, serial, **arguments)

    monkeypatch.setattr(checkpoint, "_restore", replaced)
    _, read, metadata = load_run(tmp_path)
    assert metadata["step"] == 2
    assert set(calls) == {1, 2}
    jax.tree.map(np.testing.assert_array_equal, read, params(2.0))
    checkpoints.close()


def test_only_the_newest_stays(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", METADATA)
    for step in (1, 2, 3):
        checkpoints.offer("last", step, functools.partial(params, step), {})
    checkpoints.close()
    assert [path.name for path in (tmp_path / "checkpoints" / "last").iterdir()] == ["3"]


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
