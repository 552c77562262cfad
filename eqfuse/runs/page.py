"""Pages of HTML, each in one file that needs nothing else: the reports of runs and of checks."""

import base64
import html
from collections.abc import Iterable, Mapping

from eqfuse.runs.log import printable

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em;
  color: #222; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td { padding: 0.15em 0.8em; border-bottom: 1px solid #ddd } img { max-width: 100% }
.numbers td:nth-child(n+3) { text-align: right } .bold { font-weight: 600 }
.FAILED { background: #fbdcd3 } .noted { background: #fdf3cf } .not-checked { color: #777 }
pre { background: #f5f5f5; padding: 0.8em; overflow-x: auto }
"""
_LONG = 300  # characters of a cell, above which it is folded: 89 reference energies


def in_html(text) -> str:
    """Return a text as a page shows it, in one line."""
    return html.escape(printable(text))


def _cell(text: str) -> str:
    """Return a cell of a table, folded where it is a wall of text."""
    shown = in_html(text)
    if len(text) <= _LONG:
        return f"<td>{shown}</td>"
    return f"<td><details><summary>{in_html(text[:60])} ...</summary>{shown}</details></td>"


def table(rows: Iterable[Iterable[str]], kinds: Iterable[str] = (), kind: str = "") -> str:
    """Return a table of texts; its class is a `kind`, and those of its rows `kinds`, if given."""
    text, kinds = "", iter(kinds)
    for cells in rows:
        own = "".join(map(_cell, cells))
        text += f"<tr class='{next(kinds, '')}'>{own}</tr>\n"
    return f"<table class='{kind}'>\n{text}</table>\n"


def items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{in_html(text)}</li>' for text in texts)}</ul>\n"


def lines(text: str) -> str:
    """Return a text of several lines, as it is."""
    return f"<pre>{html.escape(text)}</pre>\n"


def picture(title: str, png: bytes) -> str:
    encoded = base64.b64encode(png).decode()
    return f"<img alt='{in_html(title)}' src='data:image/png;base64,{encoded}'>\n"


def page(title: str, first: str, sections: Mapping[str, str]) -> str:
    """Return a page: its title, what stands below it, and sections by their titles, in HTML."""
    name = in_html(title)
    head = f'<meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
    rest = "".join(f"<h2>{in_html(heading)}</h2>\n{text}" for heading, text in sections.items())
    body = f"<h1>{name}</h1>\n{first}{rest}"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
