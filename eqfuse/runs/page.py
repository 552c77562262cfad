"""Pages of HTML, each in one file that needs nothing else: the reports of runs and of checks."""

import base64
import html
import string
from collections.abc import Iterable
from pathlib import Path

from eqfuse.runs.log import printable


def in_html(text) -> str:
    """Return a text as a page shows it, in one line."""
    return html.escape(printable(text))


def table_row(cells: Iterable[str], kind: str = "") -> str:
    """Return a row of a table, of texts; its class is a `kind`, such as "bold"."""
    return f"<tr class='{kind}'>{''.join(f'<td>{in_html(cell)}</td>' for cell in cells)}</tr>\n"


def picture(title: str, png: bytes) -> str:
    """Return a picture within the page."""
    encoded = base64.b64encode(png).decode()
    return f"<h2>{title}</h2>\n<img alt='{title}' src='data:image/png;base64,{encoded}'>\n"


def page(template: Path, **parts: str) -> str:
    """Return the page that a file is, with its `$names` replaced by parts in HTML."""
    return string.Template(template.read_text(encoding="utf-8")).substitute(parts)
