"""`eqfuse convert ... --check`."""

import lzma
import sys

import numpy as np
import pytest

from eqfuse.convert import ConvertError, check, convert
from eqfuse.convert.check import from_arrays, to_arrays
from eqfuse.convert.command import main
from eqfuse.inference.calculator import Calculator
from eqfuse.inference.examples import example_structures
from tests.convert.conftest import GOLDENS


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    path = tmp_path_factory.mktemp("package") / "a.nequip.zip"
    stored = GOLDENS / "networks" / "nequip_pair_cutoffs.nequip.zip.xz"
    path.write_bytes(lzma.decompress(stored.read_bytes()))
    return path


@pytest.fixture(scope="module")
def run(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    convert("nequip", package, folder)
    return folder


def rows(table):
    """Return the numbers of each structure of a table."""
    return [[float(cell) for cell in line.split()[1:] if cell != "-"] for line in table[2:]]


def test_without_the_program_invariance_and_forces_are_checked(run):
    table = check.check_alone(run).splitlines()
    for rotated, mirrored, slopes in rows(table):
        assert max(rotated, mirrored) < 1e-12
        assert slopes < 1e-5  # differences of the energy over 2e-4 Å
    assert len(table) == 4


def test_forces_that_are_no_slopes_are_seen(run, monkeypatch):
    right = check.results_of

    def wrong(calculator, atoms):
        result = right(calculator, atoms)
        return result | {"forces": result["forces"] * 1.01}

    monkeypatch.setattr(check, "results_of", wrong)
    assert all(slopes > 1e-4 for _, _, slopes in rows(check.check_alone(run).splitlines()))


@pytest.mark.parametrize(("factor", "low", "high"), [(1.0, 0, 1e-12), (1.001, 5e-4, 2e-3)])
def test_differences_from_the_program_are_those_that_are_printed(
    run, package, monkeypatch, factor, low, high
):
    calculator = Calculator(run, dtype="float64", radial="network")

    def original(program, path, structures, **_):
        result = {"version": "a program"}
        for k, atoms in enumerate(structures):
            for quantity, value in check.results_of(calculator, atoms).items():
                result[f"{k}_{quantity}"] = value * factor
        return result

    monkeypatch.setattr(check, "original_results", original)
    table = check.compare("nequip", package, run).splitlines()
    assert table[0].startswith("a program and eqfuse in float64")
    errors = rows(table)
    assert [len(row) for row in errors] == [3, 2]  # a molecule has no stress
    assert all(low <= error <= high for row in errors for error in row)


def test_a_program_that_is_not_there_is_named(package, tmp_path, capsys):
    with pytest.raises(ConvertError, match=f"nequip cannot be run by {sys.executable}.*--python"):
        check.original_results("nequip", package, example_structures([1, 6]))
    arguments = ["nequip", str(package), str(tmp_path / "a"), "--check"]
    assert main(arguments) == 0  # what can be checked was
    out = capsys.readouterr()
    assert "nequip cannot be run" in out.err
    assert "without the program" in out.out
    # who names an interpreter wants that comparison
    arguments[2:] = [str(tmp_path / "b"), "--python", sys.executable]
    assert main(arguments) == 2


def test_structures_have_the_elements_and_survive_being_arrays():
    crystal, molecule = example_structures([1, 6, 8, 14, 17, 20, 26, 30, 47, 79])
    assert (len(crystal), len(molecule)) == (8, 5)
    assert len(set(crystal.numbers)) == 8
    assert crystal.get_all_distances(mic=True)[np.triu_indices(8, 1)].min() > 1
    for before, after in zip(
        (crystal, molecule), from_arrays(to_arrays([crystal, molecule])), strict=True
    ):
        assert before == after
