"""The second stage of a training: other weights, averaged parameters, a best network of its own."""

import matplotlib.image
import numpy as np
import pytest

from eqfuse import plots
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.train.main import main
from eqfuse.train.schedule import average_decay
from tests.small_runs import TINY, rows_of

STAGES = ["training.second_stage=0.5", "training.second_energy_weight=300", "epochs=6"]
UNITS = (("energy", "atom"), ("forces", "a"))


def test_parameters_of_the_second_stage_have_equal_weights(rng):
    params = rng.normal(size=20)
    average, since = 0.0, 12
    for step, value in enumerate(params):
        decay = average_decay(0.9, step, since if step >= since else None)
        average = value + decay * (average - value)
        assert decay == (2 + step) / (11 + step) or step != since - 1
    assert average == pytest.approx(params[since:].mean(), rel=1e-12)
    assert average_decay(0.0, 5, None) == 0
    assert average_decay(0.5, 1000, None) == 0.5


@pytest.mark.usefixtures("pictures")
def test_the_second_stage_weighs_energies_and_has_a_best_network_of_its_own(
    water, tmp_path, capsys
):
    run, settings = tmp_path / "run", [f"data={water}", *TINY, *STAGES, "dtype=float64"]
    assert main([*settings, f"run={run}"]) == 0  # 4 steps in each epoch
    assert "second stage: energy_weight=300" in capsys.readouterr().out
    _, last, _ = read_checkpoint(run, ("last",))
    assert last["position"]["second_since"] == 12
    # The picture shows where it began.
    plots.learning_curves(run / "metrics.csv", tmp_path / "without.png")
    pictures = [run / "learning.png", tmp_path / "without.png"]
    assert not np.array_equal(*map(matplotlib.image.imread, pictures))
    for row in rows_of(run):
        errors = (float(row[f"val_{q}_rmse_mev_per_{u}"]) for q, u in UNITS)
        energy, forces = (1e-3 * error for error in errors)
        weight = 1 if int(row["epoch"]) <= 3 else 300
        expected = (weight * energy**2 + forces**2) / last["statistics"]["force_rms"] ** 2
        assert float(row["val_loss"]) == pytest.approx(expected, rel=1e-9)
    assert read_checkpoint(run, ("best",))[1]["epoch"] > 3


def test_the_best_network_is_that_of_the_criterion_asked_for(water, tmp_path):
    jumpy = ["lr=0.5", "training.schedule=constant", "training.ema_decay=0", "epochs=8"]
    more = ["training.best=energy_mae", f"run={tmp_path / 'run'}"]
    assert main([f"data={water}", *TINY, *jumpy, *more]) == 0
    errors, losses = (
        np.array([float(row[name]) for row in rows_of(tmp_path / "run")])
        for name in ("val_energy_mae_mev_per_atom", "val_loss")
    )
    best = read_checkpoint(tmp_path / "run", ("best",))[1]["epoch"]
    assert best == 1 + errors.argmin()
    assert best != 1 + losses.argmin(), "the case is meant to tell the criteria apart"
