"""A run on copper of three epochs, for dynamics."""

import pytest

from tests.small_runs import train_on_copper


@pytest.fixture(scope="module")
def run(copper, tmp_path_factory):
    return train_on_copper(copper, tmp_path_factory, "dtype=float64", "epochs=3")
