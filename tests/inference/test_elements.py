"""Networks of many elements compute with those of the atoms alone, to the same results."""

import ase
import jax
import numpy as np
import pytest

import eqfuse
from eqfuse.inference import network as module
from eqfuse.inference import tables
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from tests.lammps.untrained import untrained_run

NUMBERS = tuple(range(13, 30))


def cluster(numbers):
    return ase.Atoms(numbers, [[0, 0, 0], [2.1, 0, 0.2], [0.3, 2.3, 0], [1.9, 1.8, 1.7]])


@pytest.mark.parametrize("model", ["nequip", "mace", "allegro"])
def test_results_are_those_of_the_whole_network(model, tmp_path, monkeypatch):
    run = untrained_run(tmp_path, model, NUMBERS)
    calculator = eqfuse.Calculator(run, radial="network")
    first, other = cluster([13, 29, 29, 13]), cluster([13, 29, 14, 13])
    found = []
    for atoms, species in ((first, (13, 29)), (other, NUMBERS), (first, NUMBERS)):
        calculator.calculate(atoms)
        assert calculator._evaluator.network.species == species
        found.append((calculator.results["energies"], calculator.results["forces"]))
    assert calculator.species == NUMBERS
    whole = eqfuse.Calculator(run, radial="network")
    monkeypatch.setattr(module, "MANY", 100)
    for atoms, results in zip((first, other, first), found, strict=True):
        whole.calculate(atoms)
        assert whole._evaluator.network is whole.network
        for name, values in zip(("energies", "forces"), results, strict=True):
            # sums of the same numbers, in another program
            np.testing.assert_allclose(values, whole.results[name], rtol=0, atol=1e-12)


def test_small_networks_and_unknown_elements_stay_whole(tmp_path):
    small = Network(untrained_run(tmp_path, numbers=(13, 14, 29)), radial="network")
    assert small.of_elements([13]) is small
    large = Network(untrained_run(tmp_path, "mace", NUMBERS), radial="network")
    assert large.of_elements([1, 13]) is large
    assert large.of_elements(NUMBERS) is large
    with pytest.raises(eqfuse.data.DataError, match="H not among the model"):
        predict(large, cluster([1, 13, 13, 13]))


def test_few_elements_have_tables_where_all_would_take_too_much(tmp_path, monkeypatch):
    """Allegro has tables of each pair of elements."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tables, "KNOTS", (1024,))
    run = untrained_run(tmp_path, "allegro", (13, 14, 29))
    all_pairs = Network(run)
    size = sum(table.nbytes for table in jax.tree.leaves(all_pairs.params["tables"]))
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(tables, "MOST_BYTES", size // 2)
    monkeypatch.setattr(module, "MANY", 3)
    network = Network(run)
    assert "tables of 9 pairs of species would take" in network.radial
    assert "tables" not in network.params
    smaller = network.of_elements([29, 13])
    assert smaller.radial.startswith("tables of 1024 knots")
    [found], [expected] = (predict(n, cluster([13, 29, 29, 13])) for n in (smaller, all_pairs))
    np.testing.assert_allclose(found.forces, expected.forces, rtol=0, atol=1e-12)
