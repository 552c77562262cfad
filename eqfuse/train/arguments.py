"""From arguments to configurations: of new runs, of one that goes on, of one from a network."""

import contextlib
import dataclasses
import datetime
import os
import re
from pathlib import Path

from eqfuse.runs import files
from eqfuse.runs.command import undashed
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.schema import require, split, typed
from eqfuse.train.settings.config import MODELS, Config, known
from eqfuse.train.settings.options import SHORTHANDS, checked, flat, from_plain, read_yaml
from eqfuse.train.sources import SETS

# A run may be made longer, and go on elsewhere; anything else would make it another run.
LENGTHS = ("steps", "epochs", "max_minutes")
CHANGEABLE = (*LENGTHS, "devices", "verbose")

TUNING_LR = {"muon": 0.003, "adam": 0.001, "adamw": 0.001, "amsgrad": 0.001}
"""Learning rates by default for a converted network: measured, see
`benchmarks/results/trained_networks.md`."""

REPLAY_LR = 0.2
"""Factor of these with replay, which larger steps make unstable: measured, see
`benchmarks/results/tuning.md`."""


def parse(arguments: list[str]) -> Config:
    """Return the configuration that the arguments, such as "layers=3", ask for.

    They override those of a preset, wherever it stands, and of config=FILE, and the later of two
    the earlier. What is misspelt, ill-typed or impossible is refused, with the nearest names.
    """
    given = _given(arguments)
    if "seeds" in given:
        raise ConfigError("seeds= trains several runs, and this trains one run; call it for each")
    return _configured(given)


def parse_all(arguments: list[str]) -> list[Config]:
    """Return the configurations of the runs that the arguments ask for, several with `seeds=N`."""
    given = _given(arguments)
    if (count := given.pop("seeds", None)) is None:
        return [_configured(given)]
    fits = count.isdecimal() and 0 < int(count) < 10**4
    require(fits, "seeds", count, "a number of runs")
    if "resume" in given:
        raise ConfigError("resume= goes on with one run; leave seeds= out")
    if "seed" in given:
        raise ConfigError(f"seeds={count} trains runs of seed=0 to {int(count) - 1}; leave one out")
    one, seeds = _configured(given), range(int(count))
    folder = one.run or f"runs/{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}_seeds"
    configs = [dataclasses.replace(one, seed=k, run=f"{folder}/seed={k}") for k in seeds]
    for config in configs:
        files.require_free(config.run)
    return configs


def _given(arguments: list[str]) -> dict[str, str]:
    """Return the values that are typed by the full names of their settings."""
    given, fields = {}, {name: field for model in MODELS for name, field in known(model).items()}
    for argument in undashed(arguments, fields):
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
    return given


def _configured(given: dict[str, str]) -> Config:
    if given.get("resume", "null") != "null":
        return _resumed(given)
    base, file = {}, given.pop("config", "null")
    if file != "null":
        path = Path(file).expanduser()
        base = flat(read_yaml(path / "config.yaml" if os.path.isdir(path) else path), file)
        left = ["run", "resume"]  # another run has a folder of its own
        left += [g for g in ("model", "data") if g in given and given[g] != base.get(g)]
        base = {k: v for k, v in base.items() if k.partition(".")[0] not in left}
    if ({"start_from": None} | base | given)["start_from"] in (None, "null"):
        return checked(base, given)
    return _started(base, given)


def _resumed(given: dict[str, str]) -> Config:
    """Return the configuration of the run in the folder `resume`, with what may change of it."""
    require(given["resume"] != "", "resume", "", "the folder of a run")
    if others := [n for n in given if n not in ("resume", *CHANGEABLE)]:
        others = dict.fromkeys(re.sub(r"(\.name|[._]path)$", "", name) for name in others)
        raise ConfigError(
            f"{', '.join(others)} cannot be given with resume=, which goes on with the settings of "
            f"the run; only {', '.join(CHANGEABLE)} can. start_from={given['resume']} "
            "trains its network with other settings, in a new run"
        )
    fields = known("nequip")
    changed = {name: typed(name, fields[name], text) for name, text in given.items()}
    folder = changed["resume"]
    path = Path(folder) / "config.yaml"
    config = from_plain(read_yaml(path) | _lengths(folder), path)
    if files.has_checkpoint(folder, "best") and not files.has_checkpoint(folder, "last"):
        raise ConfigError(
            f"{folder} holds a network and no training to go on with; "
            f"start_from={folder} trains it further, in a folder of its own"
        )
    path, kept = config.data.path or "", Path(folder) / files.FRAMES
    if os.path.basename(path) == files.FRAMES and not os.path.exists(path) and kept.exists():
        own = dataclasses.replace(config.data, path=str(kept.resolve()))  # the folder was moved
        config = dataclasses.replace(config, data=own)
    return dataclasses.replace(config, **changed, run=folder)


def _lengths(folder: str) -> dict:
    """Return the lengths in the last checkpoint of a run, which was perhaps made longer."""
    for file in files.FILES["last"]:
        with contextlib.suppress(CheckpointError):  # the one before it is taken, or none
            path = Path(folder) / "checkpoints" / file
            config = files.read_file(path, only_metadata=True)[1]["config"]
            return {name: config[name] for name in LENGTHS}
    return {}


def _started(base: dict, given: dict[str, str]) -> Config:
    """Return the configuration of a run that starts from the network of another."""
    if others := [n for n in given if n.partition(".")[0] in ("model", "preset")]:
        raise ConfigError(
            f"{', '.join(others)} cannot be given with start_from=, which keeps the network of the "
            "run; only its data and its training can be others"
        )
    config = checked(base, given)
    from eqfuse.convert.names import resolved  # which import JAX
    from eqfuse.runs.checkpoint import read_metadata

    head = config.head
    try:
        run = os.path.abspath(resolved(config.start_from))
        if head is None and config.heads:  # one that goes on, if there is one
            known_heads = files.heads_of(run)
            head = next((name for name in config.heads if name in known_heads), None)
        if head is None:
            files.require_one_head(run)
        start = Path(files.head_file(run, head))
        metadata = read_metadata(start)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    training, usual = config.training, {}
    if "converted" in metadata and not base:  # smaller steps, unless config= has all settings
        optimizer = given.get("training.optimizer", "adam")
        lr = TUNING_LR[optimizer] * (REPLAY_LR if config.replay else 1.0)
        usual = {"optimizer": optimizer, "lr": lr}
        usual = {n: value for n, value in usual.items() if f"training.{n}" not in given}
    model = from_plain(metadata["config"], start).model
    training = dataclasses.replace(training, **usual)
    return dataclasses.replace(
        config, start_from=str(start), head=None, model=model, training=training
    )
