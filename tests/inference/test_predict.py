"""Predictions of a run and of a committee, in Python and by `eqfuse predict`."""

import ase.build
import ase.io
import numpy as np
import pytest

import eqfuse
from eqfuse.cli import main as eqfuse_command
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


def test_a_file_has_what_the_calculator_gives(committee, unlabelled, tmp_path, capsys, monkeypatch):
    """To the digits that extended XYZ has: all of the energy, 8 decimals for each atom."""
    monkeypatch.chdir(tmp_path)
    run = committee / "seed=0"
    assert eqfuse_command(["predict", str(run), str(unlabelled)]) == 0
    assert "4 frames of 24 atoms" in capsys.readouterr().out
    frames = ase.io.read(tmp_path / "unlabelled-predicted.xyz", ":")
    for atoms, found in zip(ase.io.read(unlabelled, ":"), frames, strict=True):
        atoms.calc = eqfuse.Calculator(run)
        assert found.get_potential_energy() == pytest.approx(
            atoms.get_potential_energy(), abs=1e-12
        )
        np.testing.assert_allclose(found.get_forces(), atoms.get_forces(), rtol=0, atol=1e-8)
        energies = found.calc.results["energies"]
        np.testing.assert_allclose(energies, atoms.get_potential_energies(), rtol=0, atol=1e-8)
        np.testing.assert_allclose(found.get_stress(), atoms.get_stress(), rtol=0, atol=1e-12)
        assert "energy_spread" not in found.info
    assert [atoms.info.get("config_type") for atoms in frames] == [None, "second", None, None]
    assert not list(tmp_path.glob(".*partial*"))


@pytest.mark.parametrize("suffix", [".xyz", ".traj", ".db"])
def test_formats_are_chosen_by_the_suffix(committee, copper, tmp_path, suffix):
    """And replaced, not added to; labels of the file are references in extended XYZ."""
    out, run = tmp_path / f"out{suffix}", committee / "seed=0"
    expected, given = eqfuse.predict(run, copper), ase.io.read(copper, ":")
    for _ in range(2):
        assert eqfuse_command(["predict", str(run), str(copper), str(out)]) == 0
    for s, p in zip(read_structures(out), expected, strict=True):
        assert s.energy == pytest.approx(p.energy, abs=1e-12)
        np.testing.assert_allclose(s.forces, p.forces, atol=1e-8)
    for found, labelled in zip(
        ase.io.read(out, ":") if suffix == ".xyz" else [], given, strict=False
    ):
        assert found.info["reference_energy"] == labelled.get_potential_energy()
        forces = found.arrays["reference_forces"]
        np.testing.assert_allclose(forces, labelled.get_forces(), atol=1e-8)


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


def test_bad_input_is_refused_in_one_line(committee, unlabelled, water, tmp_path, capsys):
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
        assert eqfuse_command(["predict", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert part in error
        assert len(error.splitlines()) == 1
    assert not list(tmp_path.glob("*out*"))
