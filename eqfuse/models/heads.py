"""Several heads of one network: they share all but readouts, scales and shifts.

Their variables are those of one network, in which the arrays that heads do not share have a leading
axis, [n_heads, ...].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.graph import Graph


def is_of_head(path) -> bool:
    """Test whether each head has a parameter of this path, of keys, for itself."""
    names = [key.key for key in path]
    return names[1] in ("scale", "shift") or names[2].startswith("readout")


def stack_heads(heads: Sequence[dict]) -> dict:
    """Return the variables of heads together.

    Raises:
      ValueError: parameters that heads share, and that are not the same in all of them.
    """

    def together(path, *leaves):
        if is_of_head(path):
            return jnp.stack(leaves)
        if not all(np.array_equal(leaf, leaves[0]) for leaf in leaves[1:]):
            name = jax.tree_util.keystr(path[1:], simple=True, separator="/")
            raise ValueError(f"they differ in {name}")
        return leaves[0]

    return jax.tree.map_with_path(together, *heads)


def head_of(variables: dict, number: int) -> dict:
    """Return the variables of one head of those that `stack_heads` returned."""
    return jax.tree.map_with_path(
        lambda path, leaf: leaf[number] if is_of_head(path) else leaf, variables
    )


def node_energies(
    potential, variables: dict, vectors, graph: Graph, positions=None, cells=None
) -> jax.Array:
    """Return the energy of each node, [n_nodes] eV, by the head of its graph, with its charges.

    The layers that heads share run once: what does not depend on an array with a leading axis is
    not batched by `vmap`.

    Args:
      potential: the module.
      variables: its variables, or those of several heads together.
      vectors: [n_edges, 3] Å.
      graph: the batch.
      positions, cells: of the batch, Å, for charges; None for those of the graph.
    Raises:
      ValueError: a potential with charges, and a graph that was not made for one.
    """
    operands = vectors, graph.species, graph.edges
    if graph.heads is None:
        found = potential.apply(variables, *operands)
    else:
        axes = jax.tree.map_with_path(lambda path, _: 0 if is_of_head(path) else None, variables)
        apply = jax.vmap(potential.apply, in_axes=(axes, None, None, None))
        found = apply(variables, *operands)  # [n_heads, n_nodes, ...]

        def own_head(of_heads):
            is_own = graph.heads[graph.graph_index] == jnp.arange(len(of_heads))[:, None]
            is_own = is_own.reshape(is_own.shape + (1,) * (of_heads.ndim - 2))
            return jnp.sum(jnp.where(is_own, of_heads, 0), axis=0)

        found = jax.tree.map(own_head, found)
    if getattr(potential, "long_range", None) is None:
        return found
    if graph.reach is None:
        raise ValueError("a potential with charges needs batches of Batcher(long_range=...)")
    energies, scalars = found
    positions, cells = (graph.positions, graph.cells) if positions is None else (positions, cells)
    where = graph.graph_index, graph.node_mask, graph.num_graphs
    charges = potential.long_range.charges_of(scalars, *where, graph.charges)
    # the last graph is padding
    own = charges, positions, cells[:-1], graph.graph_index, graph.reach
    return energies + potential.long_range.energies(*own)
