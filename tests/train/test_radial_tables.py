"""A run with tables of radial functions."""

import numpy as np
import pytest

from eqfuse.cli import main as command
from eqfuse.data.readers import read_structures
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from eqfuse.train.main import main
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


def test_info_refuses_what_is_no_run(tmp_path, capsys):
    assert command(["info", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err
