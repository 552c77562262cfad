"""From command line arguments to a checked `Config`, through Hydra."""

import dataclasses
import os
import re

from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from eqfuse.train.settings.config import DEFAULTS, GROUPS, SHORTHANDS, Config
from eqfuse.train.settings.data_config import FIT
from eqfuse.train.settings.presets import PRESETS
from eqfuse.train.settings.settings import ConfigError, nearest


def _register():
    store = ConfigStore.instance()
    store.store(name="eqfuse_schema", node=Config)
    defaults = ["eqfuse_schema", *({k: v} for k, v in DEFAULTS.items())]
    # How to train follows from what on: a classification or energies and forces.
    defaults += [{"training": "${data}"}, "_self_"]
    store.store(name="eqfuse", node={"defaults": defaults})
    for group, choices in GROUPS.items():
        for name, node in choices.items():
            store.store(group=group, name=name, node=node)


_register()


def parse(arguments: list[str]) -> Config:
    """Return the configuration that the arguments ask for.

    Args:
      arguments: Hydra overrides such as "model=nequip", "layers=3", "data.path=FILE"; those of a
        preset come before them, wherever it stands.
    Raises:
      ConfigError: an argument that is misspelt, ill-typed or impossible, with the nearest names.
    """
    overrides = [_override(argument) for argument in arguments]
    choices = dict(DEFAULTS)
    for override in overrides:
        key, value = override.key_or_group, override.value()
        if key in choices:
            _check_choice(key, value)
            choices[key] = value
    settings = settings_of(choices)
    lines = _preset_lines(overrides, settings, choices)
    for override in overrides:
        key = override.key_or_group
        if key in choices:
            lines.append(override.input_line)
            continue
        full = SHORTHANDS.get(key, key)
        _check_key(key, full, settings, choices)
        if settings[full].type in (str, str | None):
            override = _as_text(override)
        lines.append(full + override.input_line[len(key) :])
    with initialize(version_base="1.3", config_path=None):
        try:
            return _placed(OmegaConf.to_object(compose("eqfuse", overrides=lines)))
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(short(error, settings)) from error


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML; a `${` that is part of a text is escaped."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(dataclasses.asdict(config))))


def _escaped(value):
    """Plain settings whose texts mean themselves to OmegaConf, where they hold a ${."""
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _override(argument: str):
    if argument.startswith(("+", "~", "-")):
        raise ConfigError(f"{argument} is not understood; write settings as name=value, see --help")
    key, equals, value = argument.partition("=")
    if not equals or not key:
        raise ConfigError(f"{argument} is not a setting; write it as name=value, see --help")
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException:
        override = None
    if override is None or override.is_sweep_override():
        # A file name may hold characters that mean something to Hydra.
        override = _quoted(key, value)
    return override


def _quoted(key: str, value: str):
    """Return the override whose value is this text, whatever it means to Hydra."""
    # A backslash means something to Hydra only before a quotation mark.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)$", r"\1\1", value))
    try:
        return OverridesParser.create().parse_override(f"{key}='{escaped}'")
    except HydraException as error:
        raise ConfigError(
            f"{key}={value} is not a setting; write it as name=value, see --help"
        ) from error


def _as_text(override):
    """Return the override of a text by what was typed: 2024_06_01 is a number to Hydra."""
    key, _, value = override.input_line.partition("=")
    if value == "null" or (value[:1] in ("'", '"') and value[:1] == value[-1:]):
        return override
    return _quoted(key, value)


def _placed(config: Config) -> Config:
    """With the paths that are read whole: a run may be gone on with from another folder."""
    run = None if config.run is None else os.path.expanduser(config.run)
    data = _with_whole_paths(config.data)
    return dataclasses.replace(_with_whole_paths(config), data=data, run=run)


def _with_whole_paths(settings):
    def whole(path):
        return path if path in (None, FIT) else os.path.abspath(os.path.expanduser(path))

    paths = [f.name for f in dataclasses.fields(settings) if f.metadata.get("reads")]
    return dataclasses.replace(settings, **{name: whole(getattr(settings, name)) for name in paths})


def _check_choice(group: str, value):
    value = str(value)
    if value not in GROUPS[group]:
        raise ConfigError(f"{group}={value} is unknown; {nearest(value, GROUPS[group])}")


def _preset_lines(overrides, settings: dict, choices: dict) -> list[str]:
    """Return the settings of the preset that is asked for last, as Hydra overrides."""
    names = [o.value() for o in overrides if o.key_or_group == "preset"]
    if not names or names[-1] is None:
        return []
    name, model = str(names[-1]), choices["model"]
    presets = PRESETS.get(model, {})
    if not presets:
        raise ConfigError(f"preset={name}: model={model} has no presets")
    if name not in presets:
        raise ConfigError(f"preset={name} is unknown for model={model}; {nearest(name, presets)}")
    if not presets[name].keys() <= settings.keys():
        raise ConfigError(
            f"preset={name} sets the training on molecules, which data={choices['data']} does not "
            "have; give data=extxyz and data.path=FILE, or other data"
        )
    found = dict(presets[name])
    if any(o.key_or_group == "data.val_path" for o in overrides):
        found.pop("data.val", None)  # all frames of that file validate
    return [f"{key}={value}" for key, value in found.items()]


def settings_of(choices: dict) -> dict[str, dataclasses.Field]:
    """Return every setting of the chosen groups by its full name."""
    groups = {"model": choices["model"], "data": choices["data"], "training": choices["data"]}
    settings = {f.name: f for f in dataclasses.fields(Config) if f.name not in groups}
    for group, choice in groups.items():
        for f in dataclasses.fields(GROUPS[group][choice]):
            if f.name != "name":
                settings[f"{group}.{f.name}"] = f
    return settings


def _check_key(key: str, full: str, settings: dict, choices: dict):
    if full in settings:
        return
    if key == "training":
        raise ConfigError("training follows from data=; set its fields, such as training.lr=0.01")
    group = full.partition(".")[0]
    if key in SHORTHANDS:
        choice = choices["data" if group == "training" else group]
        raise ConfigError(f"{key}: {group}={choice} has no such setting")
    owners = [
        f"{group}={choice}"
        for choice, node in GROUPS.get(group, {}).items()
        if full.partition(".")[2] in {f.name for f in dataclasses.fields(node)} - {"name"}
    ]
    if owners:
        # The fields of training follow the data.
        owners = [owner.replace("training=", "data=") for owner in owners]
        raise ConfigError(f"{key} is a setting of {' and '.join(owners)} only")
    shorthands = [name for name, target in SHORTHANDS.items() if target in settings]
    names = [*settings, *shorthands, *choices]
    by_leaf = [name for name in settings if name.endswith("." + key)]
    hint = "nearest: " + ", ".join(by_leaf) if by_leaf else nearest(key, names)
    raise ConfigError(f"{key} is not a setting of this run; {hint}")


def short(error: Exception, settings: dict) -> str:
    """Return Hydra's message without its stack of causes and internal types."""
    cause = error.__cause__ or error
    lines = str(cause).splitlines()
    key = next((line.split(":")[1].strip() for line in lines if "full_key:" in line), None)
    if key not in settings:
        return lines[0]
    if isinstance(cause, GrammarParseError):
        return f"{key}: {lines[0]}; write \\${{ for a ${{ that is part of a name"
    kind = settings[key].type
    kind = kind.__name__ if isinstance(kind, type) else str(kind).replace("None", "null")
    return f"{key}: {lines[0]}; it takes {kind}"
