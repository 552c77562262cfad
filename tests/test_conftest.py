"""Slow tests are left out, unless they are asked for."""

import pytest

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
