"""A run with tables of radial functions: what it prints, and what reads its network."""

import re

import numpy as np
import pytest

from eqfuse.cli import main as command
from eqfuse.data.readers import read_structures
from eqfuse.inference.predict import Network, predict
from eqfuse.train.main import main
from tests.small_runs import TINY


def test_knots_are_chosen_reported_and_kept(copper, tmp_path, capsys):
    run = tmp_path / "run"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "model.radial=table", "epochs=1"]
    assert main([*settings, f"run={run}"]) == 0
    text = capsys.readouterr().out
    assert "  radial   a table: radial=table" in text
    accuracy = r"slopes of tables to (\S+) of their largest with (\d+) knots"
    (at_start, knots), (at_end, same) = re.findall(accuracy, text)
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
    [(error, same)] = re.findall(accuracy, text)
    assert same == knots
    np.testing.assert_allclose(float(error), float(at_end), rtol=1)
    assert f"({at_start} when training began)" in text


def test_info_refuses_what_is_no_run(tmp_path, capsys):
    assert command(["info", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
