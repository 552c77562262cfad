"""Validation every so many steps: which lines there are, and that resuming does not change them."""

import jax
import numpy as np
import pytest

from eqfuse.train.loop import Fit, Position
from eqfuse.train.main import main
from eqfuse.train.run.checkpoint import read_checkpoint
from tests.small_runs import TINY
from tests.train.run.test_resume import history

EVERY = ["training.validate_every=3", "training.schedule=constant", "training.second_stage=null"]


@pytest.fixture(scope="module")
def settings(water):
    """Return settings of runs with four steps in an epoch."""
    return [f"data={water}", *TINY, "training.checkpoint_seconds=0"]


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """Return the folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert main([*settings, *EVERY, "steps=10", f"run={folder}"]) == 0
    return folder


def assert_same(first, second):
    assert history(first) == history(second)
    for name in ("best", "last"):
        (_, ours, _), (_, theirs, _) = (read_checkpoint(f, (name,)) for f in (first, second))
        for key in ("arrays_sha256", "step", "epoch", "validation"):
            assert ours[key] == theirs[key], (name, key)


def test_positions_count_steps_since_the_last_validation():
    at = Position(2, 4, unvalidated=6, error_sums={"a": 1}, loss_sum=2.0, best=0.5)
    assert at.validated(ends_epoch=False) == Position(2, 4, best=0.5)
    assert at.validated(ends_epoch=True) == Position(3, 0, best=0.5)
    assert at.next_epoch() == Position(3, 0, 6, {"a": 1}, 2.0, 0.5)


@pytest.mark.slow
def test_lines_are_of_every_third_step_and_the_last(whole):
    rows = history(whole)
    assert [(row["epoch"], row["step"]) for row in rows] == [
        ("1", "3"),
        ("2", "6"),
        ("3", "9"),
        ("3", "10"),
    ]
    best = min(rows, key=lambda row: float(row["val_loss"]))
    params, metadata, _ = read_checkpoint(whole, ("best",))
    assert str(metadata["step"]) == best["step"]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.slow
@pytest.mark.parametrize("at_step", [4, 5, 6])
def test_an_interrupted_run_ends_like_one_that_was_not(
    settings, whole, tmp_path, monkeypatch, at_step
):
    """After the last step of an epoch, between two validations, and before a validation."""
    keep, folder = Fit._keep, tmp_path / "run"

    def interrupt(self, state, *rest):
        keep(self, state, *rest)
        if int(state.step) == at_step:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "_keep", interrupt)
        assert main([*settings, *EVERY, "steps=10", f"run={folder}"]) == 130
    assert main([f"resume={folder}"]) == 0
    assert_same(whole, folder)


@pytest.mark.slow
def test_a_run_made_longer_forgets_the_line_of_its_end(settings, whole, tmp_path):
    folder = tmp_path / "run"
    assert main([*settings, *EVERY, "steps=8", f"run={folder}"]) == 0
    assert [row["step"] for row in history(folder)] == ["3", "6", "8"]
    assert main([f"resume={folder}", "steps=10"]) == 0
    assert history(folder) == history(whole)
