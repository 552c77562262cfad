"""A few fuzz cases of each kind, others in every run, and that the checks see failures."""

import sys
import time
import types

import numpy as np
import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import checks
from tests.fuzz.checks import FailureError, check_refusal, memory_limit, run_command

COUNTS = {"damage": 72, "doors": 60, "settings": 20, "labels": 40, "programs": 20}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), COUNTS.items())
def test_a_few_of_each_kind(kind, count, tmp_path):
    assert command.run(kind, int(time.time()), count, tmp_path) == []


def test_failures_are_reported_and_cases_are_those_of_their_seeds(tmp_path, monkeypatch, capsys):
    class Cases:
        seconds = 0.5

        def __init__(self, folder):
            assert folder.is_dir()

        def prepare(self, seed):
            def case():
                if seed == 3:
                    raise FailureError("a,\n\x00b\udcff")
                time.sleep(60 if seed == 4 else 0)
                return "refused"

            return "one\n\udcff", case

    monkeypatch.setitem(sys.modules, "tests.fuzz.settings", types.SimpleNamespace(Cases=Cases))
    assert command.main(["settings", "--seed", "2", "--count", "3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == r"settings 2: one\n\udcff: refused"
    assert lines[3] == "settings: 2 FAILURE, 1 refused"
    failures = [line for line in lines[4:] if "FAILURE" in line]
    assert [line.split(":")[0] for line in failures] == ["settings 3", "settings 4"]
    assert "not done after 0.5 s" in failures[1]
    assert lines[-1] == "2 of 3 cases failed"
    assert command.main(["settings", "--seed", "5", "--count", "1"]) == 0


def output(text: str, code: int):
    return run_command(lambda: print(text, file=sys.stderr) or code)


def test_a_clear_line_is_told_from_others(capfd, monkeypatch):
    monkeypatch.setattr(checks.gc, "collect", lambda: None)
    check_refusal(output("warning: a file\nerror: lr is wrong", 2), "other", "lr")
    traceback = "Traceback (most recent call last):\n  x\nKeyError: 1"
    for text, code in (
        ("error: lr is wrong", 3),
        ("lr is wrong", 2),
        ("error: it is wrong", 2),
        ("error: lr\x1b is wrong", 2),
        ("error: lr is wrong\nerror: and lr again", 2),
        (f"{traceback}\nerror: lr is wrong", 2),
    ):
        with pytest.raises(FailureError):
            check_refusal(output(text, code), "lr")


def test_an_exception_is_a_fault(capfd):
    with pytest.raises(FailureError, match=r"IndexError at test_fuzz.py:\d+: list index"):
        run_command(lambda: [][0])
    with memory_limit(500), pytest.raises(FailureError, match="MemoryError"):  # more than is kept
        run_command(lambda: len(np.ones(10**10)))
