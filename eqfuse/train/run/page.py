"""report.html: a run on one page, one file that needs nothing else."""

import base64
import html
from pathlib import Path

from eqfuse import __version__

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em;
  color: #222; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: 0.15em 0.8em; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child, td.text, th.text { text-align: left }
tr.all td { font-weight: 600 } img { max-width: 100% }
.settings { columns: 2; column-gap: 3em; font-size: 13px } .settings div { break-inside: avoid }
.settings code { color: #555 } pre { background: #f5f5f5; padding: 0.8em; overflow-x: auto }
"""
_PICTURES = {
    "learning.png": "Errors during the training",
    "parity.png": "Predictions for the validation frames",
    "parity_test.png": "Predictions for the test frames",
}
_COLUMNS = {
    "energy_mae_mev_per_atom": "E MAE<br>meV/atom",
    "energy_rmse_mev_per_atom": "E RMSE<br>meV/atom",
    "forces_mae_mev_per_a": "F MAE<br>meV/Å",
    "forces_rmse_mev_per_a": "F RMSE<br>meV/Å",
    "stress_mae_mev_per_a3": "S MAE<br>meV/Å³",
    "stress_rmse_mev_per_a3": "S RMSE<br>meV/Å³",
}


def page(folder: Path, metadata: dict, rows: list[dict], ended: bool) -> str:
    """Return the page of a run as HTML.

    Args:
      folder: of the run, with its pictures.
      metadata: of the checkpoint of its best network.
      rows: of errors.csv.
      ended: whether the run is at its end, or was interrupted.
    """
    config = metadata["config"]
    name = html.escape(folder.name)
    what = "" if ended else " The run was interrupted: the test frames are not evaluated."
    criterion = config["training"].get("best", "loss").replace("_", " ")
    pictures = "".join(
        f"<h2>{title}</h2>\n<img alt='{title}' src='data:image/png;base64,{_encoded(path)}'>\n"
        for file, title in _PICTURES.items()
        if (path := folder / file).exists()
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style></head>
<body>
<h1>{name}</h1>
<p>{html.escape(metadata["model"])} trained by eqfuse {__version__}. The best network is of epoch
{metadata["epoch"]}, step {metadata["step"]}, by the lowest {criterion} on the validation
frames.{what}</p>
<h2>Errors of the best network</h2>
{_errors(rows)}
{pictures}
<h2>Use it</h2>
<pre>eqfuse predict {html.escape(str(folder))} FILE.xyz OUT.xyz
eqfuse evaluate {html.escape(str(folder))} FILE.xyz
calculator = eqfuse.Calculator({html.escape(repr(str(folder)))})  # of ASE</pre>
<h2>Settings</h2>
<div class="settings">
{_settings(config)}
</div>
</body></html>
"""


def _errors(rows: list[dict]) -> str:
    columns = {key: title for key, title in _COLUMNS.items() if any(key in row for row in rows)}
    heads = "".join(f"<th>{title}</th>" for title in columns.values())
    lines = [
        "<table><tr><th>set</th><th class='text'>group</th><th>frames</th><th>atoms</th>"
        f"{heads}</tr>"
    ]
    for row in rows:
        numbers = "".join(f"<td>{_number(row.get(key))}</td>" for key in columns)
        kind = " class='all'" if row["group"] == "all" else ""
        lines.append(
            f"<tr{kind}><td>{row['set']}</td><td class='text'>{html.escape(row['group'])}</td>"
            f"<td>{row['frames']}</td><td>{row['atoms']}</td>{numbers}</tr>"
        )
    return "\n".join([*lines, "</table>"])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _settings(config: dict) -> str:
    flat = {}
    for key, value in config.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        flat |= {key if name is None else f"{key}.{name}": v for name, v in inner}
    return "\n".join(
        f"<div>{html.escape(name)} = <code>{html.escape(_plain(value))}</code></div>"
        for name, value in flat.items()
    )


def _plain(value) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
