"""What `-m quick` is made of is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import QUICK

TESTS = Path(__file__).parent


@pytest.mark.parametrize("entry", QUICK)
def test_every_entry_names_tests_that_exist(entry):
    file, _, name = entry.partition("::")
    assert f"def {name.partition('[')[0] or 'test_'}" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_entry_is_the_beginning_of_a_quick_test():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "quick", str(TESTS)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True)
    found = [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]
    assert [e for e in QUICK if not any(name.startswith(e) for name in found)] == []
