"""The logits of the eight Tetris shapes from node features."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse.graph import Graph

IRREPS = e3nn.Irreps("0o + 7x0e")


def tetris_logits(node_out: e3nn.IrrepsArray, graph: Graph) -> jax.Array:
    """Return the logits of the shapes, from the sum of the node features of each graph.

        [o e_1, -o e_1, e_2, ..., e_7]

    with o the pseudoscalar and e_1 ... e_7 the scalars. A mirror flips o alone, and so swaps the
    first two: the two chiral shapes.

    Args:
      node_out: IrrepsArray [n_nodes, 0o + 7x0e].
      graph: gives `graph_index` and `node_mask`.
    Returns:
      [n_graphs, 8].
    Raises:
      ValueError: node features that are not 0o + 7x0e.
    References: e3nn-jax, examples/tetris_point_jraph.py.
    """
    if node_out.irreps != IRREPS:
        raise ValueError(f"the Tetris head reads {IRREPS}, got {node_out.irreps}")
    values = jnp.where(graph.node_mask[:, None], node_out.array, 0)
    members = graph.graph_index == jnp.arange(graph.num_graphs)[:, None]
    pooled = jnp.sum(jnp.where(members[:, :, None], values, 0), axis=1)  # [n_graphs, 8]
    chiral = pooled[:, :1] * pooled[:, 1:2]
    return jnp.concatenate([chiral, -chiral, pooled[:, 2:]], axis=1)
