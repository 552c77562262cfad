"""A run with tables of radial functions, and how it changes them."""

import csv
import shutil

import numpy as np
import pytest

from eqfuse.cli import main as command
from eqfuse.data.readers import read_structures
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from eqfuse.train import load_run
from eqfuse.train.main import main
from eqfuse.train.run.checkpoint import module_of
from tests.small_runs import TINY


@pytest.fixture(scope="module")
def trained(copper, tmp_path_factory):
    """Folder of a run of one epoch with tables."""
    run = tmp_path_factory.mktemp("runs") / "run"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "model.radial=table", "epochs=1"]
    assert main([*settings, f"run={run}"]) == 0
    return run


def test_a_table_is_as_good_as_the_networks(trained, copper, capsys):
    [frame] = read_structures(copper)[:1]
    table = Network(trained, dtype="float64")
    network = Network(trained, dtype="float64", radial="network")
    assert ("tables" in table.params, "tables" in network.params) == (True, False)
    [found], [exact] = predict(table, [frame]), predict(network, [frame])
    difference = np.abs(found.forces - exact.forces).max() / np.abs(exact.forces).max()
    assert 1e-13 < difference < 2e-6
    with pytest.raises(ValueError, match="radial must be one of auto, network, table, got 'none'"):
        Network(trained, radial="none")

    assert command(["info", str(trained)]) == 0
    assert "  radial   tables of 128 knots" in capsys.readouterr().out


def test_a_run_changes_how_it_computes_radial_functions(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    assert main([f"resume={run}", "epochs=2", "model.radial=network"]) == 0
    assert Network(run).module.potential.model.radial == "network"
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2"]


def test_another_number_of_knots_is_one_of_the_run_that_starts(trained, copper, tmp_path, capsys):
    settings = [f"start_from={trained}", "data=extxyz", f"data.path={copper}", "data.val=4"]
    settings += ["data.batch_size=4", "steps=1", f"run={tmp_path / 'run'}"]
    assert main([*settings, "model.radial_knots=3"]) == 2
    assert "radial_knots must be at least 4" in capsys.readouterr().err
    assert main([*settings, "model.radial_knots=64"]) == 0
    assert Network(tmp_path / "run").module.potential.model.radial_knots == 64


def test_networks_whose_knots_followed_from_a_bound_keep_them(trained):
    metadata = load_run(trained)[2]
    older = metadata["model_fields"] | {"radial_knots": None, "radial_accuracy": 1e-6}
    chosen = {"radial": {"knots": 192, "error": 7e-7, "bound": 1e-6}}
    for more, knots in ((chosen, 192), ({}, 128)):
        plain = {k: v for k, v in metadata.items() if k != "radial"} | more
        assert module_of(plain | {"model_fields": older}, "xla").model.radial_knots == knots


def test_info_refuses_what_is_no_run(tmp_path, capsys):
    assert command(["info", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
