import jax
import numpy as np

from eqfuse.data import Batcher
from eqfuse.train import load_run
from eqfuse.train.main import main
from tests.small_runs import TINY


def test_nan_in_a_step_names_its_frames_and_keeps_the_last_good_checkpoint(
    water, tmp_path, monkeypatch, capsys
):
    batches, bad = Batcher.batches, []

    def poisoned(self, epoch=0, shuffle=True, start=0):
        for k, batch in enumerate(batches(self, epoch, shuffle, start)):
            if shuffle and (epoch, k) == (2, 1):
                batch.labels.forces[0, 0] = np.nan
                bad.extend(self.groups(epoch)[k].tolist())
            yield batch

    monkeypatch.setattr(Batcher, "batches", poisoned)
    settings = ["data=extxyz", f"data.path={water}", *TINY, "data.train=16", "epochs=4"]
    folder = tmp_path / "run"
    assert main([*settings, f"run={folder}"]) == 1
    error = capsys.readouterr().err
    assert "epoch 2, step 6" in error

    from eqfuse.data.dataset import split_indices

    frames = split_indices(20, 16, 4, 0)[0][bad]
    assert "; ".join(f"{water}, frame {n}" for n in frames) in error
    _, params, metadata = load_run(folder, which="last")
    assert metadata["step"] == 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
