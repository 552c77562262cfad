"""Run fuzz cases, and add what came of it to a table; see CONTRIBUTING.md.

python -m tests.fuzz --kind damage --count 200 --out cases.csv
python -m tests.fuzz --summary cases.csv
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz import table
from tests.fuzz.kills import KIND, Kills
from tests.fuzz.worker import Worker

WORKED = ("damage", "data", "settings")


def cases(kind: str, seed: int, count: int, folder: Path) -> Iterator[table.Row]:
    """Give the rows of so many cases of a kind, from this seed on.

    Args:
      kind: "kills", of which one seed makes several, "damage", "data" or "settings".
      seed: the first one.
      count: of the cases; ends of killed runs are not counted.
      folder: to work in.
    """
    if kind == KIND:
        kills, done = Kills(folder), 0
        while done < count:
            for row in kills.case(seed):
                done += row.kind == KIND
                yield row
            seed += 1
        return
    with Worker(kind, folder) as worker:
        for number in range(seed, seed + count):
            yield worker.case(number)


def main(arguments: list[str] | None = None) -> int:
    """Do what the arguments ask for.

    Returns:
      0 done; 1 there was a failure.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", choices=(KIND, *WORKED))
    parser.add_argument("--count", type=int, default=10, help="how many cases (10)")
    parser.add_argument("--seed", type=int, help="the first one; else that after the table's last")
    parser.add_argument("--out", type=Path, help="the table, a CSV file that is added to")
    parser.add_argument("--work", type=Path, help="folder to work in, kept; else a temporary one")
    parser.add_argument("--summary", type=Path, help="print the counts in this table")
    options = parser.parse_args(arguments)
    if options.summary is not None:
        print(table.summary(table.read(options.summary)))
        return 0
    if options.kind is None or options.out is None:
        parser.error("give --kind and --out, or --summary")
    with tempfile.TemporaryDirectory(prefix="eqfuse-case-") as temporary:
        folder = Path(temporary) if options.work is None else options.work.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return _run(options, folder)


def _run(options, folder: Path) -> int:
    seed, failures = options.seed, 0
    if seed is None:
        seed = table.next_seed(table.read(options.out), options.kind)
    for row in cases(options.kind, seed, options.count, folder):
        table.append(options.out, row)
        failures += row.is_failure
        print(f"{row.kind} {row.seed}: {row.what!r:.100}: {row.outcome} {row.detail!r:.300}")
        sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
