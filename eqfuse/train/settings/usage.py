"""What `eqfuse train --help` prints, made from the dataclasses of the configuration."""

import dataclasses
import textwrap

from eqfuse.train.settings.config import (
    DEFAULTS,
    GROUPS,
    SHORTHANDS,
    Config,
    MoleculeTraining,
    PotentialConfig,
)
from eqfuse.train.settings.data_config import (
    ExtxyzData,
    FileData,
    MoleculeData,
    PublicData,
    RMD17Data,
)
from eqfuse.train.settings.presets import PRESETS

_HEAD = """\
Train an equivariant interatomic potential.

  {program} [name=value ...]

Examples
  {program}                                  NequIP learns the eight Tetris shapes
  {program} model=nequip layers=3 seed=1     the same, three layers, another seed
  {program} model=allegro layers=1           with Allegro, which is strictly local
  {program} model=tetris                     the Tetris network of e3nn-jax
  {program} data=extxyz data.path=FILE.xyz   train on energies and forces (eV, eV/Å)
  {program} model=mace preset=large data=extxyz data.path=FILE.xyz
  {program} data=extxyz data.path=FILE.xyz channels=16 max_minutes=5 run=runs/first

Options
  resume=FOLDER  continue an interrupted run with its own settings; only steps=, epochs=,
                 max_minutes=, devices= and profile= may change. On a CPU, this reproduces the
                 uninterrupted run exactly, except with max_minutes=
  start_from=FOLDER
                 start from the trained network of a run, on other data and with other training:
                 its irreps, its elements and its reference energies stay. For data of another
                 method, say DFT after a cheaper one: data.reference_energies=fit, or a file of
                 atoms. Its errors on the new data are epoch 0
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
${oc.env:NAME} in a setting stands for a variable of the environment, and config.yaml holds what it
stood for; \\${ is the text itself.
Exit codes: 0 done; 1 the training failed; 2 settings or data refused; 130 interrupted by Ctrl-C, or
128 and the number of another signal.
"""


def usage(program: str = "python train.py") -> str:
    """Return the help text: examples, choices, then every setting with its default.

    Args:
      program: how the command is called.
    """
    parts = [_HEAD.replace("{program}", program), "Choices"]
    for group in DEFAULTS:
        for name, node in GROUPS[group].items():
            mark = " (default)" if DEFAULTS[group] == name else ""
            parts.append(_line(f"{group}={name}", f"{node.__doc__}{mark}"))
    parts += ["", "Presets (what is given beside one wins over it)"]
    parts += [_line(f"model={model}", f"preset={'|'.join(PRESETS[model])}") for model in PRESETS]
    parts += ["", "Settings of every run (default in brackets)"]
    parts += _fields(Config, "")
    parts += ["", "Shorthands", *(f"  {short} = {full}" for short, full in SHORTHANDS.items())]
    for title, prefix, node in sections():
        parts += ["", f"Settings of {title}", *_fields(node, prefix)]
    return "\n".join([*parts, "", _TAIL])


def sections():
    """Yield (title, prefix, dataclass) of the settings of each choice."""
    yield "all models but tetris", "model.", PotentialConfig
    for name, node in GROUPS["model"].items():
        if name != "tetris":
            yield f"model={name}", "model.", node
    yield "data=tetris", "data.", GROUPS["data"]["tetris"]
    yield "all data but tetris", "data.", MoleculeData
    yield "data=extxyz, 3bpa, acac, rmd17 and md22", "data.", FileData
    yield "data=extxyz", "data.", ExtxyzData
    yield "data=3bpa, acac, rmd17 and md22", "data.", PublicData
    yield "data=rmd17 and md22", "data.", RMD17Data
    yield "training on data=tetris", "training.", GROUPS["training"]["tetris"]
    yield "training on other data", "training.", MoleculeTraining


def own_fields(node) -> list[dataclasses.Field]:
    """Return the settings of a dataclass; inherited ones only where they differ."""
    extended = node.__base__
    inherited = dataclasses.fields(extended) if dataclasses.is_dataclass(extended) else ()
    known = {(f.name, f.default, f.metadata.get("help")) for f in inherited}
    settings = [f for f in dataclasses.fields(node) if "help" in f.metadata]
    return [f for f in settings if (f.name, f.default, f.metadata["help"]) not in known]


def _fields(node, prefix: str) -> list[str]:
    """Return a line for each setting of a dataclass."""
    lines = []
    for f in own_fields(node):
        default = "null" if f.default is None else f.default
        lines.append(_line(f"{prefix}{f.name}", f"{f.metadata['help']} [{default}]"))
    return lines


def _line(name: str, text: str) -> str:
    return textwrap.fill(f"  {name:<28} {text}", 100, subsequent_indent=" " * 31)
