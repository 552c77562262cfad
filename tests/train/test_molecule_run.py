import dataclasses
import re

import ase
import ase.io
import jax
import matplotlib.image
import numpy as np
import pytest
from ase import units

from eqfuse import plots
from eqfuse.data import Batcher, DataError, Dataset, Structure
from eqfuse.data.dataset import split_indices
from eqfuse.models import ZBL
from eqfuse.runs.checkpoint import read_checkpoint
from eqfuse.runs.errors import ConfigError
from eqfuse.train import load_run
from eqfuse.train.arguments import parse
from eqfuse.train.main import fit, main
from eqfuse.train.molecule import build_potential
from eqfuse.train.replay import write_frames
from eqfuse.train.results import Callback
from eqfuse.train.schedule import Limits
from tests.child import run_python
from tests.data.test_checks_of_stress import frames_of
from tests.ops import tiers
from tests.small_runs import TINY, errors_of, prepared, rewritten, rows_of

FORCES = "forces_rmse_mev_per_a"


@pytest.mark.parametrize("model", tiers.slow_unless(["nequip"], "nequip", "allegro", "mace"))
def test_a_run_learns_and_can_be_read_back(tmp_path, water, capsys, model):
    folder = tmp_path / "run"
    tiny = TINY
    if model == "allegro":
        tiny = [s for s in TINY if not s.startswith("model.radial")] + ["model.latent_dim=16"]
    more = ["verbose=true", "epochs=20", "lr=0.1"]
    assert main([f"data={water}", *tiny, *more, f"model={model}", f"run={folder}"]) == 0

    rows = rows_of(folder)
    steps = [(int(row["epoch"]), int(row["step"])) for row in rows]
    assert steps == [(n, 4 * n) for n in range(1, 21)]
    first, last = (float(rows[i][f"val_{FORCES}"]) for i in (0, -1))
    assert last < 0.5 * first

    _, _, metadata = load_run(folder)
    assert metadata["species"] == [1, 8]
    assert metadata["units"]["energy"] == "eV"
    best = min(rows, key=lambda row: float(row["val_loss"]))
    assert metadata["step"] == int(best["step"])

    lines = capsys.readouterr().out.splitlines()
    for part in ("force RMS", "neighbours", "backend    ", "  ops      ", "sequence   "):
        assert any(part in line for line in lines)
    header = next(i for i, line in enumerate(lines) if line.split()[:2] == ["epoch", "loss"])
    assert [line.split()[0] for line in lines[header + 1 :][:20]] == [str(n) for n in range(1, 21)]
    assert max(len(line) for line in lines[header:] if str(folder) not in line) < 100


def test_fit_takes_frames(tmp_path, water):
    """Which are kept in the folder of the run, and trained on as those of the file are."""
    frames, losses = ase.io.read(water, ":"), []
    for name, given in (("file", str(water)), ("frames", iter(frames))):
        folder = fit(*TINY, "steps=2", data=given, run=str(tmp_path / name))
        losses.append([row["val_loss"] for row in rows_of(folder)])
    assert losses[0] == losses[1]
    assert ase.io.read(tmp_path / "frames" / "frames.traj", ":") == frames
    with pytest.raises(DataError, match=r"no such file: nowhere\.xyz"):
        fit(data=["nowhere.xyz"])
    moved = folder.rename(tmp_path / "moved")
    assert fit(resume=moved) == moved  # on the frames within


def test_fit_takes_files_and_frames_with_labels_of_other_names(tmp_path, water, monkeypatch):
    """Their atoms may have weights, too."""

    def change(number, atoms):
        atoms.info["REF_energy"] = atoms.get_potential_energy()
        atoms.set_array("REF_forces", atoms.get_forces())
        atoms.set_array("forces_weight", np.array([1.0, 0, number]))
        atoms.calc = None

    path, losses = rewritten(water, tmp_path / "water.xyz", change), []
    frames, keys = (
        ase.io.read(path, ":"),
        ("data.energy_key=REF_energy", "data.forces_key=REF_forces"),
    )
    for name, given in (("file", str(path)), ("files", [path]), ("frames", iter(frames))):
        folder = fit(*TINY, *keys, "steps=2", data=given, run=str(tmp_path / name))
        losses.append([row["val_loss"] for row in rows_of(folder)])
    assert losses[0] == losses[1] == losses[2]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fit(*TINY, *keys, "steps=1", "run=~/named", data=frames) == tmp_path / "named"
    with pytest.raises(ConfigError, match="names of files, or ase"):
        fit(data=[path, frames[0]])


def test_a_callback_may_change_what_it_is_given(water, tmp_path):
    class Emptying(Callback):
        def on_start(self, folder, config):
            config.clear()

        def on_epoch(self, row):
            row.clear()

    folder = fit(*TINY, data=water, run=tmp_path / "run", steps=1, callbacks=[Emptying()])
    assert read_checkpoint(folder, ("best",))[1]["config"]["steps"] == 1


def test_weights_of_edges_are_rounded_in_training_alone(tmp_path, water, capsys):
    """The errors that a run ends with are of predictions; those of an epoch are the training's."""
    gaps = []
    for precision in ("auto", "bfloat16"):
        folder = fit(*TINY, "steps=2", data=water, precision=precision, run=tmp_path / precision)
        [row] = rows_of(folder)
        end = float(errors_of(folder)["validation", "all"][FORCES])
        gaps.append(abs(float(row[f"val_{FORCES}"]) - end) / end)
        said = "weights of edges in bfloat16" in capsys.readouterr().out
        assert said == (precision == "bfloat16")
    assert gaps[0] < 1e-6 < 1e-5 < gaps[1] < 1e-2


COMPILED = """
import sys
import jax
names = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
from eqfuse.train.main import main
code = main(sys.argv[1:])
print(code, sum(name.endswith("backend_compile_duration") for name in names))
"""


@pytest.mark.parametrize("model", tiers.slow_unless(["nequip"], "nequip", "mace"))
def test_programs_of_a_run_are_few(tmp_path, water, model):
    """Steps, errors, predictions and parameters are ones; the constants of e3nn-jax were 60."""
    few = [f"model={model}", "model.layers=1", "epochs=2", f"run={tmp_path / 'run'}"]
    done = run_python("-c", COMPILED, f"data={water}", *TINY, *few)
    code, count = map(int, done.stdout.splitlines()[-1].split())
    assert code == 0
    assert 5 < count < 20


def test_reference_energies_are_read_under_the_key_of_the_energies(tmp_path):
    path = tmp_path / "atoms.xyz"
    ase.io.write(path, [ase.Atoms("H", info={"REF_energy": -13.6, "energy": 0.0})], format="extxyz")
    given = ["data=extxyz", "data.path=none.xyz", f"data.reference_energies={path}"]
    for more, energy in (([], 0.0), (["data.energy_key=REF_energy"], -13.6)):
        assert parse([*given, *more]).data.read_reference_energies(5.0) == {1: energy}


@pytest.mark.slow
def test_stress_of_the_embedded_crystal_is_learnt(tmp_path, capsys):
    folder = tmp_path / "run"
    more = ("data=lif", "cutoff=3", "data.batch_size=10", "epochs=15", "lr=0.03", "channels=4")
    assert main([*TINY, *more, "training.stress_weight=100", f"run={folder}"]) == 0
    first, *_, last = (float(row["val_stress_rmse_mev_per_a3"]) for row in rows_of(folder))
    assert last < 0.5 * first
    out = capsys.readouterr().out
    assert re.search(rf"\n *epoch +loss.* S RMSE (.*\n)+.* {first:.3f} ", out)
    assert "warning" not in out


@pytest.mark.slow
def test_a_network_that_has_learned_forces_shows_stress_that_is_wrong(tmp_path, capsys):
    frames = frames_of("strained", 30)
    kbar = [dataclasses.replace(s, stress=s.stress / units.GPa * 10) for s in frames]
    write_frames(tmp_path / "copper.traj", kbar)
    more = (f"data={tmp_path / 'copper.traj'}", "cutoff=3.6", "epochs=60", "data.val=8")
    more += ("training.optimizer=adam", "training.stress_weight=1e-6", "data.check=off")
    assert main([*TINY, *more, f"run={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().err.count("times better as in kbar; eV/Å^3") == 1


def test_a_file_to_validate_with_and_isolated_atoms(tmp_path, water):
    """Both as MACE has them."""
    frames, kind = ase.io.read(water, ":"), {"config_type": "IsolatedAtom"}
    energies = {"H": 0.25, "O": -0.5}
    isolated = [ase.Atoms(symbol, info=kind | {"energy": e}) for symbol, e in energies.items()]
    ase.io.write(tmp_path / "train.xyz", isolated + frames[:15])
    ase.io.write(val := tmp_path / "val.xyz", frames[15:])
    given = [f"data={tmp_path / 'train.xyz'}", f"data.val_path={val}"]
    tiny = [s for s in TINY if s != "data.val=4"]
    dataset, text = prepared(*given, tiny=tiny)
    assert f"5 validation ({val}), 3 to 3 atoms, isolated atoms besides: 2" in text
    assert "H 0.2500, O -0.5000 eV (isolated atoms of the data)" in text
    assert dataset.references == {1: 0.25, 8: -0.5}
    np.testing.assert_allclose(dataset.val[2].forces, frames[17].get_forces(), rtol=1e-12)
    with pytest.raises(ConfigError, match=r"data\.val=3\.0 is impossible: it must be left out"):
        prepared(*given, "data.val=3", tiny=tiny)


def test_several_files_by_a_pattern(tmp_path, water):
    """They are the data that one file with all frames is; messages name the file and its frame."""
    frames, pattern = ase.io.read(water, ":"), tmp_path / "part-?.xyz"
    ase.io.write(tmp_path / "part-1.xyz", frames[:7])
    ase.io.write(tmp_path / "part-2.xyz", frames[7:])
    (one, _), (several, text) = (prepared(f"data={path}") for path in (water, pattern))
    assert f"{pattern}: 2 files" in text
    for ours, theirs in zip(several.train, one.train, strict=True):
        np.testing.assert_array_equal(ours.forces, theirs.forces)
        assert ours.energy == theirs.energy
    frames[3].positions[1] = frames[3].positions[0]
    ase.io.write(tmp_path / "part-3.xyz", frames[2:5])
    with pytest.raises(DataError, match=f"{tmp_path / 'part-3.xyz'}, frame 1: "):
        prepared(f"data={pattern}")


@pytest.mark.usefixtures("pictures")
def test_the_second_stage_weighs_energies_and_has_a_best_network_of_its_own(
    water, tmp_path, capsys
):
    run, settings = tmp_path / "run", [f"data={water}", *TINY, "dtype=float64", "epochs=6"]
    settings += ["training.second_stage=0.5", "training.second_energy_weight=300"]
    assert main([*settings, f"run={run}"]) == 0  # 4 steps in each epoch
    assert "second stage: energy_weight=300" in capsys.readouterr().out
    _, last, _ = read_checkpoint(run, ("last",))
    assert last["position"]["second_since"] == 12
    # The picture shows where it began.
    plots.learning_curves(run / "metrics.csv", tmp_path / "without.png")
    pictures = [run / "learning.png", tmp_path / "without.png"]
    assert not np.array_equal(*map(matplotlib.image.imread, pictures))
    for row in rows_of(run):
        energy = 1e-3 * float(row["val_energy_rmse_mev_per_atom"])
        forces = 1e-3 * float(row[f"val_{FORCES}"])
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


def test_time_stops_a_run(tmp_path, water, capsys):
    settings = [f"data={water}", *TINY, f"run={tmp_path / 'run'}"]
    assert main([*settings, "max_minutes=0.0001", "epochs=1000000"]) == 0
    assert "time is up" in capsys.readouterr().out
    load_run(tmp_path / "run")


def test_limits_end_a_run_and_keep_time_for_the_last_validation():
    """It has 100 epochs, here of four steps, only where no limit is given."""
    for lengths, steps, seconds in (
        ({}, 400, np.inf),
        ({"epochs": 3}, 12, np.inf),
        ({"steps": 7, "epochs": 3}, 7, np.inf),
        ({"max_minutes": 2, "epochs": 3}, 12, 120),
    ):
        limits = Limits(4, **lengths)
        assert (limits.steps, limits.seconds, limits.fraction(4)) == (steps, seconds, 4 / steps)
    limits = Limits(10, max_minutes=1)
    limits.elapsed = 45.0
    assert not limits.time_is_up
    assert limits.fraction(0) == 0.75
    limits.reserve(20.0)
    assert limits.time_is_up
    assert limits.fraction(0) == 45 / 40
    limits.reserve(1000.0)  # never more than half of the time
    assert limits.reserved == 30


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
    folder = tmp_path / "run"
    assert main([f"data={water}", *TINY, "data.train=16", "epochs=4", f"run={folder}"]) == 1
    error = capsys.readouterr().err
    assert "epoch 2, step 6" in error
    frames = split_indices(20, 16, 4, 0)[0][bad]
    assert "; ".join(f"{water}, frame {n}" for n in frames) in error
    _, params, metadata = load_run(folder, which="last")
    assert metadata["step"] == 5
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(("shift", "expected"), [("mean", -1.5), ("zero", 0.0)])
def test_potential_of_settings_begins_at_the_mean_energy_or_at_the_reference(shift, expected):
    frames = [Structure([1, 1], [[0, 0, 0], [0, 0, d]], energy=-5.0) for d in (0.7, 0.8, 0.9)]
    dataset = Dataset.build(frames, cutoff=3.0, val_size=1, references={1: -1.0})
    for zbl in ("true", "false"):
        given = ["model=mace", "data=ethanol", "channels=2", f"model.shift={shift}"]
        settings = parse([*given, f"model.zbl={zbl}", "cutoff=3"]).model
        potential, fields = build_potential(settings, dataset, None)
        assert (potential.shift, potential.binds_within) == ((expected,), 3.0)
        assert potential.repulsion == (ZBL.of([1]) if zbl == "true" else None)
        assert "shift" not in fields
