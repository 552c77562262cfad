"""The text of `eqfuse train --help`, made from the settings."""

import dataclasses
import textwrap
from pathlib import Path

from eqfuse.train.settings.config import DEFAULTS, GROUPS, SHORTHANDS, Config
from eqfuse.train.settings.options import PRESETS
from eqfuse.train.settings.schema import described


def help_text() -> str:
    """Return the help: examples, choices, then every setting with its default."""
    parts = ["Choices"]
    parts += [_line(choice, doc) for rows in choices().values() for choice, doc in rows]
    parts += ["", "Presets (a setting beside one overrides it)"]
    parts += [_line(f"model={model}", f"preset={'|'.join(PRESETS[model])}") for model in PRESETS]
    parts += ["", "Shorthands", *(f"  {short} = {full}" for short, full in SHORTHANDS.items())]
    for title, rows in sections():
        parts += ["", f"Settings of {title} (default in brackets)"]
        parts += [_line(name, f"{text} [{default}]") for name, text, default in rows]
    around = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    return around.replace("{settings}", "\n".join(parts))


def choices() -> dict[str, list[tuple[str, str]]]:
    """Return for each group the choices, as `name=value` and what it is."""
    return {
        group: [
            (f"{group}={name}", node.__doc__ + (" Default." if default == name else ""))
            for name, node in GROUPS[group].items()
        ]
        for group, default in DEFAULTS.items()
    }


def sections():
    """Yield the title and the (name, help, default) of the settings that choices have in common."""
    yield "every run", list(_rows("", Config))
    for group, nodes in GROUPS.items():
        owners = {}
        for choice, node in nodes.items():
            for row in _rows(f"{group}.", node):
                owners.setdefault(row, []).append(choice)
        for names in dict.fromkeys(map(tuple, sorted(owners.values(), key=len, reverse=True))):
            left_out = [name for name in nodes if name not in names]
            of = ", ".join(names) if len(left_out) != 1 else f"all but {left_out[0]}"
            title = f"training on data={of}" if group == "training" else f"{group}={of}"
            yield title, [row for row, owned in owners.items() if tuple(owned) == names]


def _rows(prefix: str, node: type):
    for field in dataclasses.fields(node):
        if "help" in field.metadata:
            yield prefix + field.name, *described(field)


def _line(name: str, text: str) -> str:
    return textwrap.fill(f"  {name:<28} {text}", 100, subsequent_indent=" " * 31)
