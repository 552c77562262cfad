"""A run on copper of three epochs, for dynamics."""

import pytest

from eqfuse.train.main import main
from tests.small_runs import TINY


@pytest.fixture(scope="module")
def run(copper, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "copper"
    settings = ["data=extxyz", f"data.path={copper}", *TINY, "dtype=float64", "epochs=3"]
    assert main([*settings, "cutoff=3.6", f"run={folder}"]) == 0
    return folder
