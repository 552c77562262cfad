"""A batch of atomic structures as one graph, which `data` makes and `models` read."""

import dataclasses
from typing import Any

import jax

from eqfuse.ops import Edges


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Graph:
    """Structures side by side, padded to a fixed size.

    An edge goes from the neighbour (sender j) to the centre (receiver i), and its vector is
    `positions[j] + shifts - positions[i]`. Padding nodes belong to a padding graph; a padding edge
    joins any node to itself without a shift, so that its vector is exactly zero, and models give
    edges of zero length no weight.
    """

    positions: jax.Array  # [n_nodes, 3] Å
    species: jax.Array  # [n_nodes] int32, index into the model's table of species
    edges: Edges  # the neighbour list; see `eqfuse.ops.Edges`
    shifts: jax.Array  # [n_edges, 3] Å, the periodic image of the sender, as a Cartesian vector
    graph_index: jax.Array  # [n_nodes] int32, the graph that each node belongs to, non-decreasing
    cells: jax.Array  # [n_graphs, 3, 3] Å, rows are lattice vectors; zero for a molecule
    node_mask: jax.Array  # [n_nodes] bool, False for padding
    graph_mask: jax.Array  # [n_graphs] bool, False for padding
    heads: jax.Array | None = None  # [n_graphs] int32, see `eqfuse.models.heads`
    reach: Any = None  # what sums of charges need, see `eqfuse.models.ewald.Reach`
    charges: jax.Array | None = None  # [n_graphs] e, the total charges, if these are read

    @property
    def num_graphs(self) -> int:
        return self.cells.shape[0]

    @property
    def vectors(self) -> jax.Array:
        """Return edge vectors [n_edges, 3] Å, from receiver (centre) to sender (neighbour)."""
        return (
            self.positions[self.edges.senders] + self.shifts - self.positions[self.edges.receivers]
        )
