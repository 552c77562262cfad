"""Committees: their calculator, errors against spread, and frames that they select."""

import ase.io
import matplotlib.image
import numpy as np
import pytest

import eqfuse
from eqfuse.cli import main as eqfuse_command
from eqfuse.inference.network import load_networks


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
def test_errors_against_spread(committee, copper, tmp_path, capsys):
    out = tmp_path / "out"
    assert eqfuse_command(["evaluate", str(committee), str(copper), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    predicted = ase.io.read(out / "predictions.xyz", ":")
    spread = np.concatenate([atoms.arrays["forces_spread"] for atoms in predicted])
    error = np.concatenate(
        [np.linalg.norm(p.get_forces() - p.arrays["reference_forces"], axis=1) for p in predicted]
    )
    ratio = np.sqrt(np.mean(error**2) / np.mean(spread**2))
    assert f"errors of the forces are {ratio:.2g} times the spread" in printed
    assert matplotlib.image.imread(out / "spread.png").std() > 0
    alone = ["evaluate", str(committee / "seed=0"), str(copper), "--out", str(tmp_path / "1")]
    assert eqfuse_command(alone) == 0
    assert not (tmp_path / "1" / "spread.png").exists()


def test_frames_of_the_largest_spread_are_selected(committee, copper, tmp_path, capsys):
    out = tmp_path / "chosen.xyz"
    spreads = [p.spread.forces.max() for p in eqfuse.predict(committee, copper)]
    order = np.argsort(spreads)[::-1]
    assert eqfuse_command(["select", str(committee), str(copper), str(out), "--number", "3"]) == 0
    assert "3 of 12 frames" in capsys.readouterr().out
    frames, pool = ase.io.read(out, ":"), ase.io.read(copper, ":")
    assert [atoms.info["frame"] for atoms in frames] == order[:3].tolist()
    for atoms in frames:
        given = pool[atoms.info["frame"]]
        np.testing.assert_allclose(atoms.positions, given.positions, rtol=0, atol=1e-8)
    most = ["--most", str((spreads[order[0]] + spreads[order[1]]) / 2)]
    assert eqfuse_command(["select", str(committee), str(copper), str(out), *most]) == 0
    assert [atoms.info["frame"] for atoms in ase.io.read(out, ":")] == order[1:].tolist()
    for arguments, part in (
        ([committee / "seed=0", copper, out], "is one network, and a spread needs several"),
        ([committee, copper, out, "--most", "0"], "above most=0.0"),
        ([tmp_path / "none", copper, out], "none"),
    ):
        assert eqfuse_command(["select", *map(str, arguments)]) == 2
        assert part in capsys.readouterr().err
