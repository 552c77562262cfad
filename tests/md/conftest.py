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


BAD = (
    (lambda a: a.positions.__setitem__(1, a.positions[0] + 0.1), "atoms 0 and 1 overlap"),
    (lambda a: a.positions.__setitem__((1, 0), np.nan), "positions"),
    (lambda a: a.set_atomic_numbers([29, 29, 29, 79]), "Au not among"),
    (lambda a: a.set_cell(None), "lattice"),
)
"""Changes of four atoms of copper in a cell, and parts of the errors of what they become."""
