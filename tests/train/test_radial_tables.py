"""A run with tables of radial functions: what it prints, and what reads its network."""

import contextlib
import csv
import io
import re
import shutil

import numpy as np
import pytest

from eqfuse.cli import main as command
from eqfuse.data.readers import read_structures
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from eqfuse.train import read_metadata
from eqfuse.train.main import main
from tests.small_runs import TINY

ACCURACY = r"slopes of tables to (\S+) of their largest with (\d+) knots"


@pytest.fixture(scope="module")
def trained(copper, tmp_path_factory):
    """Folder of a run of one epoch with tables, and what it printed."""
    run = tmp_path_factory.mktemp("runs") / "run"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "model.radial=table", "epochs=1"]
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main([*settings, f"run={run}"]) == 0
    return run, text.getvalue()


def test_knots_are_chosen_reported_and_kept(trained, copper, capsys):
    run, text = trained
    assert "  radial   a table: radial=table" in text
    (at_start, knots), (at_end, same) = re.findall(ACCURACY, text)
    assert knots == same
    assert 0 < float(at_start) <= 1e-6
    assert 0 < float(at_end) < 2e-6  # after three steps

    [frame] = read_structures(copper)[:1]
    table, network = Network(run, dtype="float64"), Network(run, dtype="float64", radial="network")
    assert table._potential.model.radial_knots == int(knots)
    assert ("tables" in table._params, "tables" in network._params) == (True, False)
    [found], [exact] = predict(table, [frame]), predict(network, [frame])
    difference = np.abs(found.forces - exact.forces).max() / np.abs(exact.forces).max()
    assert 1e-13 < difference < 2e-6
    with pytest.raises(ValueError, match="radial must be one of auto, network, table, got 'none'"):
        Network(run, radial="none")

    assert command(["info", str(run)]) == 0
    text = capsys.readouterr().out
    [(error, same)] = re.findall(ACCURACY, text)
    assert same == knots
    np.testing.assert_allclose(float(error), float(at_end), rtol=1)
    assert f"({at_start} when training began)" in text


def test_a_run_changes_how_it_computes_radial_functions(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "run")
    assert main([f"resume={run}", "epochs=2", "model.radial=network"]) == 0
    assert not re.findall(ACCURACY, capsys.readouterr().out)
    assert "radial" not in read_metadata(run)
    assert Network(run)._potential.model.radial == "network"
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]


@pytest.mark.slow
def test_a_run_goes_on_with_the_knots_of_another_bound(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "run")
    for epochs, more in ((2, ["model.radial_accuracy=1e-8"]), (3, ["model.radial=network"])):
        assert main([f"resume={run}", f"epochs={epochs}", *more]) == 0
    text = capsys.readouterr().out
    [(error, knots), _] = re.findall(ACCURACY, text)
    assert float(error) <= 1e-8
    assert int(knots) > int(re.findall(ACCURACY, trained[1])[0][1])


@pytest.mark.slow
def test_knots_are_chosen_anew_for_a_network_to_start_from(trained, copper, tmp_path, capsys):
    settings = [f"start_from={trained[0]}", "data=extxyz", f"data.path={copper}", "data.val=4"]
    settings += ["data.batch_size=4", "steps=1", f"run={tmp_path / 'run'}"]
    assert main([*settings, "model.radial_accuracy=1e-8"]) == 0
    [(_, knots), _] = re.findall(ACCURACY, capsys.readouterr().out)
    assert int(knots) > int(re.findall(ACCURACY, trained[1])[0][1])
    assert Network(tmp_path / "run")._potential.model.radial_knots == int(knots)
    assert main([*settings[:-1], "model.radial_knots=3"]) == 2
    assert "radial_knots must be at least 4" in capsys.readouterr().err


def test_info_refuses_what_is_no_run(tmp_path, capsys):
    assert command(["info", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
