"""Tables of radial functions, measured once; networks of the elements that the atoms have."""

import errno
import os
import tempfile
from unittest import mock

import ase
import jax
import numpy as np
import pytest

import eqfuse
from eqfuse.inference import network as module
from eqfuse.inference import tables
from eqfuse.inference.network import Network
from eqfuse.inference.predict import predict
from eqfuse.models.radial_table import RadialTable
from tests.lammps.untrained import untrained_run

MODELS = ["nequip", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mace", "allegro"))]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Return an empty folder of tables."""
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "radial"


@pytest.fixture
def run(tmp_path):
    return untrained_run(tmp_path)


def forces(network, lengths):
    """Return the forces on the second atom of pairs of aluminium and copper, [lengths, 3]."""
    pairs = [ase.Atoms([13, 29], [[0, 0, 0], [d, 0, 0]]) for d in lengths]
    return np.array([p.forces[1] for p in predict(network, pairs, batch_size=100)])


def scale_of(forces):
    """Return the largest force at a length or beyond, or a thousandth of the largest of all."""
    largest = np.abs(forces).max(axis=1)
    beyond = np.maximum.accumulate(largest[::-1])[::-1]
    return np.maximum(beyond, 1e-3 * largest.max())[:, None]


@pytest.mark.parametrize("model", MODELS)
def test_forces_are_the_networks_at_every_length(model, tmp_path, monkeypatch):
    """From far below bonds to the cutoff; and they are not with a coarse table that is let pass."""
    run = untrained_run(tmp_path, model)
    monkeypatch.setitem(predict.__globals__, "require_apart", lambda structure: None)
    lengths = np.concatenate([[0.05, 0.1, 0.2], np.linspace(0.3, 3.9, 60), [3.95, 3.98, 3.99]])
    exact = forces(Network(run, radial="network"), lengths)
    scale = scale_of(exact)

    def error():
        network = Network(run)
        assert "tables of" in network.radial
        assert "tables" in network.params
        return (np.abs(forces(network, lengths) - exact) / scale).max()

    assert 1e-14 < error() <= tables.BOUNDS["float64"]
    monkeypatch.setattr(tables, "KNOTS", (32,))
    monkeypatch.setitem(tables.BOUNDS, "float64", 1.0)
    assert error() > 1e-7


def test_tables_of_float32_have_as_many_knots_as_float32_needs(run, monkeypatch):
    """Fewer than those of float64; their error is within the bound, beside that of rounding."""
    monkeypatch.setattr(tables, "KNOTS", (32, 64, 96, 128, 192, 256))
    found = {dtype: Network(run, dtype=dtype) for dtype in ("float64", "float32")}
    knots = {dtype: n.module.potential.model.radial_knots for dtype, n in found.items()}
    assert 32 < knots["float32"] < knots["float64"]
    lengths = np.linspace(0.5, 3.99, 40)
    exact = forces(Network(run, radial="network"), lengths)
    scale = scale_of(exact)
    rounding, error = (
        (np.abs(forces(network, lengths) - exact) / scale).max()
        for network in (Network(run, radial="network", dtype="float32"), found["float32"])
    )
    assert 0 < error < rounding + tables.BOUNDS["float32"]


def test_one_program_makes_the_tables_of_all_numbers_of_knots(run, monkeypatch):
    programs = []
    monkeypatch.setattr(tables, "KNOTS", (32, 64, 512))

    def count(event, seconds, *, fun_name="", **_):
        if event.endswith("backend_compile_duration"):
            programs.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        found = Network(run)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert found.module.potential.model.radial_knots == 512
    assert [name for name in programs if "jets" in name] == ["jit(jets)"]


def test_a_coarse_table_is_refused(run, monkeypatch, command):
    with pytest.raises(ValueError, match="radial must be one of auto, network, table, got 'none'"):
        Network(run, radial="none")
    monkeypatch.setattr(tables, "KNOTS", (16, 32))
    network = Network(run)
    assert "tables" not in network.params
    assert network.module.potential.model.radial == "network"
    assert "radial   networks, since tables of 32 knots, whose" in command("info", run).out
    monkeypatch.setattr(tables, "MOST_BYTES", 1000)
    assert "would take 0.0 GB" in Network(run).radial


def test_a_network_is_measured_once_and_its_process_keeps_memory(run, cache, monkeypatch):
    calls = []
    for name in ("keep_memory", "keep_programs"):
        monkeypatch.setattr(module, name, lambda name=name: calls.append(name))
    first = Network(run)
    assert sorted(calls) == ["keep_memory", "keep_programs"]
    [file] = cache.iterdir()
    with mock.patch.object(tables, "measured", side_effect=AssertionError("measured again")):
        found = Network(run)
        Network(run, radial="network")
        Network(run, radial="table")  # with the knots of the run
    assert found.radial == first.radial
    np.testing.assert_array_equal(forces(found, [2.0]), forces(first, [2.0]))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert Network(run).radial == first.radial
    assert file.read_bytes() != content


def test_a_full_disk_does_not_stop_a_calculator(run, cache, monkeypatch):
    full = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with mock.patch.object(tempfile, "mkdtemp", side_effect=full):
        network = Network(run)
    assert "tables" in network.params
    assert not list(cache.iterdir())
    network.keep_tables()
    monkeypatch.setattr(tables, "measured", None)
    assert Network(run).radial == network.radial


def test_tables_that_a_run_has_are_not_made_again(run, tmp_path, monkeypatch):
    """With an empty cache; unless the file is damaged."""
    first = Network(run)
    first.keep_tables()
    [file] = (run / "tables").iterdir()
    measured, calls = tables.measured, []
    monkeypatch.setenv("EQFUSE_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(tables, "measured", lambda *given: calls.append(1) or measured(*given))
    monkeypatch.chdir(run / "checkpoints")
    for again in (run, "best.safetensors"):
        network = Network(again)
        assert network.radial == first.radial
        np.testing.assert_array_equal(forces(network, [2.0]), forces(first, [2.0]))
    assert not calls
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert Network(run).radial == first.radial
    assert len(calls) == 1


def test_hessian_reads_radial_functions_from_memory(run, monkeypatch):
    """It is that of the networks, and no product computes functions of a table again."""
    atoms = ase.Atoms([13, 29], [[0, 0, 0], [0.2, 0.1, 2.3]])
    atoms.calc = eqfuse.Calculator(run, radial="network")
    expected = eqfuse.hessian(atoms)
    atoms.calc = eqfuse.Calculator(run)
    assert "tables of" in atoms.calc.network.radial
    atoms.get_potential_energy()  # which kernels compute from tables
    weights_of = RadialTable.tabulated

    def written(self, table):
        weights = weights_of(self, table)
        assert isinstance(weights, jax.Array), "a table is read"
        return weights

    monkeypatch.setattr(RadialTable, "tabulated", written)
    assert np.abs(eqfuse.hessian(atoms) - expected).max() <= 1e-5 * np.abs(expected).max()


NUMBERS = tuple(range(13, 30))


def cluster(numbers):
    return ase.Atoms(numbers, [[0, 0, 0], [2.1, 0, 0.2], [0.3, 2.3, 0], [1.9, 1.8, 1.7]])


@pytest.mark.parametrize("model", MODELS)
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


def test_small_networks_and_unknown_elements_stay_whole(untrained):
    small = Network(untrained(), radial="network")
    large = Network(untrained(numbers=NUMBERS), radial="network")
    assert small.of_elements([13]) is small
    assert large.of_elements([1, 13]) is large
    assert large.of_elements(NUMBERS) is large
    with pytest.raises(eqfuse.data.DataError, match="H not among the model"):
        predict(large, cluster([1, 13, 13, 13]))


@pytest.mark.slow
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
