"""What a run trained: `eqfuse info RUN` prints it."""

import sys

from eqfuse import models
from eqfuse.train import CheckpointError, load_run


def main(run: str) -> int:
    """Print the network of a run, and how exact tables of its radial functions are.

    Args:
      run: the run's folder, or a file of its network.
    Returns:
      The exit code: 2 where there is no readable network.
    """
    try:
        module, variables, metadata = load_run(run)
    except (CheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(models.summary(module, variables))
    if metadata["potential"] is not None:
        start = metadata.get("radial")
        at_start = "" if start is None else f" ({start['error']:.0e} when training began)"
        kind = module.model.radial
        print(f"  radial   {kind}; {models.accuracy_of(module, variables)}{at_start}")
    return 0
