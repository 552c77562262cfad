"""The command `eqfuse info [RUN]`: this machine, or what a run trained."""

import argparse

from eqfuse import models
from eqfuse.ops.info import info
from eqfuse.train import CheckpointError, load_run
from eqfuse.train.run.stopping import fail


def main(arguments: list[str]) -> int:
    """Print the backends, devices and versions of this machine, or the network of a run.

    Args:
      arguments: none, or the run's folder, or a file of its network.
    Returns:
      The exit code: 2 where there is no readable network.
    """
    what = "Print the backends, devices and versions of this machine, or what a run trained."
    parser = argparse.ArgumentParser(prog="eqfuse info", description=what)
    parser.add_argument("run", nargs="?", help="the folder of a run, or a file of its network")
    run = parser.parse_args(arguments).run
    if run is None:
        print(info())
        return 0
    try:
        module, variables, metadata = load_run(run)
    except (CheckpointError, ValueError) as error:
        return fail(2, error)
    print(models.summary(module, variables))
    if metadata["potential"] is not None:
        print(f"  radial   {module.model.radial}, tables of {module.model.radial_knots} knots")
    return 0
