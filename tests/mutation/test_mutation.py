"""The faults can be planted, and what catches one is told from what does not."""

from pathlib import Path

import pytest

from tests.mutation import __main__ as command
from tests.mutation.planted import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_still_applies(fault):
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    assert text.count(fault.old) == 1, f"change the fault with {fault.path}"
    assert fault.new != fault.old
    compile(text.replace(fault.old, fault.new), fault.path, "exec")
    for file, _, name in (test.partition("::") for test in fault.tests):
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def test_there_are_enough_of_them():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 20
    parts = {Path(fault.path).parts[1] for fault in FAULTS}
    assert parts >= {"ops", "models", "data", "train"}


def test_a_fault_that_does_not_apply_is_refused(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match="its old text occurs 2 times"):
        Fault("two", "a.py", "x = 1", "x = 2", ()).plant(tmp_path)


def test_a_run_tells_what_failed(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_b():\n    assert True\n")
    assert command.run(tmp_path, ["test_a.py"], tmp_path)[0] is None
    (tmp_path / "test_a.py").write_text("def test_b():\n    assert False\n")
    assert command.run(tmp_path, ["test_a.py"], tmp_path)[0] == "test_a.py::test_b"
    with pytest.raises(RuntimeError, match="pytest ended with 5"):
        command.run(tmp_path, ["-k", "nothing"], tmp_path)
