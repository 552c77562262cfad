"""A few fuzz cases of each kind, and that the checks see failures."""

import sys
import time

import numpy as np
import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import table, worker
from tests.fuzz.bad_files import BAD_FILES
from tests.fuzz.checks import FailureError, check_refusal, run_command
from tests.fuzz.table import FAILURE, Row


def rows_of(kind: str, count: int, folder, seed: int = 0) -> list[Row]:
    return list(command.cases(kind, seed, count, folder))


def assert_no_fault(rows):
    assert not [row for row in rows if row.is_failure], table.summary(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("kills", 6), ("damage", 12), ("settings", 20)])
def test_a_few_of_each_kind(kind, count, tmp_path):
    rows = rows_of(kind, count, tmp_path, seed=int(time.time()))  # others in every run of the test
    assert len(rows) >= count
    assert_no_fault(rows)


@pytest.mark.slow
def test_every_kind_of_bad_file(tmp_path):
    rows = rows_of("data", len(BAD_FILES), tmp_path)
    assert {row.what for row in rows} == set(BAD_FILES)
    assert_no_fault(rows)


@pytest.mark.slow
def test_a_sample(tmp_path):
    """Those that are cheap."""
    assert_no_fault(rows_of("data", 3, tmp_path))


def test_the_table_goes_on_at_the_next_seed(tmp_path, monkeypatch, capsys):
    done = []

    def cases(kind, seed, count, folder):
        for number in range(seed, seed + count):
            done.append(number)
            yield Row(kind, number, "a,\n\x00b", "refused" if number else FAILURE, "\udcff")

    monkeypatch.setattr(command, "cases", cases)
    out = tmp_path / "table.csv"
    assert command.main(["--kind", "data", "--count", "2", "--out", str(out)]) == 1
    assert command.main(["--kind", "data", "--count", "3", "--out", str(out)]) == 0
    assert command.main(["--kind", "damage", "--count", "1", "--out", str(out)]) == 1
    assert done == [0, 1, 2, 3, 4, 0]
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1 + len(done)
    capsys.readouterr()
    assert command.main(["--summary", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| data | 5 | 1 | 4 refused |" in lines
    assert "| damage | 1 | 1 |  |" in lines
    assert sum(line.startswith("data 0: ") for line in lines) == 1


def output(text: str, code: int):
    def run():
        print(text, file=sys.stderr)
        return code

    return run_command(run)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("error: lr is wrong", 0),
        ("error: lr is wrong", 3),
        ("", 2),
        ("lr is wrong", 2),
        ("error: it is wrong", 2),
        ("error: lr\nis wrong", 2),
        ("error: lr\x1b is wrong", 2),
        ("error: lr is wrong\nerror: and lr again", 2),
        ("Traceback (most recent call last):\n  x\nKeyError: 1\nerror: lr is wrong", 2),
    ],
)
def test_what_is_no_clear_line(text, code, capfd):
    with pytest.raises(FailureError):
        check_refusal(output(text, code), "lr")


def test_a_clear_line(capfd):
    check_refusal(output("warning: a file\nerror: lr is wrong", 2), "other", "lr")


def test_an_exception_is_a_fault(capfd):
    def run():
        return [][0]

    with pytest.raises(FailureError, match=r"IndexError at test_fuzz.py:\d+: list index"):
        run_command(run)


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Cases that hang, take too much memory, end the process, or are done."""
    program = """
import os, time
import numpy as np

class Cases:
    seconds, megabytes = 1.5, 500

    def __init__(self, folder):
        pass

    def prepare(self, seed):
        return f"number {seed}", (self.hang, self.fill, self.leave, self.end)[seed]

    def hang(self):
        time.sleep(60)

    def fill(self):
        from tests.fuzz.checks import run_command
        return "filled", str(run_command(lambda: len(np.ones(10**8))))

    def leave(self):
        os._exit(3)

    def end(self):
        return "done", ""
"""
    (tmp_path / "faulty_cases.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("faulty")
def test_a_worker_outlives_its_cases(tmp_path):
    with worker.Worker("faulty_cases", tmp_path, package="") as fuzzed:
        rows = [fuzzed.case(seed) for seed in range(4)]
    assert [row.outcome for row in rows] == [FAILURE, FAILURE, FAILURE, "done"]
    details = [row.detail for row in rows]
    assert details[0] == "not done after 1.5 s"
    assert "MemoryError" in details[1]
    assert details[2] == "process ended: 3"
    assert [row.what for row in rows] == [f"number {seed}" for seed in range(4)]


def test_bad_files_are_the_same_for_the_same_seed(tmp_path):
    bad = BAD_FILES["bytes changed"]
    contents = [bad.make(np.random.default_rng(3), tmp_path).read_bytes() for _ in range(2)]
    assert contents[0] == contents[1]
