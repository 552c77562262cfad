"""What `-m quick` and `-m slow` are made of is there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import QUICK
from tests.slow import SLOW

TESTS = Path(__file__).parent


@pytest.mark.parametrize("entry", [*QUICK, *SLOW])
def test_every_entry_names_tests_that_exist(entry):
    file, _, name = entry.partition("::")
    assert f"def {name.partition('[')[0] or 'test_'}" in (TESTS / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("marker", "entries"), [("quick", QUICK), ("slow", SLOW)])
def test_every_entry_is_the_beginning_of_a_test_with_the_marker(marker, entries):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marker, str(TESTS)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True)
    found = [line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line]
    assert [e for e in entries if not any(name.startswith(e) for name in found)] == []
