"""The text of `eqfuse train --help`, made from the settings."""

import dataclasses
import functools
from pathlib import Path

from eqfuse.runs import command
from eqfuse.runs.schema import described
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.config import MODELS, Config
from eqfuse.train.settings.options import PARAMETERS, PRESETS, SHORTHANDS, read_own
from eqfuse.train.sources import SETS, DataSettings

HELP: dict[str, str] = read_own("help.yaml")
"""By full name."""
_line = functools.partial(command.row, width=28)


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
    models = [(f"model={name}", node.__doc__) for name, node in MODELS.items()]
    models[0] = models[0][0], f"{models[0][1]} Default."
    return {"model": models, "data": [(f"data={name}", text) for name, text in SETS.items()]}


def sections():
    """Yield the title and the (name, help, default) of the settings that choices have in common."""
    yield "every run", list(_rows("", Config))
    owners = {}
    for name, node in MODELS.items():
        for row in _rows("model.", node):
            owners.setdefault(row, []).append(name)
    for names in dict.fromkeys(map(tuple, sorted(owners.values(), key=len, reverse=True))):
        title = "all" if len(names) == len(MODELS) else ", ".join(names)
        yield f"model={title}", [row for row, owned in owners.items() if tuple(owned) == names]
    yield "the data", list(_rows("data.", DataSettings))
    yield "the training", list(_rows("training.", MoleculeTraining))


def _rows(prefix: str, node: type):
    for field in dataclasses.fields(node):
        if "help" in field.metadata:
            name = prefix + field.name
            yield name, *described(field, "" if field.metadata["help"] else HELP[name])
