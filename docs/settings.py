"""Write reference/settings.md from the dataclasses of the configuration.

python docs/settings.py            # write it
python docs/settings.py --check    # fail where it is not what would be written
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from eqfuse.train.settings import usage
from eqfuse.train.settings.config import DEFAULTS, GROUPS, SHORTHANDS, Config
from eqfuse.train.settings.presets import PRESETS

PAGE = Path(__file__).parent / "reference" / "settings.md"
_HEAD = """\
# Settings

<!-- written by docs/settings.py -->

Settings are written `name=value`, in any order, after `eqfuse train`. What is misspelt or
impossible is refused, with the nearest names. `eqfuse train --help` prints the same, and
`eqfuse train --cfg ...` prints what a run would use.

`${oc.env:NAME}` in a setting stands for a variable of the environment; quote it in a shell. Some
settings have a short name: {shorthands}.
"""


def page() -> str:
    """Return the page."""
    shorthands = ", ".join(f"`{short}` is `{full}`" for short, full in SHORTHANDS.items())
    parts = [_HEAD.replace("{shorthands}", shorthands)]
    for group, default in DEFAULTS.items():
        rows = [
            (f"`{group}={name}`", node.__doc__ + (" Default." if name == default else ""))
            for name, node in GROUPS[group].items()
        ]
        parts.append(_table(f"Choices of `{group}`", ("setting", "is"), rows))
    rows = [
        (f"`model={model}`", ", ".join(f"`{name}`" for name in PRESETS[model])) for model in PRESETS
    ]
    note = "A preset is a group of settings; what is given beside one wins over it."
    parts.append(_table("Presets", ("network", "`preset=`"), rows, note))
    parts.append(_settings("every run", "", Config))
    parts += [_settings(*section) for section in usage.sections()]
    return "\n".join(parts)


def _settings(title: str, prefix: str, node) -> str:
    rows = [
        (f"`{prefix}{field.name}`", field.metadata["help"], f"`{_default(field)}`")
        for field in usage.own_fields(node)
    ]
    if not rows:
        return ""
    return _table(f"Settings of {title}", ("setting", "is", "default"), rows)


def _default(field: dataclasses.Field) -> str:
    if isinstance(field.default, bool):
        return str(field.default).lower()
    return "null" if field.default is None else str(field.default)


def _table(title: str, columns, rows, note: str = "") -> str:
    lines = [f"## {title}\n", *([note + "\n"] if note else [])]
    lines += [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is out of date; run python docs/settings.py")


if __name__ == "__main__":
    main()
