"""The text of `eqfuse train --help`, made from the settings."""

import dataclasses
import textwrap
from pathlib import Path

from eqfuse.train.settings.config import RUNS
from eqfuse.train.settings.options import PARAMETERS, PRESETS, SHORTHANDS
from eqfuse.train.settings.schema import described
from eqfuse.train.tetris_settings import TETRIS


def help_text() -> str:
    """Return the help: examples, choices, then every setting with its default."""
    parts = ["Choices"]
    parts += [_line(choice, doc) for rows in choices().values() for choice, doc in rows]
    parts += ["", "Presets (a setting beside one overrides it)"]
    parts += [_line(f"model={model} preset={name}", text) for model, name, text in presets()]
    parts += ["", "Shorthands", *(f"  {short} = {full}" for short, full in SHORTHANDS.items())]
    for title, rows in sections():
        parts += ["", f"Settings of {title} (default in brackets)"]
        parts += [_line(name, f"{text} [{default}]") for name, text, default in rows]
    around = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    return around.replace("{settings}", "\n".join(parts))


_SIZES = ("layers", "channels", "lmax", "hidden_lmax", "correlation", "latent_dim", "cutoff")


def presets():
    """Yield the network, the name and the contents of each preset."""
    for model, named in PRESETS.items():
        for name, settings in named.items():
            sizes = [f"{s}={v}" for s in _SIZES if (v := settings.get(f"model.{s}")) is not None]
            trains = " and a training" if any(s.startswith("training.") for s in settings) else ""
            text = f"{' '.join(sizes)}{trains}: {PARAMETERS[model][name]:,} parameters"
            yield model, name, text


def choices() -> dict[str, list[tuple[str, str]]]:
    """Return for each group the choices, as `name=value` and what it is."""
    groups = {group: {**RUNS.groups[group], **TETRIS.groups[group]} for group in RUNS.groups}
    return {
        group: [
            (f"{group}={name}", f"{node.__doc__}{' Default.' * (TETRIS.choices[group] == name)}")
            for name, node in nodes.items()
        ]
        for group, nodes in groups.items()
    }


def sections():
    """Yield the title and the (name, help, default) of the settings that choices have in common."""
    yield "every run", list(_rows("", RUNS.config))
    for group, nodes in RUNS.groups.items():
        owners = {}
        for choice, node in nodes.items():
            for row in _rows(f"{group}.", node):
                owners.setdefault(row, []).append(choice)
        for names in dict.fromkeys(map(tuple, sorted(owners.values(), key=len, reverse=True))):
            title = "all" if len(names) == len(nodes) else ", ".join(names)
            rows = [row for row, owned in owners.items() if tuple(owned) == names]
            yield f"{group}={title}", rows
    yield "the training", list(_rows("training.", RUNS.training))
    rows = _rows("data.", TETRIS.groups["data"]["tetris"]), _rows("training.", TETRIS.training)
    yield "data=tetris", [row for own in rows for row in own]


def _rows(prefix: str, node: type):
    for field in dataclasses.fields(node):
        if "help" in field.metadata:
            yield prefix + field.name, *described(field)


def _line(name: str, text: str) -> str:
    return textwrap.fill(f"  {name:<28} {text}", 100, subsequent_indent=" " * 31)
