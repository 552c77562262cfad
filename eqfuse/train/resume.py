"""Configurations that take settings from a run: to go on with it, or to start from its network."""

import dataclasses
import os
from pathlib import Path

from eqfuse.runs import files
from eqfuse.runs.errors import CheckpointError, ConfigError
from eqfuse.runs.schema import require
from eqfuse.train.settings.config import Config
from eqfuse.train.settings.options import SHORTHANDS, flat, from_plain, parse, read_yaml

# A run may be made longer, and go on elsewhere; anything else would make it another run.
LENGTHS = ("steps", "epochs", "max_minutes")
CHANGEABLE = (*LENGTHS, "devices", "verbose")

TUNING_LR = {"muon": 0.003, "adam": 0.001, "adamw": 0.001, "amsgrad": 0.001}
"""Learning rates by default for a converted network: measured, see
`benchmarks/results/trained_networks.md`."""

REPLAY_LR = 0.2
"""Factor of these with replay, which larger steps make unstable: measured, see
`benchmarks/results/tuning.md`."""


def resumed_config(arguments: list[str]) -> Config | None:
    """Return the configuration that `resume=FOLDER` asks for; None if it is not given."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if given.get("resume", "null") == "null":
        return None
    require(given["resume"] != "", "resume", "", "the folder of a run")
    if others := [n for n in given if n not in ("resume", *CHANGEABLE)]:
        raise ConfigError(
            f"{', '.join(others)} cannot be given with resume=, which goes on with the settings of "
            f"the run; only {', '.join(CHANGEABLE)} can. start_from={given['resume']} "
            "trains its network with other settings, in a new run"
        )
    others = parse([*arguments, "data=ethanol"])  # any data, which are not used
    folder = others.resume
    path = Path(folder) / "config.yaml"
    config = from_plain(read_yaml(path), path)
    if files.has_checkpoint(folder, "best") and not files.has_checkpoint(folder, "last"):
        raise ConfigError(
            f"{folder} holds a network and no training to go on with; "
            f"start_from={folder} trains it further, in a folder of its own"
        )
    changed = {name: getattr(others, name) for name in CHANGEABLE if name in given}
    return dataclasses.replace(config, **changed, run=folder, resume=folder)


def started_config(arguments: list[str]) -> Config | None:
    """Return the configuration that `start_from=` asks for; None if it is not given."""
    names = {SHORTHANDS.get(n, n): n for n in (a.partition("=")[0] for a in arguments)}
    others = [n for full, n in names.items() if full.partition(".")[0] in ("model", "preset")]
    config = None if "start_from" in names and others else parse(arguments)
    if config is not None and config.start_from is None:
        return None
    if others:
        raise ConfigError(
            f"{', '.join(others)} cannot be given with start_from=, which keeps the network of the "
            "run; only its data and its training can be others"
        )
    from eqfuse.convert.names import resolved  # which import JAX
    from eqfuse.runs.checkpoint import read_metadata

    head = config.head
    try:
        run = os.path.abspath(resolved(config.start_from))
        if head is None and config.heads:  # one that goes on, if there is one
            known = files.heads_of(run)
            head = next((name for name in config.heads if name in known), None)
        if head is None:
            files.require_one_head(run)
        start = Path(files.head_file(run, head))
        metadata = read_metadata(start)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    config = dataclasses.replace(config, start_from=str(start), head=None)
    training, given = config.training, set(names)
    model = from_plain(metadata["config"], start).model
    if "config" in given:  # it has all settings of the training
        given |= {"training.optimizer", "training.lr"}
    if "converted" in metadata:  # smaller steps by default
        optimizer = training.optimizer if "training.optimizer" in given else "adam"
        usual = TUNING_LR[optimizer] * (REPLAY_LR if config.replay else 1.0)
        lr = training.lr if "training.lr" in given else usual
        training = dataclasses.replace(training, optimizer=optimizer, lr=lr)
    return dataclasses.replace(config, model=model, training=training)


def check_same_run(ours: dict, theirs: dict, folder: Path):
    """Refuse a checkpoint with other settings (`theirs`) than those in config.yaml (`ours`)."""
    ours, theirs = flat(ours, folder), flat(theirs, folder)
    different = [
        f"{key} ({theirs.get(key)} there, {ours.get(key)} here)"
        for key in sorted(ours.keys() | theirs.keys())
        if key not in (*CHANGEABLE, "run", "resume") and ours.get(key) != theirs.get(key)
    ]
    if different:
        raise ConfigError(
            f"the checkpoint in {folder} is of another run than its config.yaml: "
            + ", ".join(different)
        )
