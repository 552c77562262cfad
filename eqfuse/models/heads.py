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


def node_energies(potential, variables: dict, vectors, graph: Graph) -> jax.Array:
    """Return the energy of each node, [n_nodes] eV, by the head of its graph.

    The layers that heads share run once: what does not depend on an array with a leading axis is
    not batched by `vmap`.
    """
    if graph.heads is None:
        return potential.apply(variables, vectors, graph.species, graph.edges)
    axes = jax.tree.map_with_path(lambda path, _: 0 if is_of_head(path) else None, variables)
    apply = jax.vmap(potential.apply, in_axes=(axes, None, None, None))
    energies = apply(variables, vectors, graph.species, graph.edges)  # [n_heads, n_nodes]
    numbers = jnp.arange(len(energies))[:, None]
    return jnp.sum(jnp.where(graph.heads[graph.graph_index] == numbers, energies, 0), axis=0)
