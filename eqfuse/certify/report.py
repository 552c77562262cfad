"""Reports of checks: one page of HTML with pictures, and all numbers as JSON."""

import io
import json
import os
import platform
from pathlib import Path

import numpy as np

from eqfuse import plots
from eqfuse.certify.checks import CHECKS, Row
from eqfuse.data import DataError
from eqfuse.runs import page, require_regular, write_whole

FORMAT = 1
"""Of the JSON; a reader of several reports compares it."""


def check_paths(page: Path | None, numbers: Path | None, read: Path | None):
    """Refuse files that cannot be written, before anything is computed.

    Raises:
      DataError, OSError: a page whose name does not end with .html, a file that cannot be written,
        or two that are one.
    """
    if page is not None and page.suffix != ".html":
        raise DataError(f"report={page}: end its name with .html")
    places = [os.path.realpath(path) for path in (page, numbers, read) if path is not None]
    if len({*places}) < len(places):
        raise DataError("report=, json= and FILE are to be different files")
    for path in filter(None, (page, numbers)):
        require_regular(path)
        needed = [path.parent, *([path] if path.exists() else [])]
        if path.is_dir() or not all(os.access(one, os.W_OK) for one in needed):
            raise DataError(f"{path} cannot be written: is its folder there, and yours?")


class Report:
    """The rows of a check with what was checked where.

    Args:
      certificate: see `check.Certificate`.
      options: of the command.

    Attributes:
      rows: of the checks, in order; to be appended to.
      versions: of what computes.
    """

    def __init__(self, certificate, options):
        self.certificate, self.rows = certificate, []
        self.versions = certificate.subject.versions()
        self._options = {k: str(v) for k, v in vars(options).items() if v is not None}

    @property
    def failed(self) -> list[Row]:
        """Return the rows of the checks that failed."""
        return [row for row in self.rows if row.verdict == "FAILED"]

    @property
    def verdict(self) -> str:
        """Return the last line: PASS or FAIL, and which checks failed."""
        failed = [row.name for row in self.failed]
        noted = sum(row.verdict == "noted" for row in self.rows)
        count = sum(row.verdict != "not checked" for row in self.rows)
        if failed:
            return f"FAIL: {len(failed)} of {count} checks: {', '.join(failed)}"
        rest = f", {noted} of them noted" if noted else ""
        return f"PASS: {count} checks{rest}, {len(self.rows) - count} not checked"

    def write(self, path: Path | None, numbers: Path | None) -> list[Path]:
        """Write the page and the numbers where they are asked for, and return what was written."""
        if numbers is not None:
            write_whole(numbers, json.dumps(self.as_json(), indent=1) + "\n")
        if path is not None:
            write_whole(path, self._html())
        return [file for file in (path, numbers) if file is not None]

    def as_json(self) -> dict:
        """Return everything, as JSON has it; numbers that are not finite are texts."""

        def plain(value):
            return value if value is None or np.isfinite(value) else str(value)

        return {
            "format": FORMAT,
            "calculator": self.certificate.subject.name,
            "verdict": self.verdict.partition(":")[0],
            "precision": self.certificate.precision,
            "elements": [int(z) for z in self.certificate.elements],
            "machine": f"{platform.system()} {platform.machine()}",
            "versions": self.versions,
            "options": self._options,
            "checks": [
                {"check": row.name, "verdict": row.verdict, "unit": row.unit, "remark": row.remark}
                | {"error": plain(row.error), "limit": plain(row.limit)}
                for row in self.rows
            ],
        }

    def _facts(self) -> list[tuple[str, str]]:
        known = self.as_json()
        return [
            ("verdict", self.verdict),
            ("precision", f"{known['precision']}, as found by the rounding of its forces"),
            ("atomic numbers", ", ".join(map(str, known["elements"]))),
            ("machine", known["machine"]),
            ("versions", ", ".join(f"{k} {v}" for k, v in self.versions.items())),
            ("options", ", ".join(f"{k}={v}" for k, v in self._options.items())),
        ]

    def _table(self) -> list[tuple[str, ...]]:
        rows = []
        for row in self.rows:
            numbers = ("-", "-")
            if row.error is not None:
                numbers = f"{row.error:.1e}", f"{row.limit:.1e} {row.unit}"
            text = " ".join(filter(None, [row.remark, row.meaning]))
            rows.append((CHECKS[row.name][0], *numbers, row.verdict, text))
        return rows

    def _html(self) -> str:
        rows, certificate = self._table(), self.certificate
        kinds = ["bold", *(cells[3].replace(" ", "-") for cells in rows)]
        heads = "check", "error", "limit", "verdict", "remark"
        sections = {"Checks": page.table([heads, *rows], kinds)}
        drawings = {"paths": (plots.walks, certificate.walks)} if certificate.walks else {}
        if runs := certificate.energies:
            lines = {f"steps of {step:g} fs": (t, e - e[0]) for step, t, e in runs}
            labels = "time (ps)", "change of energy (meV/atom)"
            drawings["dynamics"] = plots.curves, lines, *labels
        for name, (draw, *given) in drawings.items():
            draw(*given, content := io.BytesIO())
            sections[name] = page.picture(name, content.getvalue())
        title = f"Check of {certificate.subject.name}"
        return page.page(title, page.table(self._facts()), sections)
