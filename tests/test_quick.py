"""What `-m quick` and `-m slow` are made of is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import QUICK
from tests.slow import SLOW

TESTS = Path(__file__).parent


SLOW_TESTS = [(file, pattern) for file, patterns in SLOW.items() for pattern in patterns]


@pytest.mark.parametrize("entry", QUICK)
def test_every_entry_names_tests_that_exist(entry):
    file, _, name = entry.partition("::")
    assert f"def {name.partition('[')[0] or 'test_'}" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(("file", "pattern"), SLOW_TESTS)
def test_every_pattern_names_tests_that_exist(file, pattern):
    name = pattern.partition(r"\[")[0].rpartition("::")[2]
    assert f"def {name}" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_entry_is_the_beginning_of_a_quick_test():
    found = _collected("quick")
    assert [e for e in QUICK if not any(name.startswith(e) for name in found)] == []


@pytest.mark.slow
def test_every_pattern_is_that_of_a_slow_test():
    found = [name.partition("::")[::2] for name in _collected("slow")]
    without = [
        (file, pattern)
        for file, pattern in SLOW_TESTS
        if not any(f == file and re.match(pattern, test) for f, test in found)
    ]
    assert without == []


def _collected(marker):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marker, str(TESTS)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True)
    return [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]
