"""Runs that start from a converted network."""

import csv

import numpy as np
import pytest

from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.train.arguments import TUNING_LR, parse
from eqfuse.train.main import main


@pytest.mark.parametrize(
    ("given", "optimizer", "lr"),
    [
        ([], "adam", TUNING_LR["adam"]),
        (["training.optimizer=muon"], "muon", TUNING_LR["muon"]),
        (["replay=auto"], "adam", 0.2 * TUNING_LR["adam"]),
        (["replay=none"], "adam", TUNING_LR["adam"]),
        (["lr=0.02"], "adam", 0.02),
        (["lr=0.02", "training.optimizer=muon"], "muon", 0.02),
    ],
)
def test_steps_are_small_unless_others_are_asked_for(run, water, given, optimizer, lr):
    settings = [f"start_from={run('two_heads')}", "data=extxyz", f"data.path={water}"]
    training = parse([*settings, *given]).training
    assert (training.optimizer, training.lr) == (optimizer, lr)
    assert lr >= training.min_lr


@pytest.mark.slow
def test_it_learns_with_fewer_elements_and_frozen_parameters(run, water, tmp_path, capsys):
    settings = [f"start_from={run('two_heads')}", "data=extxyz", f"data.path={water}"]
    more = ["elements=data", "freeze=radial", "data.reference_energies=fit", "epochs=6"]
    folder = tmp_path / "run"
    assert main([*settings, *more, "data.val=2", "data.batch_size=2", f"run={folder}"]) == 0
    assert "H O" in capsys.readouterr().out
    before, theirs, _ = read_checkpoint(run("two_heads"), ("best",))
    after, ours, _ = read_checkpoint(folder, ("last",))
    assert theirs["species"] == [1, 6, 8]
    assert ours["species"] == [1, 8]
    # the weights of the file are of float64, and the run computes in float32
    kernel = after["params"]["model"]["radial"]["layer_0"]["Dense_0"]["kernel"]
    expected = before["params"]["model"]["radial"]["layer_0"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal(kernel, expected.astype(np.float32))
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        losses = [float(row["val_loss"]) for row in csv.DictReader(file)]
    assert len(losses) == 7
    assert min(losses[1:]) < losses[0]


def test_there_is_no_training_to_go_on_with(run, capsys):
    folder = run("two_heads")
    assert main([f"resume={folder}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds a network and no training to go on with" in line
    assert f"start_from={folder}" in line
