"""A run on copper of three epochs, for dynamics."""

import numpy as np
import pytest

from tests.small_runs import rows_of, train_on_copper


def table(folder) -> dict[str, np.ndarray]:
    """Return the columns of the thermo.csv of a simulation."""
    rows = rows_of(folder / "thermo.csv")
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


@pytest.fixture(scope="session")
def run(copper, tmp_path_factory):
    return train_on_copper(copper, tmp_path_factory, "dtype=float64", "epochs=3")
