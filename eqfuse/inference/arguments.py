"""What the commands that predict for the frames of a file have in common."""

import argparse
from collections.abc import Callable

from eqfuse import data, ops
from eqfuse.train import CheckpointError
from eqfuse.train.device.process import keep_programs
from eqfuse.train.run.stopping import fail


def run(parser: argparse.ArgumentParser, arguments: list[str], task: Callable) -> int:
    """Run a command and return its exit code.

    Args:
      parser: of its arguments.
      arguments: of the command.
      task: called with the options.
    Returns:
      0 done; 2 a backend, a run or a file that cannot be used.
    """
    options = parser.parse_args(arguments)
    keep_programs()
    try:
        ops.resolve_here(getattr(options, "backend", None))
    except ValueError as error:
        return fail(2, ValueError(f"--backend: {error}"))
    try:
        task(options)
    except BrokenPipeError:  # of what reads the output, see `eqfuse.cli.main`
        raise
    except (CheckpointError, data.DataError, OSError) as error:
        return fail(2, error)
    return 0


def add_keys(parser: argparse.ArgumentParser):
    """Add the names of the labels in a file, see `label_keys`."""
    for name, unit in (("energy", "eV"), ("forces", "eV/Å"), ("stress", "eV/Å^3")):
        what = f"name in the file, {unit}; as in the training if not given"
        parser.add_argument(f"--{name}-key", help=what)


def add_backend(parser: argparse.ArgumentParser):
    """Add the backend."""
    what = "implementation of the ops, such as xla or triton,linear=xla; by device if not given"
    parser.add_argument("--backend", help=what)


def count_of(text: str) -> int:
    """Return the number of frames that an argument is."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of frames, 1 or more")
    return int(text)


def label_keys(options, trained_on: dict) -> data.Keys:
    """Return the names of the labels in a file, by default those of the training.

    Args:
      options: of the command.
      trained_on: the settings of the data of the run.
    """
    keys = {}
    for name, usual in data.Keys()._asdict().items():
        given = getattr(options, f"{name}_key")
        keys[name] = given or trained_on.get(f"{name}_key", usual)
        if keys[name] != usual:
            print(f"{name} under the key {keys[name]!r}")
    return data.Keys(**keys)
