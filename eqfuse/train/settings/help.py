"""The text of `eqfuse train --help`, made from the settings."""

import dataclasses
import textwrap
from typing import get_args

from eqfuse.train.settings.config import DEFAULTS, GROUPS, SHORTHANDS, Config
from eqfuse.train.settings.presets import PRESETS

_HEAD = """\
Train an equivariant interatomic potential.

  eqfuse train [name=value ...]

Examples
  eqfuse train                               NequIP learns the eight Tetris shapes
  eqfuse train model=allegro layers=1        Allegro, which is strictly local, learns them
  eqfuse train data=FILE.xyz                 train on energies and forces (eV, eV/Å)
  eqfuse train model=mace preset=large data=FILE.xyz data.val=OTHER.xyz data.test=THIRD.xyz
  eqfuse train data=FILE.xyz channels=16 max_minutes=5 run=runs/first
  eqfuse train config=runs/first/config.yaml seeds=4    the same, four times, with other seeds

Options
  config=FILE    take the settings of a YAML file, such as config.yaml of a run, or a few of your
                 own; those of the command line override them
  seeds=N        train N runs, with seed=0 to N-1, in the folders RUN/seed=0 and so on
  -m             train a run for each value of a list: training.lr=1e-2,1e-3 -m. Several lists
                 give all combinations; run= is the folder of all of them
  resume=FOLDER  continue an interrupted run with its own settings; only steps=, epochs=,
                 max_minutes=, devices=, profile= and model.radial= (with its knots and accuracy)
                 may change. On a CPU, this reproduces the uninterrupted run exactly, except with
                 max_minutes= or another model.radial=
  start_from=FOLDER
                 start from the trained network of a run, on other data and with other training:
                 its irreps, its elements and its reference energies stay; model.radial= may
                 change, and knots of tables are chosen anew. For data of another method, such as
                 DFT after a cheaper one: data.reference_energies=fit, or a file of atoms. Its
                 errors on the new data are epoch 0
  profile=true   trace a few steps before the training, print what they launch and how long, and
                 keep the trace in the folder of the run, for Perfetto or TensorBoard
  devices=all    share every batch between the devices of this machine: the same training, faster
  devices=distributed
                 the same between the devices of several processes, on one machine or several,
                 each started with the same command: by Slurm or Open MPI, or with
                 JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES=N and JAX_PROCESS_ID=0..N-1
                 in the environment. The first one writes the folder of the run
  --help     this text
  --cfg      print the resolved configuration of the given settings, and stop
  --version  print the version, and stop
"""

_TAIL = """\
A run writes its folder: config.yaml, metrics.csv and checkpoints/ (best and last), which
eqfuse.train.load_run(FOLDER) reads. Ctrl-C stops a run and keeps its checkpoint; so do SIGTERM,
SIGHUP (a closed terminal; not under nohup) and SIGUSR1, which Slurm sends ahead of its time limit
with --signal=USR1@60. After that, or after a crash, resume=FOLDER goes on. Of the last checkpoint
two are kept: if the newer is damaged, the older is taken, with a warning.
Exit codes: 0 done; 1 the training failed; 2 settings or data refused; 130 interrupted by Ctrl-C, or
128 and the number of another signal.
"""


def help_text() -> str:
    """Return the help: examples, choices, then every setting with its default."""
    parts = [_HEAD, "Choices"]
    parts += [_line(choice, doc) for rows in choices().values() for choice, doc in rows]
    parts += ["", "Presets (a setting beside one overrides it)"]
    parts += [_line(f"model={model}", f"preset={'|'.join(PRESETS[model])}") for model in PRESETS]
    parts += ["", "Shorthands", *(f"  {short} = {full}" for short, full in SHORTHANDS.items())]
    for title, rows in sections():
        parts += ["", f"Settings of {title} (default in brackets)"]
        parts += [_line(name, f"{text} [{default}]") for name, text, default in rows]
    return "\n".join([*parts, "", _TAIL])


def choices() -> dict[str, list[tuple[str, str]]]:
    """Return for each group the choices, as `name=value` and what it is."""
    return {
        group: [
            (f"{group}={name}", node.__doc__ + (" Default." if DEFAULTS[group] == name else ""))
            for name, node in GROUPS[group].items()
        ]
        for group in DEFAULTS
    }


def sections():
    """Yield the title and the (name, help, default) of the settings that choices have in common."""
    yield "every run", [_row("", f) for f in dataclasses.fields(Config) if "help" in f.metadata]
    for group, nodes in GROUPS.items():
        owners = {}
        for choice, node in nodes.items():
            for f in dataclasses.fields(node):
                if "help" in f.metadata:
                    owners.setdefault(_row(f"{group}.", f), []).append(choice)
        for names in dict.fromkeys(map(tuple, sorted(owners.values(), key=len, reverse=True))):
            left_out = [name for name in nodes if name not in names]
            of = ", ".join(names) if len(left_out) != 1 else f"all but {left_out[0]}"
            title = f"training on data={of}" if group == "training" else f"{group}={of}"
            yield title, [row for row, owned in owners.items() if tuple(owned) == names]


def _row(prefix: str, field: dataclasses.Field) -> tuple[str, str, str]:
    default = "null" if field.default is None else str(field.default)
    default = default.lower() if isinstance(field.default, bool) else default
    text = field.metadata["help"]
    values = [v for kind in (field.type, *get_args(field.type)) for v in get_args(kind)]
    values = [value for value in values if isinstance(value, str)]
    if values:
        text = f"{', '.join(values)}; {text}"
    return prefix + field.name, text, default


def _line(name: str, text: str) -> str:
    return textwrap.fill(f"  {name:<28} {text}", 100, subsequent_indent=" " * 31)
