"""Run fuzz cases, and print what came of each; see CONTRIBUTING.md.

python -m tests.fuzz damage --count 200
python -m tests.fuzz damage --seed 17 --count 1 --work KEPT
"""

import argparse
import collections
import importlib
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.checks import FailureError, time_limit

KINDS = ("damage", "doors", "settings", "labels", "programs")
WIDTH = 800
"""Of the description of a case, and of what is said of a failure."""


def run(kind: str, seed: int, count: int, folder: Path) -> list[str]:
    """Run cases, print a line for each, and return the lines of those that failed.

    Args:
      kind: one of `KINDS`, a module with a class `Cases`, made with a folder. Its `prepare` takes a
        seed, and returns what will be done, in words, and a function that does it: it returns the
        outcome or raises FailureError. Its `seconds` is the time limit of a case.
      seed: the first one.
      count: of the cases.
      folder: to work in; what takes long to make is kept there.
    """
    cases, failures = importlib.import_module(f"tests.fuzz.{kind}").Cases(folder), []
    outcomes = collections.Counter()
    for number in range(seed, seed + count):
        what, case = cases.prepare(number)
        what = ascii(what)[1:-1][:WIDTH]
        print(f"{kind} {number}: {what}: ", end="", flush=True)  # seen if it ends this process
        try:
            with time_limit(cases.seconds):
                outcome = case()
        except FailureError as failure:
            outcome = f"FAILURE {str(failure)[:WIDTH]!r}"
            failures.append(f"{kind} {number}: {what}: {outcome}")
        print(outcome, flush=True)
        outcomes["FAILURE" if outcome.startswith("FAILURE") else outcome.split(":")[0]] += 1
    print(f"{kind}:", ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    for what, number in getattr(cases, "counts", {}).items():
        print(f"{kind}: {number} {what}")
    return failures


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for.

    Returns:
      0 done; 1 there was a failure.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=10, help="how many cases (10)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="first; else the time")
    parser.add_argument("--work", type=Path, help="folder to work in, kept; else a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="eqfuse-fuzz-") as temporary:
        folder = Path(temporary) if options.work is None else options.work.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        failures = run(options.kind, options.seed, options.count, folder)
    print(*failures, f"{len(failures)} of {options.count} cases failed", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
