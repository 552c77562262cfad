"""`eqfuse export`: programs that run without eqfuse."""

import functools
import os
from pathlib import Path

import ase.build
import jax
import numpy as np
import pytest
import safetensors

import eqfuse
from eqfuse import cli
from eqfuse.data import neighbor_list
from eqfuse.export import export
from eqfuse.export.folder import ladder
from eqfuse.runs.errors import ConfigError
from scripts.network_goldens import to_arrays
from tests.child import run_python
from tests.lammps.untrained import FIELDS, untrained_run

CONSUMER = Path(__file__).with_name("consumer.py")


def structures():
    """Return a crystal and a molecule, of other numbers of atoms and edges."""
    crystal = ase.build.bulk("Al", cubic=True)
    crystal.numbers[1] = 29
    crystal.rattle(0.1, seed=1)
    crystal.set_cell(crystal.cell.array @ (np.eye(3) + 0.02 * np.arange(9).reshape(3, 3) / 9))
    return [crystal, ase.Atoms("AlCu2", [[0, 0, 0], [2.4, 0.1, 0], [0.3, 2.5, 0.2]])]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a function that makes the run of a model and its program, once."""

    @functools.cache
    def made(model):
        folder = tmp_path_factory.mktemp(model)
        run, file = untrained_run(folder, model), folder / "program.safetensors"
        export(run, file)
        return run, file

    return made


def program_of(file):
    """Return a function of `ARGUMENTS` without the weights."""
    with safetensors.safe_open(file, framework="numpy") as opened:
        names = sorted(name for name in opened.keys() if name != "program")  # noqa: SIM118
        weights = [opened.get_tensor(name) for name in names]
        program = jax.export.deserialize(bytearray(opened.get_tensor("program").tobytes()))
    return lambda *arrays: program.call(weights, *arrays)


def arrays_of(atoms, cutoff, dtype="float64"):
    senders, receivers, shifts = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    positions, cell, shifts = (
        np.asarray(a, dtype) for a in (atoms.positions, atoms.cell.array, shifts)
    )
    return atoms.numbers.astype(np.int32), positions, cell, senders, receivers, shifts


def assert_agreement(results, atoms, run, tolerance=1e-11):
    energies, forces, stress = (np.asarray(a) for a in results)
    atoms = atoms.copy()
    atoms.calc = eqfuse.Calculator(run, dtype="float64", radial="network")
    np.testing.assert_allclose(energies, atoms.get_potential_energies(), rtol=tolerance)
    largest = np.abs(atoms.get_forces()).max()
    np.testing.assert_allclose(forces, atoms.get_forces(), rtol=0, atol=tolerance * largest)
    expected = atoms.get_stress(voigt=False) if atoms.pbc.all() else np.zeros((3, 3))
    atol = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(stress, expected, rtol=0, atol=atol)


def test_a_program_runs_without_eqfuse(exported, tmp_path):
    """One program for structures of all sizes, by JAX alone, in a process of its own."""
    run, file = exported("nequip")
    given, out = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(given, **to_arrays(structures()))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command, where = (CONSUMER, file, given, out), {"env": environment, "cwd": tmp_path}
    run_python(*command, **where)
    with np.load(out) as results:
        for k, atoms in enumerate(structures()):
            found = [results[f"{k}_{name}"] for name in ("energies", "forces", "stress")]
            assert_agreement(found, atoms, run)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1  # of the weights
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(content)
    done = run_python(CONSUMER, damaged, given, out, check=False, **where)
    assert "ValueError: the file is damaged; export the network again" in done.stderr


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=pytest.mark.slow if m != "nequip" else ()) for m in FIELDS]
)
def test_padding_and_pairs_beyond_the_cutoff_contribute_nothing(exported, model):
    run, file = exported(model)
    atoms = structures()[0]
    numbers, positions, cell, senders, receivers, shifts = arrays_of(atoms, 4.8)
    loops = np.zeros(7, np.int32)
    with jax.enable_x64(True):
        results = program_of(file)(
            numbers,
            positions,
            cell,
            np.append(senders, loops),
            np.append(receivers, loops),
            np.concatenate([shifts, np.zeros((7, 3))]),
        )
    assert_agreement(results, atoms, run)


def test_float32_and_unknown_elements(exported, tmp_path):
    [run, _], file = exported("nequip"), tmp_path / "program.safetensors"
    assert export(run, file, dtype="float32")["dtype"] == "float32"
    atoms = structures()[0]
    program = program_of(file)
    arrays = arrays_of(atoms, 4.0, "float32")
    assert_agreement(program(*arrays), atoms, run, tolerance=2e-5)
    energies = program(np.array([13, 29, 79, 13], np.int32), *arrays[1:])[0]
    assert np.isnan(energies).tolist() == [False, False, True, False]


def test_tables_of_radial_functions_travel_in_the_place_of_networks(exported, tmp_path, capsys):
    [run, _], file = exported("nequip"), tmp_path / "program.safetensors"
    assert cli.main(["export", str(run), str(file), "--radial", "table"]) == 0
    assert "Al Cu, float64, cutoff 4.0 Å" in capsys.readouterr().out
    atoms = structures()[0]
    with jax.enable_x64(True):
        forces = np.asarray(program_of(file)(*arrays_of(atoms, 4.0))[1])
    atoms.calc = tables = eqfuse.Calculator(run, dtype="float64", radial="table")
    largest = np.abs(atoms.get_forces()).max()
    np.testing.assert_allclose(forces, atoms.get_forces(), rtol=0, atol=1e-11 * largest)
    atoms.calc = eqfuse.Calculator(run, dtype="float64", radial="network")
    assert 1e-13 < np.abs(forces - atoms.get_forces()).max() / largest < 1e-5
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert opened.metadata()["radial"] == "table"
        count = len(opened.keys()) - 1  # without the program
    variables = tables.network.params
    networks = len(jax.tree.leaves(variables["params"]["model"]["radial"]))
    assert networks == 6
    assert count == len(jax.tree.leaves(variables)) - networks
    with pytest.raises(
        ValueError, match="radial must be one of auto, network, table, got 'tables'"
    ):
        export(run, tmp_path / "other.safetensors", radial="tables")


def test_export_refuses_what_it_cannot_write(tmp_path, capsys):
    run, file = untrained_run(tmp_path), tmp_path / "program.safetensors"
    file.write_text("mine")
    assert cli.main(["export", str(run), str(file)]) == 2
    assert "exists already and is not overwritten" in capsys.readouterr().err
    assert file.read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        export(run, tmp_path / "none" / "program.safetensors")
    assert cli.main(["export", str(tmp_path / "no_run"), str(tmp_path / "a")]) == 1
    assert "no_run" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_without_flatbuffers_it_tells_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'eqfuse\[export\]'"):
        export(tmp_path, tmp_path / "a")


@pytest.mark.parametrize(("largest", "count"), [(200, 5), (220, 5), (225, 6)])
def test_ladder_has_edges_for_the_mean_and_atoms_for_a_tenth_more(largest, count):
    """A rank of more neighbours takes the next program, and that of the largest has room."""
    sizes = ladder(16.5, largest)
    expected = [(100, 1650), (125, 2063), (156, 2574), (195, 3218), (244, 4026), (305, 5033)]
    assert sizes == expected[:count]
    assert sizes[-1][0] >= 1.1 * largest
