"""`eqfuse convert`, the run that it writes, and its comparison with the program."""

import sys

import ase
import numpy as np
import pytest

import eqfuse
from eqfuse.cli import main as cli
from eqfuse.convert import ConvertError, check, convert
from eqfuse.convert.check import to_arrays
from eqfuse.convert.command import main
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.examples import example_structures
from eqfuse.train import CheckpointError
from eqfuse.train.run.resume import started_config
from tests.convert.conftest import from_arrays


def test_it_prints_what_the_network_is(model_file, tmp_path, capsys):
    assert main(["mace", str(model_file("density")), str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    for text in ("3: H C O", "float64", "channels=3", "cutoff=4.5", "ZBL", "licence", "scale 0.8"):
        assert text in out, text
    assert "torch" not in sys.modules
    assert "mace" not in sys.modules


def test_nothing_is_overwritten(model_file, run, capsys):
    assert main(["mace", str(model_file("small")), str(run("small"))]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["two_heads", pytest.param("nonlinear", marks=pytest.mark.slow)])
def test_all_heads_are_converted(name, model_file, expected, tmp_path, water, capsys):
    """Each gives what mace gives for it, in calculators, predictions, exports and trainings."""
    folder, arrays = tmp_path / "run", expected(name)
    assert main(["mace", str(model_file(name)), str(folder)]) == 0
    assert "heads      one, two: choose one by head=NAME" in capsys.readouterr().out
    atoms = ase.Atoms(
        arrays["periodic_numbers"], arrays["periodic_positions"], cell=arrays["periodic_cell"]
    )
    atoms.pbc = True
    energies = []
    for head in ("one", "two"):
        atoms.calc = eqfuse.Calculator(folder, head=head, dtype="float64", radial="network")
        energies.append(atoms.get_potential_energy())
        assert energies[-1] == pytest.approx(arrays[f"periodic_{head}_energy"], rel=1e-10)
        forces = arrays[f"periodic_{head}_forces"]
        assert abs(atoms.get_forces() - forces).max() <= 1e-8 * abs(forces).max()
    assert abs(energies[0] - energies[1]) > 1e-3
    [found] = eqfuse.predict(folder, [atoms], head="two", dtype="float64")
    assert found.energy == pytest.approx(energies[1], rel=1e-8)
    atoms.calc = eqfuse.Calculator(folder, head="two", dtype="float32")
    error = abs(atoms.get_forces() - forces).max() / abs(forces).max()
    assert 1e-9 < error <= 1e-5  # single precision is not double
    with pytest.raises(CheckpointError, match="has the heads one, two: choose one by head=NAME"):
        eqfuse.Calculator(folder)
    with pytest.raises(CheckpointError, match="no head 'three'; its heads are one, two"):
        eqfuse.Calculator(folder, head="three")
    config = started_config([f"start_from={folder}", "head=two", f"data={water}"])
    assert config.start_from == str(folder / "heads" / "two.safetensors")
    assert config.training.optimizer == "adam"  # as of any converted network
    exported = tmp_path / "program.stablehlo"
    assert cli(["export", str(folder), str(exported), "--head", "two"]) == 0
    assert exported.exists()


def test_one_of_several_heads_is_a_run_without_heads(model_file, tmp_path):
    arguments = ["mace", str(model_file("two_heads")), str(tmp_path / "run"), "--head", "one"]
    assert main(arguments) == 0
    with pytest.raises(CheckpointError, match="it has one, without a name"):
        eqfuse.Calculator(tmp_path / "run", head="one")
    eqfuse.Calculator(tmp_path / "run")


def test_another_dtype_is_refused(run):
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got 'float16'"):
        eqfuse.Calculator(run("small"), dtype="float16")


@pytest.fixture(scope="module")
def nequip_run(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    convert("nequip", package, folder)
    return folder


def rows(table):
    """Return the numbers of each structure of a table."""
    return [[float(cell) for cell in line.split()[1:] if cell != "-"] for line in table[2:]]


@pytest.mark.parametrize(("factor", "low", "high"), [(1.0, 0, 1e-12), (1.001, 5e-4, 2e-3)])
def test_differences_from_the_program_are_those_that_are_printed(
    nequip_run, package, monkeypatch, factor, low, high
):
    calculator = Calculator(nequip_run, dtype="float64", radial="network")

    def original(program, path, structures, **_):
        result = {"version": "a program"}
        for k, atoms in enumerate(structures):
            for quantity, value in check.results_of(calculator, atoms).items():
                result[f"{k}_{quantity}"] = value * factor
        return result

    monkeypatch.setattr(check, "original_results", original)
    table = check.compare("nequip", package, nequip_run).splitlines()
    assert table[0].startswith("a program and eqfuse in float64")
    errors = rows(table)
    assert [len(row) for row in errors] == [3, 2]  # a molecule has no stress
    assert all(low <= error <= high for row in errors for error in row)


def test_a_program_that_is_not_there_is_named(package, tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("eqfuse.certify.check.main", lambda arguments: asked.append(arguments) or 1)
    with pytest.raises(ConvertError, match=f"nequip cannot be run by {sys.executable}.*--python"):
        check.original_results("nequip", package, example_structures([1, 6]))
    run = str(tmp_path / "a")
    assert main(["nequip", str(package), run, "--check"]) == 1  # what can be checked is
    assert asked == [[run, "--backends", "--picoseconds", "0"]]
    out = capsys.readouterr()
    assert "nequip cannot be run" in out.err
    assert "without the program" in out.out
    arguments = ["nequip", str(package), str(tmp_path / "b"), "--python", sys.executable]
    assert main(arguments) == 2
    assert len(asked) == 1


def test_structures_have_the_elements_and_survive_being_arrays():
    crystal, molecule = example_structures([1, 6, 8, 14, 17, 20, 26, 30, 47, 79])
    assert (len(crystal), len(molecule)) == (8, 5)
    assert len(set(crystal.numbers)) == 8
    assert crystal.get_all_distances(mic=True)[np.triu_indices(8, 1)].min() > 1
    for before, after in zip(
        (crystal, molecule), from_arrays(to_arrays([crystal, molecule])), strict=True
    ):
        assert before == after
