"""Whether a network reads its radial functions from a table, and why."""

from typing import NamedTuple

import flax.linen as nn
import jax

KINDS = ("auto", "network", "table")
KNOTS = 128
"""Number of knots where none is given; errors of forces are about 1e-7 with them."""
EDGES_PER_KNOT = {"cpu": 8, "gpu": 16}
"""Number of edges for each knot from which on a table is taken: measured on a CPU, see
`benchmarks/results/radial_tables.md`, and predicted for a GPU."""


class Choice(NamedTuple):
    """Whether radial functions are read from a table, and why.

    Attributes:
      table: whether they are.
      knots: of each table.
      why: a text.
    """

    table: bool
    knots: int
    why: str


def choose(network: nn.Module, num_edges: int) -> Choice:
    """Return whether a network reads its radial functions from a table.

    Args:
      network: with `radial`, `radial_knots`, `radial_accuracy` and `num_pairs()`, see
        `eqfuse.models.NequIP`.
      num_edges: of a batch, with its padding.
    Raises:
      ValueError: settings that are out of range, by their names.
    """
    if network.radial not in KINDS:
        raise ValueError(f"radial must be one of {', '.join(KINDS)}, got {network.radial!r}")
    knots = KNOTS if network.radial_knots is None else network.radial_knots
    if knots < 4:
        raise ValueError(f"radial_knots must be at least 4, or None, got {knots}")
    if not network.radial_accuracy > 0:
        raise ValueError(f"radial_accuracy must be positive, got {network.radial_accuracy}")
    if getattr(network, "nonlinear", False):
        if network.radial == "table":
            raise ValueError(
                "radial='table' is not for nonlinear=True, whose networks read species"
            )
        return Choice(False, knots, "nonlinear interactions read species, too")
    if network.radial != "auto":
        return Choice(network.radial == "table", knots, f"radial={network.radial}")
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    pairs, need = network.num_pairs(), EDGES_PER_KNOT[platform]
    needed = need * knots * pairs
    each = f"{knots} knots" if pairs == 1 else f"{knots} knots for each of {pairs} pairs of species"
    compared = "at least" if num_edges >= needed else "fewer than"
    why = f"{num_edges} edges, {compared} {need} for each of {each}"
    return Choice(num_edges >= needed, knots, why)
