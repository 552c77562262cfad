"""Apply each mutant to a copy of the repository, and print whether the tests catch it.

python -m tests.mutation                             # each against the tests that it names
python -m tests.mutation --selection "-k float64"    # of these, what pytest selects
python -m tests.mutation --all-tests                 # against the whole suite: hours
"""

import argparse
import dataclasses
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutation.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".*", "__pycache__", "*.egg-info", "build", "dist", "outputs", "runs")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome for one mutant.

    Attributes:
      caught_by: the first test that failed; None if all passed.
      seconds: of CPU time.
    """

    mutant: Mutant
    caught_by: str | None
    seconds: float

    @property
    def row(self) -> str:
        outcome = f"caught by {self.caught_by}" if self.caught_by else "NOT CAUGHT"
        return f"{self.mutant.name} ({self.mutant.path}): {outcome} ({self.seconds:.0f} s of CPU)"


def run(root: Path, arguments: list[str], programs: Path) -> tuple[str | None, float]:
    """Run pytest in a copy of the repository until a test fails.

    Args:
      root: the copy.
      arguments: what pytest is given besides.
      programs: where compiled programs are kept.
    Returns:
      The test that failed, None if none did; seconds of CPU time.
    Raises:
      RuntimeError: pytest could not run tests, or selected none.
    """
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    before = _children_seconds()
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    seconds = _children_seconds() - before
    if done.returncode == 0:
        return None, seconds
    failed = FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return failed[1], seconds


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def verdict(mutant: Mutant, arguments: list[str], folder: Path) -> Verdict:
    """Apply a mutant to a copy of the repository and run tests there.

    Args:
      mutant: one.
      arguments: see `run`.
      folder: to work in.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = Path(temporary) / "repository"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT))
        mutant.apply(root)
        return Verdict(mutant, *run(root, arguments, folder / "programs"))


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for.

    Returns:
      0 all mutants were caught, by tests that pass without them; 1 some were not.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the mutants, and do nothing")
    parser.add_argument("--only", nargs="+", default=[""], help="mutants with this in their names")
    parser.add_argument("--selection", default="", help='more for pytest, such as "-k float64"')
    parser.add_argument("--all-tests", action="store_true", help="not only those of the mutant")
    options = parser.parse_args(arguments)
    mutants = [f for f in MUTANTS if any(text in f.name for text in options.only)]
    if options.list:
        print(*(f"{f.name}: {f.path}, {', '.join(f.tests)}" for f in mutants), sep="\n")
        return 0
    if not mutants:
        parser.error(f"no mutant has {' or '.join(options.only)} in its name; see --list")
    with tempfile.TemporaryDirectory(prefix="eqfuse-mutants-") as temporary:
        return _apply(mutants, options, Path(temporary))


def _apply(mutants: list[Mutant], options, folder: Path) -> int:
    more, verdicts = shlex.split(options.selection), []
    for mutant in mutants:
        tests = () if options.all_tests else mutant.tests
        verdicts.append(verdict(mutant, [*tests, *more], folder))
        print(verdicts[-1].row, flush=True)
    caught = [v.caught_by for v in verdicts if v.caught_by]
    print(f"{len(caught)} of {len(verdicts)} mutants were caught", flush=True)
    without = None
    if caught:
        without, _ = run(ROOT, [*dict.fromkeys(caught), *more], folder / "programs")
        if without:
            print(f"{without} fails without a mutant too, and so catches nothing")
    return int(without is not None or len(caught) < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
