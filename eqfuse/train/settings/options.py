"""From command line arguments, or the YAML of a run, to a checked `Config`, and back to YAML."""

import dataclasses

import yaml

from eqfuse.train.settings.config import DEFAULTS, GROUPS, SHORTHANDS, Config
from eqfuse.train.settings.presets import PRESETS, tetris_defaults
from eqfuse.train.settings.schema import ConfigError, nearest, one_of, typed


def parse(arguments: list[str]) -> Config:
    """Return the configuration that the arguments ask for.

    Args:
      arguments: settings such as "model=nequip", "layers=3", "data.path=FILE"; they override those
        of a preset, wherever it stands, and the later of two overrides the earlier.
    Raises:
      ConfigError: an argument that is misspelt, ill-typed or impossible, with the nearest names.
    """
    pairs = [_split(argument) for argument in arguments]
    choices = DEFAULTS | {key: value for key, value in pairs if key in DEFAULTS}
    for group, choice in choices.items():
        one_of(group, choice, GROUPS[group])
    known, given = settings_of(choices), {}
    for key, text in pairs:
        full = SHORTHANDS.get(key, key)
        if full not in known and key not in choices:
            raise _unknown(key, full, known, choices)
        given[full] = text
    defaults = tetris_defaults(choices["model"], given) if choices["data"] == "tetris" else {}
    return _config({**defaults, **_preset(given, known, choices), **given}, known, choices)


def to_yaml(config: Config) -> str:
    """Return the configuration as YAML."""
    plain = dataclasses.asdict(config)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=float("inf"))


def from_plain(plain: dict) -> Config:
    """Return the configuration that was written as YAML, checked as that of the command line.

    Raises:
      ConfigError: it is none, or a setting was changed to an impossible one.
    """
    try:
        choices = {group: plain[group]["name"] for group in DEFAULTS}
        known = settings_of(choices)
        groups = {group: dict(plain[group]) for group in GROUPS}
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigError(f"it is not the configuration of a run: {error}") from error
    values = {key: value for key, value in plain.items() if key not in GROUPS}
    for group, settings in groups.items():
        values |= {f"{group}.{key}": value for key, value in settings.items() if key != "name"}
    for key in values:
        if key not in known:
            raise _unknown(str(key), str(key), known, choices)
    return _config(values, known, choices)


def settings_of(choices: dict) -> dict[str, dataclasses.Field]:
    """Return every setting of the chosen groups by its full name."""
    settings = {f.name: f for f in dataclasses.fields(Config) if f.name not in GROUPS}
    for group, choice in (*choices.items(), ("training", choices["data"])):
        for f in dataclasses.fields(GROUPS[group][choice]):
            if f.name != "name":
                settings[f"{group}.{f.name}"] = f
    return settings


def _config(values: dict, known: dict, choices: dict) -> Config:
    parts = {"": {}} | {group: {} for group in GROUPS}
    for full, value in values.items():
        if full in known:
            group, _, name = full.rpartition(".")
            parts[group][name] = typed(full, known[full], value)
    choices = {**choices, "training": choices["data"]}
    return Config(
        **{group: GROUPS[group][choice](**parts[group]) for group, choice in choices.items()},
        **parts[""],
    )


def _split(argument: str) -> tuple[str, str]:
    """Return the name and the value of an argument."""
    key, equals, value = argument.partition("=")
    if not equals or not key or key.startswith(("+", "~", "-")):
        raise ConfigError(f"{argument} is not a setting; write it as name=value, see --help")
    return key, value


def _preset(given: dict, known: dict, choices: dict) -> dict:
    """Return the settings of the preset that is asked for."""
    name, model = given.get("preset", "null"), choices["model"]
    if name == "null":
        return {}
    if model not in PRESETS:
        raise ConfigError(f"preset={name}: model={model} has no presets")
    if name not in PRESETS[model]:
        hint = nearest(name, PRESETS[model])
        raise ConfigError(f"preset={name} is unknown for model={model}; {hint}")
    settings = dict(PRESETS[model][name])
    if not settings.keys() <= known.keys():
        raise ConfigError(
            f"preset={name} sets the training on molecules, which data={choices['data']} does not "
            "have; give data=extxyz and data.path=FILE, or other data"
        )
    if "data.val_path" in given:
        settings.pop("data.val", None)  # all frames of that file validate
    return settings


def _unknown(key: str, full: str, known: dict, choices: dict) -> ConfigError:
    """Return the error of a setting that the chosen groups do not have."""
    group, _, name = full.partition(".")
    if key == "training":
        return ConfigError("training follows from data=; set its fields, such as training.lr=0.01")
    if key in SHORTHANDS:
        choice = choices["data" if group == "training" else group]
        return ConfigError(f"{key}: {group}={choice} has no such setting")
    owners = [
        f"{'data' if group == 'training' else group}={choice}"
        for choice, node in GROUPS.get(group, {}).items()
        if name in {f.name for f in dataclasses.fields(node)} - {"name"}
    ]
    if owners:
        return ConfigError(f"{key} is a setting of {' and '.join(owners)} only")
    by_leaf = [name for name in known if name.endswith("." + key)]
    names = [*known, *(s for s, target in SHORTHANDS.items() if target in known), *choices]
    hint = "nearest: " + ", ".join(by_leaf) if by_leaf else nearest(key, names)
    return ConfigError(f"{key} is not a setting of this run; {hint}")
