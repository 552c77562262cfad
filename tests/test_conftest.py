"""Slow tests are left out, unless they are asked for; children warn as tests do."""

import os

import pytest

from tests.child import ROOT, run_python
from tests.programs import folder_of_programs, known_to_xla

pytest_plugins = "pytester"

FILE = """
import pytest

def test_fast():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sizes(size):
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["test_a.py"], 2),
        (["test_a.py", "--run-slow"], 4),
        (["test_a.py", "-m", "slow"], 2),
        (["test_a.py", "-m", "not slow"], 2),
        (["test_a.py::test_slow"], 1),
        (["test_a.py::test_sizes[2]", "test_a.py::test_fast"], 2),
    ],
)
def test_slow_tests_run_if_asked_for(arguments, passed, pytester):
    pytester.makepyfile(test_a=FILE)
    pytester.makeini("[pytest]\nmarkers = slow")
    done = pytester.runpytest("-p", "tests.conftest", *arguments)
    done.assert_outcomes(passed=passed, deselected=None)
    asked_for = {"--run-slow", "-m"} & {*arguments}
    assert ("--run-slow" in done.stdout.str()) == (not asked_for)


def test_children_ignore_the_foreign_warnings_of_the_tests_and_no_others():
    code = "import warnings; warnings.warn({!r}, DeprecationWarning)"
    run_python("-c", code.format("Setting the shape on a NumPy array"))
    ours = run_python("-c", code.format("Setting a shape"), check=False)
    assert ours.stderr.endswith("\nDeprecationWarning: Setting a shape\n")


def test_pictures_are_looked_up_when_they_are_drawn():
    """Else the tests, which leave them out, would draw them all the same."""
    for path in (ROOT / "eqfuse").rglob("*.py"):
        assert "from eqfuse.plots import" not in path.read_text(encoding="utf-8"), path


def test_programs_that_are_kept_are_those_used_last(tmp_path):
    folder = folder_of_programs(tmp_path)
    for number in range(3):
        (folder / f"{number}-cache").write_bytes(bytes(100))
        os.utime(folder / f"{number}-cache", (number, number))
    assert folder_of_programs(tmp_path, kept=250) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["1-cache", "2-cache"]


def test_flags_that_xla_does_not_know_are_left_out():
    assert known_to_xla("--xla_backend_optimization_level=0")
    assert not known_to_xla("--xla_backend_optimisation_level=0")
    assert not known_to_xla("--xla_backend_optimization=0")  # inside of the name of another
