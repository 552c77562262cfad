"""Predictions of a run and of a committee, errors against spread, and frames that are selected."""

import ase.build
import ase.io
import matplotlib.image
import numpy as np
import pytest

import eqfuse
from eqfuse.data import DataError, read_structures
from eqfuse.inference.network import find_runs, load_networks
from eqfuse.runs.errors import CheckpointError


@pytest.fixture
def unlabelled(copper, tmp_path):
    """Path of cells without labels, of which one has a config_type and two are larger."""
    frames = [atoms.copy() for atoms in ase.io.read(copper, ":4")]
    frames[1].info["config_type"] = "second"
    frames[2:] = [atoms.repeat((2, 1, 1)) for atoms in frames[2:]]
    ase.io.write(tmp_path / "unlabelled.xyz", frames, format="extxyz")
    return tmp_path / "unlabelled.xyz"


def test_a_file_has_what_the_calculator_gives(
    committee, unlabelled, tmp_path, command, monkeypatch
):
    """To the digits that extended XYZ has: all of the energy, 8 decimals for each atom."""
    monkeypatch.chdir(tmp_path)
    run = committee / "seed=0"
    assert "4 frames of 24 atoms" in command("predict", run, unlabelled).out
    frames = ase.io.read(tmp_path / "unlabelled-predicted.xyz", ":")
    for atoms, found in zip(ase.io.read(unlabelled, ":"), frames, strict=True):
        atoms.calc = eqfuse.Calculator(run)
        energy = atoms.get_potential_energy()
        assert found.get_potential_energy() == pytest.approx(energy, abs=1e-12)
        np.testing.assert_allclose(found.get_forces(), atoms.get_forces(), rtol=0, atol=1e-8)
        energies = found.calc.results["energies"]
        np.testing.assert_allclose(energies, atoms.get_potential_energies(), rtol=0, atol=1e-8)
        np.testing.assert_allclose(found.get_stress(), atoms.get_stress(), rtol=0, atol=1e-12)
        assert "energy_spread" not in found.info
    assert [atoms.info.get("config_type") for atoms in frames] == [None, "second", None, None]
    assert not list(tmp_path.glob(".*partial*"))


@pytest.mark.parametrize("suffix", [".xyz", ".traj", ".db", ".json"])
@pytest.mark.parametrize("name", [None, "initial_magmoms", "initial_charges"])
def test_formats_are_chosen_by_the_suffix(committee, copper, tmp_path, command, suffix, name):
    """And replaced, not added to; with charges or moments of the atoms, too."""
    file, out, run = copper, tmp_path / f"out{suffix}", committee / "seed=0"
    if name is not None:
        frames, file = ase.io.read(copper, ":"), tmp_path / "in.traj"
        for atoms in frames:
            atoms.set_array(name, np.eye(len(atoms))[0])
        ase.io.write(file, frames)
    for _ in range(2):
        command("predict", run, file, out)
    for s, p in zip(read_structures(out), eqfuse.predict(run, copper), strict=True):
        assert s.energy == pytest.approx(p.energy, abs=1e-12)
        np.testing.assert_allclose(s.forces, p.forces, atol=1e-8)


def test_atoms_are_predicted_without_their_labels(committee, copper):
    """Also where these are of another calculator, or are not finite."""
    run, frames = committee / "seed=0", ase.io.read(copper, ":3")
    frames[1].calc.results["forces"][0, 0] = np.nan
    [alone] = eqfuse.predict(run, frames[1])
    together = eqfuse.predict(run, frames, batch_size=2)
    np.testing.assert_allclose(together[1].forces, alone.forces, rtol=0, atol=1e-12)
    assert together[1].energy == pytest.approx(alone.energy, abs=1e-12)
    with pytest.raises(TypeError, match="dtype: only of a run that is read"):
        eqfuse.predict(load_networks(run), frames, dtype="float32")
    with pytest.raises(TypeError, match="typo"):
        eqfuse.predict(run, frames, typo=1)
    with pytest.raises(DataError, match="no structures"):
        eqfuse.predict(run, [])
    with pytest.raises(DataError, match="atoms 1: H, O not among"):
        eqfuse.predict(run, [frames[0], ase.build.molecule("H2O")])


def test_a_name_of_several_runs_is_all_of_them(committee, tmp_path):
    assert find_runs(committee) == [committee / "seed=0", committee / "seed=1"]
    assert find_runs([committee / "seed=1", "other"]) == [committee / "seed=1", "other"]
    with pytest.raises(CheckpointError, match="no run matches"):
        find_runs(str(tmp_path / "none*"))
    with pytest.raises(CheckpointError, match="given twice"):
        load_networks([committee / "seed=0", committee / "seed=0"])


def test_bad_input_is_refused_in_one_line(committee, unlabelled, water, tmp_path, command):
    run, xyz = committee / "seed=0", tmp_path / "out.xyz"
    for arguments, part in (
        ([run, water, xyz], "H, O not among"),
        ([run, tmp_path / "none.xyz", xyz], "no such file"),
        ([tmp_path, unlabelled, xyz], "no checkpoint"),
        ([run, unlabelled, unlabelled], "is the file that is read"),
        ([run, unlabelled, tmp_path], "is a folder"),
        ([run, unlabelled, "/dev/full"], "is a device or a pipe"),
        ([run, unlabelled, tmp_path / "no" / "out.xyz"], "there is no folder"),
        ([run, unlabelled, tmp_path / "out.unknown"], "ASE writes no such format"),
        ([run, unlabelled, tmp_path / "out"], "ASE writes no such format"),
        ([run, f"{unlabelled}@99", xyz], "@99 has no frames; give another index"),
        ([run, unlabelled, tmp_path / "POSCAR"], "holds one frame"),
        ([run, unlabelled, xyz, "backend=foo"], "error: backend 'foo' is unknown"),
    ):
        error = command("predict", *arguments, code=2).err
        assert part in error
        assert len(error.splitlines()) == 1
    assert not list(tmp_path.glob("*out*"))


def test_a_calculator_of_mean_and_spread(committee, copper):
    atoms, names = ase.io.read(copper, 0), ("energy", "forces", "stress")
    with pytest.raises(ValueError, match="a committee of 2 runs; descriptors are of one"):
        eqfuse.descriptors(committee, atoms)
    atoms.calc = eqfuse.Committee(committee)
    runs = [committee / "seed=0", committee / "seed=1"]
    assert atoms.calc.name == committee.name
    assert eqfuse.Committee(runs).name == "seed=0, seed=1"
    members = [eqfuse.Calculator(run) for run in runs]
    mean, difference = {}, {}
    for name in names:
        one, other = (member.get_property(name, atoms) for member in members)
        mean[name], difference[name] = (one + other) / 2, np.abs(one - other) / np.sqrt(2)
        np.testing.assert_allclose(atoms.calc.get_property(name, atoms), mean[name], atol=1e-12)
    assert difference["energy"] > 1e-6
    results, forces = atoms.calc.results, np.linalg.norm(difference["forces"], axis=1)
    assert results["energy_spread"] == pytest.approx(difference["energy"], rel=1e-9)
    np.testing.assert_allclose(results["forces_spread"], forces, rtol=1e-9)
    np.testing.assert_allclose(results["stress_spread"], difference["stress"], rtol=1e-7)
    for name in (committee, f"{committee}/seed=*", runs, load_networks(runs)):
        [predicted] = eqfuse.predict(name, atoms)
        assert predicted.energy == pytest.approx(mean["energy"], abs=1e-9)
        np.testing.assert_allclose(predicted.spread.forces, forces, rtol=1e-9)
    with pytest.raises(ValueError, match="a committee needs several runs"):
        eqfuse.Committee(committee / "seed=0")


@pytest.mark.usefixtures("pictures")
def test_errors_against_spread(committee, copper, tmp_path, command):
    out = tmp_path / "out"
    printed = command("evaluate", committee, copper, "--out", out).out
    predicted = ase.io.read(out / "predictions.xyz", ":")
    spread = np.concatenate([atoms.arrays["forces_spread"] for atoms in predicted])
    error = np.concatenate(
        [np.linalg.norm(p.get_forces() - p.arrays["reference_forces"], axis=1) for p in predicted]
    )
    ratio = np.sqrt(np.mean(error**2) / np.mean(spread**2))
    assert f"errors of the forces are {ratio:.2g} times the spread" in printed
    assert matplotlib.image.imread(out / "spread.png").std() > 0
    command("evaluate", committee / "seed=0", copper, "--out", tmp_path / "1")
    assert not (tmp_path / "1" / "spread.png").exists()


def test_frames_of_the_largest_spread_are_selected(committee, copper, tmp_path, command):
    out = tmp_path / "chosen.xyz"
    spreads = [p.spread.forces.max() for p in eqfuse.predict(committee, copper)]
    order = np.argsort(spreads)[::-1]
    assert "3 of 12 frames" in command("select", committee, copper, out, "--number", 3).out
    frames, pool = ase.io.read(out, ":"), ase.io.read(copper, ":")
    assert [atoms.info["frame"] for atoms in frames] == order[:3].tolist()
    for atoms in frames:
        given = pool[atoms.info["frame"]]
        np.testing.assert_allclose(atoms.positions, given.positions, rtol=0, atol=1e-8)
    command("select", committee, copper, out, "--most", (spreads[order[0]] + spreads[order[1]]) / 2)
    assert [atoms.info["frame"] for atoms in ase.io.read(out, ":")] == order[1:].tolist()
    command("select", committee, f"{copper}@{order[0]}:", out, "--number", 1)
    assert ase.io.read(out).info["frame"] == order[0]
    for arguments, part in (
        ([committee / "seed=0", copper, out], "is one network, and a spread needs several"),
        ([committee, copper, out, "--most", "0"], "above most=0.0"),
        ([tmp_path / "none", copper, out], "none"),
    ):
        assert part in command("select", *arguments, code=2).err
