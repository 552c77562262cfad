"""Print a matrix of reports: `python -m benchmarks.certificates *.json` (`eqfuse check json=`).

A line for each potential, with what failed or was noted and by how much.
"""

import argparse
import json
import sys
from pathlib import Path

_KNOWN_FORMAT = 1


def line_of(report: dict) -> str:
    """Return the line of a table for one report."""
    by_verdict = {"FAILED": [], "noted": []}
    for row in report["checks"]:
        if row["verdict"] in by_verdict:
            error, limit = (
                value if isinstance(value, str) else f"{value:.1e}"
                for value in (row["error"], row["limit"])
            )
            by_verdict[row["verdict"]].append(
                f"{row['check']} {error} (limit {limit} {row['unit']}; {row['remark']})"
            )
    versions = report["versions"]
    program = next((n for n in versions if n not in ("python", "ase", "numpy")), "ase")
    cells = [
        f"`{report['calculator']}`",
        f"{program} {versions[program]}",
        report["precision"],
        report["verdict"],
        *("; ".join(found) or "-" for found in by_verdict.values()),
    ]
    return "| " + " | ".join(cells).replace("\n", " ") + " |"


def main() -> int:
    """Print the table, and return 1 where a report has another format."""
    parser = argparse.ArgumentParser(prog="benchmarks.certificates", description=__doc__)
    parser.add_argument("files", nargs="+", help="reports, JSON")
    files = parser.parse_args().files
    print("| calculator | version | precision | verdict | failed | noted |")
    print("|---|---|---|---|---|---|")
    for file in files:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
        if report.get("format") != _KNOWN_FORMAT:
            print(f"{file} has format {report.get('format')}, not 1", file=sys.stderr)
            return 1
        print(line_of(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
