"""From command line arguments, or the YAML of a run, to checked settings, and back to YAML."""

import dataclasses
import os
import re
from pathlib import Path

import yaml

from eqfuse.runs.command import undashed
from eqfuse.runs.errors import OLD_ALLEGRO, ConfigError
from eqfuse.runs.schema import nearest, one_of, require, split, typed
from eqfuse.train.schedule import MoleculeTraining
from eqfuse.train.settings.config import MODELS, Config, known
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


def read_own(name: str) -> dict:
    return yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))


_PRESETS = read_own("presets.yaml")
PRESETS: dict[str, dict[str, dict]] = _PRESETS["networks"]
"""By model and name: settings by their full names."""
PARAMETERS: dict[str, dict[str, int]] = _PRESETS["parameters"]
OTHER_NAMES: dict[str, str] = {
    theirs: ours for ours, names in read_own("other_names.yaml").items() for theirs in names
}
"""By the name of a setting of mace or nequip: what to write here."""


def parse(arguments: list[str]) -> Config:
    """Return the configuration that the arguments, such as "layers=3", ask for.

    They override those of a preset, wherever it stands, and of config=FILE, and the later of two
    the earlier. What is misspelt, ill-typed or impossible is refused, with the nearest names.
    """
    given = {}
    for argument in without_dashes(arguments):
        if "=" not in argument and os.path.isfile(argument):
            raise ConfigError(f"{argument} is a file, and not a setting; write data={argument}")
        key, value = split(argument)
        is_file = re.search(r"[/*~]|\.[A-Za-z]", value)
        is_head = re.fullmatch(r"heads\.[^.]+", key)
        if is_head and f"{key}.name" in given:
            raise ConfigError(f"{key} is given twice; each head has a name of its own")
        if key == "data" or is_head:
            path = is_file or (value not in SETS and os.path.isfile(value))
            given[f"{key}.name" if is_head else key] = "extxyz" if path else value
            given |= {f"{key}.path": value} if path else {}
        else:
            full = SHORTHANDS.get(key, key)
            is_val = re.fullmatch(r"(data|heads\.[^.]+)\.val", key)
            given[f"{full}_path" if is_val and is_file else full] = value
    base, file = {}, given.pop("config", "null")
    if file != "null":
        path = Path(file).expanduser()
        base = flat(read_yaml(path / "config.yaml" if os.path.isdir(path) else path), file)
        left = ["run", "resume"]  # another run has a folder of its own
        left += [g for g in ("model", "data") if g in given and given[g] != base.get(g)]
        base = {k: v for k, v in base.items() if k.partition(".")[0] not in left}
    return _config(base, given)


def without_dashes(arguments: list[str]) -> list[str]:
    """Return the arguments as `name=value`, see `undashed`; refuse an option of mace."""
    fields = {name: field for model in MODELS for name, field in known(model).items()}
    ours = {*fields, *SHORTHANDS, "model", "data", "config", "seeds"}
    dashed = [a.partition("=")[0] for a in arguments if a.startswith("-")]
    others = {name: _other_name(name) for name in dashed}
    if any(other and n.lstrip("-").replace("-", "_") not in ours for n, other in others.items()):
        raise ConfigError("; ".join(filter(None, others.values())))
    return undashed(arguments, fields)


def _other_name(key: str) -> str | None:
    """Return the replacement for a name of mace or nequip; None for other names."""
    theirs = key.lstrip("-").rpartition(".")[2].replace("-", "_")
    other = OTHER_NAMES.get(theirs)
    return f"{key} is a name of mace or nequip; here: {other}" if other else None


def seeds_of(arguments: list[str]) -> tuple[list[str], range | None]:
    """Return the arguments without `seeds=N`, and the seeds of the runs that it asks for."""
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("seeds=")]
    if not given:
        return arguments, None
    fits = given[-1].isdecimal() and 0 < int(given[-1]) < 10**4
    require(fits, "seeds", given[-1], "a number of runs")
    others = [argument for argument in arguments if not argument.startswith("seeds=")]
    return others, range(int(given[-1]))


def to_yaml(config) -> str:
    plain = dataclasses.asdict(config)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=float("inf"))


def read_yaml(path: Path):
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
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
            heads = value.items()
            values |= {f"heads.{h}.{n}": v for h, own in heads for n, v in dict(own).items()}
        elif key in ("model", "data", "training") and isinstance(value, dict):
            values |= {key if n == "name" else f"{key}.{n}": v for n, v in value.items()}
        else:
            values[SHORTHANDS.get(key, key)] = value
    return values


def from_plain(plain, path):
    """Return the configuration that a run wrote as YAML to `path`, checked as one that is typed."""
    try:
        return _config(flat(plain, path), {})
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def _config(base: dict, given: dict) -> Config:
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
    if other := _other_name(key):
        return other
    names = [*fields, *(s for s, target in SHORTHANDS.items() if target in fields), "model", "data"]
    by_leaf = [full for full in fields if full.endswith("." + key)]
    hint = "nearest: " + ", ".join(by_leaf) if by_leaf else nearest(key, names)
    return f"{key} is not a setting of this run; {hint}"
