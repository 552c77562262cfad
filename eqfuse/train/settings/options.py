"""From settings by their names, or the YAML of a run, to a configuration, and back to YAML."""

import dataclasses
from pathlib import Path

import yaml

from eqfuse.runs.command import row
from eqfuse.runs.errors import OLD_ALLEGRO, ConfigError, naming
from eqfuse.runs.files import require_regular
from eqfuse.runs.schema import nearest, one_of, typed
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.config import MODELS, Config, known, sections
from eqfuse.train.sources import SETS, DataSettings

SHORTHANDS = {
    "layers": "model.layers",
    "channels": "model.channels",
    "lmax": "model.lmax",
    "cutoff": "model.cutoff",
    "lr": "training.lr",
    "batch_size": "data.batch_size",
    "freeze": "training.freeze",
}


def _read_own(name: str) -> dict:
    return yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))


_PRESETS = _read_own("presets.yaml")
PRESETS: dict[str, dict[str, dict]] = _PRESETS["networks"]
"""By model and name: settings by their full names."""
PARAMETERS: dict[str, dict[str, int]] = _PRESETS["parameters"]
OTHER_NAMES: dict[str, str] = {
    theirs: ours for ours, names in _read_own("other_names.yaml").items() for theirs in names
}
"""By the name of a setting of mace or nequip: what to write here."""
_SIZES = ("layers", "channels", "lmax", "hidden_lmax", "correlation", "latent_dim", "cutoff")


_MOST = 2**20
"""Bytes of a configuration; a parsed one takes a hundred times as many."""


def to_yaml(config) -> str:
    plain = dataclasses.asdict(config)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=float("inf"))


def read_yaml(path: Path):
    try:
        require_regular(path)
        if (size := path.stat().st_size) > _MOST:
            raise ValueError(f"it has {size} bytes, of {_MOST} at most")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path} cannot be read: {reason}") from error


def flat(plain, path) -> dict:
    """Return the settings of a YAML file by full name, as they are written there."""
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: it is not the configuration of a run")
    values, model = {}, plain.get("model")
    if isinstance(model, dict) and "latent_activation" in model:
        raise ConfigError(f"{path}: it {OLD_ALLEGRO}")
    for key, value in plain.items():
        if key == "heads" and isinstance(value, dict):
            for head, own in value.items():
                own = own if isinstance(own, dict) else {"name": own}
                values |= {f"heads.{head}.{n}": v for n, v in own.items()}
        elif key in ("model", "data", "training") and isinstance(value, dict):
            values |= {key if n == "name" else f"{key}.{n}": v for n, v in value.items()}
        else:
            values[SHORTHANDS.get(key, str(key))] = value
    for key, value in values.items():  # before a message has one that aliases make endless
        if isinstance(value, list | dict | set):
            kind = type(value).__name__
            raise ConfigError(f"{path}: {key} is impossible: a {kind}, and not one value")
    return values


def from_plain(plain, path) -> Config:
    """Return the configuration that a run wrote as YAML to `path`, checked as one that is typed."""
    values = flat(plain, path)
    with naming(str(path)):
        return checked(values, {})


def checked(base: dict, given: dict) -> Config:
    """Return the configuration of the settings of a file and those that are typed, by full name."""
    both = {"model": "nequip"} | base | given
    if any(str(key).startswith("heads.") for key in both):
        both = {"data": "extxyz"} | both
    model = both["model"]
    one_of("model", model, list(MODELS))
    fields = known(model)
    heads, others = _of_heads(both, fields), ("model", "data")
    unknown = [str(key) for key in both if key not in fields and key not in others]
    if unknown := [key for key in unknown if not key.startswith("heads.")]:
        raise ConfigError("; ".join(_unknown(key, fields, model) for key in unknown))
    if both.get("data") in (None, "tetris"):
        wrong = "is no data of a run" if "data" in both else "is missing"
        raise ConfigError(
            f"data={both.get('data', '')} {wrong}: give a file, such as data=FILE.xyz, or a set, "
            "see --help. The Tetris shapes are an example of the repository of eqfuse: python "
            "train.py model=nequip layers=3, in a clone of it"
        )
    one_of("data", both["data"], list(SETS))
    values = {}
    for layer in (base, given):
        values |= _preset(layer.get("preset"), both, model) | layer
    parts = {"": {}, "model": {}, "data": {"name": both["data"]}, "training": {}}
    for full, value in values.items():
        if full in fields:
            group, _, name = full.rpartition(".")
            parts[group][name] = typed(full, fields[full], value)
    return Config(
        model=MODELS[model](**parts["model"]),
        data=DataSettings(**parts["data"]),
        training=MoleculeTraining(**parts["training"]),
        heads=heads,
        **parts[""],
    )


def _of_heads(given: dict, fields: dict) -> dict[str, dict]:
    """Return the settings of the data of each head, of those that are given by full name."""
    names = {full.removeprefix("data."): f for full, f in fields.items() if "data." in full}
    del names["batch_size"]  # of the run
    heads = {}
    for full, value in given.items():
        group, _, rest = str(full).partition(".")
        if group != "heads":
            continue
        head, _, name = rest.partition(".")
        own = heads.setdefault(head, {})
        if name == "name":
            one_of(full, value, list(SETS))
            own[name] = value
        elif name in names:
            own[name] = typed(full, names[name], value)
        else:
            raise ConfigError(f"{full} is no setting of a head; {nearest(name, names)}")
    return heads


def _preset(name: str | None, given: dict, model: str) -> dict:
    if name in (None, "null"):
        return {}
    if name not in PRESETS[model]:
        hint = nearest(str(name), PRESETS[model])
        raise ConfigError(f"preset={name} is unknown for model={model}; {hint}")
    settings = dict(PRESETS[model][name])
    if given.get("data.val_path") is not None:
        settings.pop("data.val", None)  # all frames of that file validate
    return settings


def _unknown(key: str, fields: dict, model: str) -> str:
    """Return what is wrong with a setting that a run with this network does not have."""
    if key == "training":
        return "training follows from data=; set its fields, such as training.lr=0.01"
    if owners := [other for other in MODELS if key in known(other)]:
        return f"{key} is a setting of model={', '.join(owners)}, and not of model={model}"
    if other := OTHER_NAMES.get(key.rpartition(".")[2].replace("-", "_")):
        return f"{key} is a name of mace or nequip; here: {other}"
    names = [*fields, *(s for s, target in SHORTHANDS.items() if target in fields), "model", "data"]
    by_leaf = [full for full in fields if full.endswith("." + key)]
    hint = "nearest: " + ", ".join(by_leaf) if by_leaf else nearest(key, names)
    return f"{key} is not a setting of this run; {hint}"


def choices() -> dict[str, dict[str, str]]:
    """Return what each choice is, such as "model=mace", by groups."""
    models = {f"model={name}": kind.__doc__ for name, kind in MODELS.items()}
    models["model=nequip"] += " Default."
    return {"model": models, "data": {f"data={name}": text for name, text in SETS.items()}}


def presets() -> dict[str, str]:
    """Return the contents of each preset, such as "model=mace preset=small"."""
    found = {}
    for model, name in ((model, name) for model, named in PRESETS.items() for name in named):
        own = PRESETS[model][name]
        sizes = [f"{s}={v}" for s in _SIZES if (v := own.get(f"model.{s}")) is not None]
        trains = " and a training" if any(s.startswith("training.") for s in own) else ""
        text = f"{' '.join(sizes)}{trains}: {PARAMETERS[model][name]:,} parameters"
        found[f"model={model} preset={name}"] = text
    return found


def help_text() -> str:
    """Return the help: examples, choices, then every setting with its default."""
    parts = {"Choices": choices()["model"] | choices()["data"]}
    parts["Presets (a setting beside one overrides it)"] = presets()
    parts["Shorthands"] = {f"{short} = {full}": "" for short, full in SHORTHANDS.items()}
    for title, rows in sections().items():
        own = {name: f"{text} [{default}]" for name, text, default in rows}
        parts[f"Settings of {title} (default in brackets)"] = own
    texts = (
        "\n".join([title, *(row(*one, 28) for one in own.items())]) for title, own in parts.items()
    )
    around = Path(__file__).with_name("help.txt").read_text(encoding="utf-8")
    return around.replace("{settings}", "\n\n".join(texts))
