"""A command of mace (`mace_run_train`), translated to `eqfuse train`."""

import ast
import re
import shlex
from pathlib import Path

import yaml

from eqfuse.runs.errors import ConfigError
from eqfuse.runs.schema import one_of, require
from eqfuse.train.settings.options import OTHER_NAMES, parse, read_own

_MACE = read_own("mace.yaml")
_OF_HEAD = {"train_file": "", "valid_file": ".val_path", "test_file": ".test"}
_OF_HEAD |= {"E0s": ".reference_energies", "energy_key": ".energy_key", "forces_key": ".forces_key"}
"""What mace calls the settings of a head, and what follows its name here."""


def translated(command: str) -> str:
    """Return the command that trains here as one of mace does, with comments on the rest.

    Weights of the loss, whose means are mace's, keep their numbers.

    Raises:
      ConfigError: what is no command of mace, or cannot be trained here.
    """
    typed = _options(command)
    if "config" in typed:
        path = Path(typed["config"])
        try:
            typed = yaml.safe_load(path.read_text(encoding="utf-8")) | typed
        except (OSError, TypeError, yaml.YAMLError) as error:
            raise ConfigError(f"--config {path} cannot be read: {error}") from error
    typed = {name.replace("stage_two", "swa"): str(value) for name, value in typed.items()}
    given = {name: str(value) for name, value in _MACE["defaults"].items()} | typed
    ours = {setting: value for name, value in given.items() if (setting := _same(name))}
    ours |= _network(given) | _training(given)
    for theirs, name in {"train_file": "data", "valid_file": "data.val", "name": "run"}.items():
        if theirs in given:
            ours[name] = given[theirs]
    if "valid_file" not in given:
        ours["data.val"] = given.get("valid_fraction", "0.1")
    if "test_file" in given:
        ours["data.test"] = given["test_file"]
    if given.get("E0s", "None").lower() not in ("none", "foundation"):
        ours["data.reference_energies"] = given["E0s"]
    for name, own in ast.literal_eval(given.get("heads", "{}")).items():
        own = {f"heads.{name}{ending}": own.get(theirs) for theirs, ending in _OF_HEAD.items()}
        ours |= {setting: value for setting, value in own.items() if value is not None}
    lines = []
    if "foundation_model" in given:
        ours = {k: v for k, v in ours.items() if k.partition(".")[0] not in _MACE["network"]}
        ours["start_from"] = "foundation"
        if given.get("E0s") in ("average", "estimated"):
            ours["data.reference_energies"] = "fit"
        lines.append(f"eqfuse convert mace {shlex.quote(given['foundation_model'])} foundation")
    arguments = [f"{name}={value}" for name, value in ours.items() if value is not None]
    if "foundation_model" not in given:  # whose folder does not exist yet
        parse(arguments)
    lines.append(" ".join(["eqfuse train", *map(shlex.quote, arguments)]))
    for name, value in typed.items():
        if name not in _MACE["translated"] and not _same(name) and value != "False":
            lines.append(f"# --{name}: {OTHER_NAMES.get(name, 'no option of mace')}")
    return "\n".join(lines)


def _same(name: str) -> str | None:
    """Return the setting that has the same values as an option of mace; None without one."""
    match = re.fullmatch(r"([\w.]+)=", OTHER_NAMES.get(name, ""))
    return match and match[1]


def _options(command: str) -> dict[str, str]:
    """Return the options of a command line by name; one without a value is "True"."""
    options, name = {}, None
    for word in shlex.split(command):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            if name not in OTHER_NAMES:
                raise ConfigError(f"--{name} is no option of mace_run_train")
            options[name] = value if equals else "True"
        elif name is not None:
            options[name] = word
    if not options:
        raise ConfigError(
            "--from-mace needs a command: eqfuse train --from-mace 'mace_run_train ...'"
        )
    return options


def _network(given: dict[str, str]) -> dict:
    one_of("--model", given["model"], ("MACE", "ScaleShiftMACE"))
    hidden = given.get("hidden_irreps", "").replace(" ", "")
    channels, largest = given.get("num_channels", "128"), given.get("max_L", "1")
    if hidden and not {"num_channels", "max_L"} <= given.keys():
        parts = [re.fullmatch(r"(\d+)x(\d+)([eo])", part) for part in hidden.split("+")]
        same = all(parts) and len({part[1] for part in parts}) == 1
        need = "of one number of channels for each l, such as 64x0e+64x1o"
        require(same, "--hidden_irreps", hidden, need)
        channels, largest = parts[0][1], str(max(int(part[2]) for part in parts))
    widths = ast.literal_eval(given["radial_MLP"])
    require(len({*widths}) == 1, "--radial_MLP", widths, "of layers of one width")
    scaled = given["model"] == "ScaleShiftMACE"
    transform = given.get("distance_transform", "None").lower()
    return {
        "model": "mace",
        "channels": channels,
        "model.hidden_lmax": largest,
        "model.radial_layers": len(widths),
        "model.radial_hidden": widths[0],
        "model.readout_hidden": given["MLP_irreps"].partition("x")[0],
        "model.first_skip" if scaled else "model.species_linear": "true",
        "model.distance_transform": None if transform == "none" else transform,
        "model.zbl": "true" if given.get("pair_repulsion") == "True" else None,
        "model.avg_num_neighbors": None,  # mace's is of the data too, by default
    }


def _training(given: dict[str, str]) -> dict:
    loss, optimizer = given["loss"], given["optimizer"]
    one_of("--loss", loss, _MACE["losses"])
    one_of("--scheduler", given["scheduler"], ("ReduceLROnPlateau", "ExponentialLR"))
    one_of("--optimizer", optimizer, ("adam", "adamw"))
    adam, plateau = optimizer == "adam", given["scheduler"] == "ReduceLROnPlateau"
    epochs, stage, stage_energy = int(given["max_num_epochs"]), "null", None
    if given.get("swa") == "True" or "start_swa" in given:
        start = int(given.get("start_swa", max(1, epochs // 4 * 3)))
        if start < epochs:
            forces = float(given["forces_weight"]) / float(given["swa_forces_weight"])
            stage = f"{start / epochs:.4g}"
            stage_energy = f"{float(given['swa_energy_weight']) * forces:g}"
    return {
        "training.loss": _MACE["losses"][loss],
        "training.energy_weight": "0" if loss == "forces_only" else given["energy_weight"],
        "training.stress_weight": given["stress_weight"] if loss in _MACE["with_stress"] else None,
        "training.optimizer": "amsgrad" if adam and given["amsgrad"] == "True" else optimizer,
        "training.weight_decay": None if adam else given.get("weight_decay", "5e-07"),
        "training.schedule": "plateau" if plateau else "exponential",
        "training.factor": given["lr_factor" if plateau else "lr_scheduler_gamma"],
        "training.patience": given["scheduler_patience"] if plateau else None,
        "training.ema_decay": given["ema_decay"] if given.get("ema") == "True" else "0",
        "training.warmup_steps": "0",
        "training.min_lr": "1e-12",
        "training.second_stage": stage,
        "training.second_energy_weight": stage_energy,
    }
