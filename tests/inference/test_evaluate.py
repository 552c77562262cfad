import argparse
import dataclasses
import importlib
import shutil

import ase.io
import matplotlib.image
import numpy as np
import pytest

from eqfuse import Calculator
from eqfuse.data import Structure
from eqfuse.data.group_errors import error_table
from eqfuse.inference.commands import label_keys
from tests.small_runs import copper_cell, labelled, rows_of


@pytest.fixture(scope="module")
def run(untrained):
    return untrained(numbers=(1, 8))


@pytest.fixture
def typed(water, tmp_path):
    """Return the water molecules, in two groups, which may be named by anything."""
    frames = ase.io.read(water, ":")
    for k, atoms in enumerate(frames):
        atoms.info["config_type"] = "slab[/x]" if k < 8 else "slab[red]"
    ase.io.write(tmp_path / "md.300K.xyz", frames, format="extxyz")
    return tmp_path / "md.300K.xyz"


def grouped(out) -> dict[str, dict[str, str]]:
    """Return the rows of the errors that were written, by their groups."""
    return {row["group"]: row for row in rows_of(out / "errors.csv")}


def assert_rmse(row, name, errors):
    rmse = 1e3 * np.sqrt(np.mean(np.square(errors)))
    assert float(row[name]) == pytest.approx(rmse, rel=1e-5)


def test_stress_errors(rng):
    """They are those of the frames that have a stress."""
    structures, predicted, errors = [], [], []
    for k in range(4):
        kind = {"config_type": "with" if k < 2 else "without", "energy": -1.0}
        stress, error = rng.normal(size=(2, 3, 3))
        frame = Structure([29], np.zeros((1, 3)), 3 * np.eye(3), True, stress=stress, **kind)
        predicted.append(dataclasses.replace(frame, stress=stress + error))
        structures.append(frame if k < 2 else dataclasses.replace(frame, stress=None))
        errors.append(error)
    rows = {row["group"]: row for row in error_table(structures, predicted)}
    for group in ("all", "config_type with"):
        assert_rmse(rows[group], "stress_rmse_mev_per_a3", errors[:2])
        mae = 1e3 * np.abs(errors[:2]).mean()
        assert rows[group]["stress_mae_mev_per_a3"] == pytest.approx(mae, rel=1e-9)
        assert rows[group]["stress_frames"] == 2
    for group in ("config_type without", "element Cu"):
        assert rows[group]["stress_mae_mev_per_a3"] is None


@pytest.mark.usefixtures("pictures")
def test_errors_are_those_of_the_labels_that_are_known(run, typed, tmp_path, command):
    """With the numbers of frames that have each label, in every group."""
    whole, out, frames = tmp_path / "whole", tmp_path / "out", ase.io.read(typed, ":")
    printed = command("evaluate", run, typed, "--out", whole).out
    assert "config_type slab[/x]" in printed
    assert "of 20 frames" not in printed
    predictions = ase.io.read(whole / "predictions.xyz", ":")
    pairs = list(zip(predictions, frames, strict=True))
    energy = [(p.get_potential_energy() - r.get_potential_energy()) / 3 for p, r in pairs]
    forces = np.array([p.get_forces() - r.get_forces() for p, r in pairs])
    rows = grouped(whole)
    kinds = {"config_type slab[/x]", "config_type slab[red]"}
    assert set(rows) == {"all", *kinds, "element H", "element O"}
    of_oxygen = forces[:, frames[0].numbers == 8]
    for group, name, errors in (
        ("all", "energy_rmse_mev_per_atom", energy),
        ("config_type slab[/x]", "energy_rmse_mev_per_atom", energy[:8]),
        ("config_type slab[red]", "forces_rmse_mev_per_a", forces[8:]),
        ("element O", "forces_rmse_mev_per_a", of_oxygen),
    ):
        assert_rmse(rows[group], name, errors)
    mae = 1e3 * np.mean(np.abs(forces))
    assert float(rows["all"]["forces_mae_mev_per_a"]) == pytest.approx(mae, rel=1e-5)
    assert f"{mae:>8.2f} " in next(line for line in printed.splitlines() if "all" in line)
    assert rows["element H"]["energy_mae_mev_per_atom"] == ""
    assert matplotlib.image.imread(whole / "parity.png").std() > 0

    file = tmp_path / "some.xyz"
    for name, some in (("forces", frames[:3]), ("energy", frames[5:12])):
        for atoms in some:
            del atoms.calc.results[name]
    ase.io.write(file, frames, format="extxyz")
    printed = command("evaluate", run, file, "--out", out).out
    assert "energy in 13 of 20 frames\nforces in 17 of 20 frames\n" in printed
    rows = grouped(out)
    for group, counts in (
        ("all", ("20", "13", "17")),
        ("config_type slab[/x]", ("8", "5", "5")),
        ("config_type slab[red]", ("12", "8", "12")),
        ("element O", ("20", "0", "17")),
    ):
        assert tuple(rows[group][f"{n}frames"] for n in ("", "energy_", "forces_")) == counts
    assert_rmse(rows["all"], "energy_rmse_mev_per_atom", [*energy[:5], *energy[12:]])
    assert_rmse(rows["all"], "forces_rmse_mev_per_a", forces[3:])
    predictions = ase.io.read(out / "predictions.xyz", ":")
    assert ["reference_forces" in p.arrays for p in predictions] == [False] * 3 + [True] * 17
    assert "reference_energy" not in predictions[5].info


def test_a_file_without_energies(run, water, tmp_path, command):
    frames, file, out = ase.io.read(water, ":"), tmp_path / "forces.xyz", tmp_path / "out"

    def evaluated(*more, code=0):
        ase.io.write(file, frames, format="extxyz")
        return command("evaluate", run, file, "--out", *more, code=code)

    for atoms in frames:
        atoms.info["other"] = atoms.calc.results.pop("energy")
    message = "energy in 0 of 20 frames: no energy under the key 'energy'; candidates: other"
    assert message in evaluated(out).out
    row = grouped(out)["all"]
    assert row["energy_mae_mev_per_atom"] == ""
    assert float(row["forces_mae_mev_per_a"]) > 0
    message = "in none of 20 frames: no energy under the key 'E'"
    assert message in evaluated(tmp_path / "no", "--energy-key", "E", code=2).err
    for atoms in frames:
        del atoms.calc.results["forces"]
    assert "no energy under the key 'energy'" in evaluated(tmp_path / "no", code=2).err
    assert not (tmp_path / "no").exists()


def test_isolated_atoms_are_left_out(run, water, tmp_path, command):
    frames, file, out = ase.io.read(water, ":3"), tmp_path / "atoms.xyz", tmp_path / "out"
    atom = ase.Atoms("H", info={"config_type": "IsolatedAtom", "energy": 3.0})
    ase.io.write(file, [atom, *frames], format="extxyz")
    assert "left out: 1" in command("evaluate", run, file, "--out", out).out
    assert len(ase.io.read(out / "predictions.xyz", ":")) == 3
    frames[1].numbers[0] = 47  # also of its labels
    ase.io.write(file, [atom, *frames[:2]], format="extxyz")
    assert f"{file}, frame 2: Ag" in command("evaluate", run, file, code=2).err
    ase.io.write(file, [atom], format="extxyz")
    assert "isolated atoms only" in command("evaluate", run, file, "--out", out, code=2).err


def test_results_of_another_file_of_the_same_name_are_kept(run, typed, tmp_path, command):
    other = tmp_path / "elsewhere" / typed.name
    other.parent.mkdir()
    shutil.copy(typed, other)
    for _ in range(2):
        command("evaluate", run, typed)
    folder = run / "evaluation-md.300K"
    assert (folder / "file.txt").read_text().strip() == str(typed)
    before = (folder / "errors.csv").stat()
    assert "with out=" in command("evaluate", run, other, code=2).err
    assert (folder / "errors.csv").stat() == before
    command("evaluate", run, other, "--out", tmp_path / "out")


def test_warnings_are_lines(run, water, tmp_path, command, monkeypatch):
    module = importlib.import_module("eqfuse.inference.predict")
    monkeypatch.setattr(module, "unlike_training", lambda *_: ["not as trained"])
    printed = command("evaluate", run, water, "--out", tmp_path / "out").err
    assert printed == "warning: not as trained\n"


def test_labels_are_those_of_the_training(capsys):
    """Unless other names are given; a file may hold energies of several methods."""
    given = argparse.Namespace(energy_key=None, forces_key="other", stress_key=None)
    keys = label_keys(given, {"energy_key": "dft_energy", "forces_key": "dft_forces"})
    assert keys == ("dft_energy", "other", "stress", None)
    assert "energy under the key 'dft_energy'" in capsys.readouterr().out


def test_a_network_is_one_file_for_the_calculator_and_for_evaluation(run, water, tmp_path, command):
    """As it is sent to someone who has no folder of the run."""
    file = shutil.copy(run / "checkpoints" / "best.safetensors", tmp_path / "water.safetensors")
    atoms = ase.io.read(water, 0)
    energies = [Calculator(network).get_potential_energy(atoms) for network in (run, file)]
    assert energies[0] == energies[1]
    command("evaluate", file, water)
    assert (tmp_path / f"evaluation-{water.stem}" / "errors.csv").exists()
    command("evaluate", file, water)
    other = shutil.copy(file, tmp_path / "other.safetensors")
    assert f"{water}, by {file}; give a folder" in command("evaluate", other, water, code=2).err


@pytest.mark.parametrize(
    ("factor", "expected"), [(1, None), (-1, "as of the opposite sign"), (1602.18, "as in kbar")]
)
def test_stress_that_fits_better_of_another_sign_or_unit(
    trained, tmp_path, command, rng, factor, expected
):
    """The labels are the network's own, and the stress has another sign or unit."""
    frames, calculator = [], Calculator(trained)
    for seed in range(8):
        atoms = copper_cell(seed=seed)
        strain = np.eye(3) + 0.02 * rng.normal(size=(3, 3))
        atoms.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        frames.append(labelled(atoms, ("energy", "forces", "stress"), calculator))
        frames[-1].calc.results["stress"] *= factor
    file = tmp_path / "labelled.xyz"
    ase.io.write(file, frames, format="extxyz")
    shown = command("evaluate", trained, file, "--out", tmp_path / "out").err
    assert f"times better {expected}" in shown if expected else shown == ""
