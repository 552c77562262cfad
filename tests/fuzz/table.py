"""The table of cases: one row of a CSV file for each, and a summary of what came of them."""

import csv
import dataclasses
import datetime
from collections import Counter
from pathlib import Path

FAILURE = "failure"


@dataclasses.dataclass(frozen=True)
class Row:
    """What one case did, and what came of it.

    Attributes:
      kind: "kills", "damage", "data" or "settings".
      seed: the case is made from it.
      what: what was done, in words.
      outcome: a word for how it ended; `FAILURE` if a user must not see that.
      detail: what was printed or found.
      seconds: how long it took.
      date: when it was done, day and minute.
    """

    kind: str
    seed: int
    what: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0
    date: str = ""

    @property
    def is_failure(self) -> bool:
        return self.outcome == FAILURE


_COLUMNS = [field.name for field in dataclasses.fields(Row)]


def append(path: Path, row: Row):
    """Add a row to the table, with the date; the table is made if it is not there."""
    plain = dataclasses.asdict(row)
    plain["date"] = f"{datetime.datetime.now():%Y-%m-%d %H:%M}"
    plain["seconds"] = f"{row.seconds:.1f}"
    # Line ends and bytes that cannot be written would make several lines of one row.
    plain = {key: ascii(str(value))[1:-1] for key, value in plain.items()}
    first = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        if first:
            writer.writeheader()
        writer.writerow(plain)


def read(path: Path) -> list[Row]:
    """Return the rows of a table; none if it is not there."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [
        Row(**{**row, "seed": int(row["seed"]), "seconds": float(row["seconds"])}) for row in rows
    ]


def next_seed(rows: list[Row], kind: str) -> int:
    """Return the seed after the last one of this kind; 0 to begin."""
    return 1 + max((row.seed for row in rows if row.kind == kind), default=-1)


def summary(rows: list[Row]) -> str:
    """Return the counts by kind and outcome as a table in Markdown, and the failures below it."""
    lines = ["| kind | cases | failures | outcomes |", "|---|---|---|---|"]
    for kind in sorted({row.kind for row in rows}):
        mine = [row for row in rows if row.kind == kind]
        counts = Counter(row.outcome for row in mine)
        failures = counts.pop(FAILURE, 0)
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        lines.append(f"| {kind} | {len(mine)} | {failures} | {outcomes} |")
    lines += [f"{row.kind} {row.seed}: {row.what}: {row.detail}" for row in rows if row.is_failure]
    return "\n".join(lines)
