"""The mutants apply, and the tests that catch one are reported."""

from pathlib import Path

import pytest

from tests.mutation import __main__ as command
from tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_still_applies(mutant):
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"change the mutant with {mutant.path}"
    assert mutant.new != mutant.old
    compile(text.replace(mutant.old, mutant.new), mutant.path, "exec")
    for file, _, name in (test.partition("::") for test in mutant.tests):
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def test_there_are_enough_of_them():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
    parts = {Path(mutant.path).parts[1] for mutant in MUTANTS}
    assert parts >= {"ops", "models", "data", "train"}


def test_a_fault_that_does_not_apply_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match="its old text occurs 2 times"):
        Mutant("two", "a.py", "x = 1", "x = 2", ()).apply(tmp_path)


def test_a_run_reports_the_failed_test(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_b():\n    assert True\n")
    assert command.run(tmp_path, ["test_a.py"], tmp_path)[0] is None
    (tmp_path / "test_a.py").write_text("def test_b():\n    assert False\n")
    assert command.run(tmp_path, ["test_a.py"], tmp_path)[0] == "test_a.py::test_b"
    with pytest.raises(RuntimeError, match="pytest ended with 5"):
        command.run(tmp_path, ["-k", "nothing"], tmp_path)
