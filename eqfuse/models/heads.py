"""Several heads of one network: they share all but readouts, scales and shifts.

Their variables are those of one network, in which the arrays that heads do not share have a leading
axis, [n_heads, ...].
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np


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


def apply(potential, variables: dict, vectors, species, edges, heads=None):
    """Return what a potential gives for nodes, by the head of each, [n_nodes] int32, if any.

    The variables are those of several heads together. The layers that heads share run once: what
    does not depend on an array with a leading axis is not batched by `vmap`.
    """
    if heads is None:
        return potential.apply(variables, vectors, species, edges)
    axes = jax.tree.map_with_path(lambda path, _: 0 if is_of_head(path) else None, variables)
    of_heads = jax.vmap(potential.apply, in_axes=(axes, None, None, None))

    def own_head(found):  # [n_heads, n_nodes, ...]
        is_own = heads == jnp.arange(len(found))[:, None]
        is_own = is_own.reshape(is_own.shape + (1,) * (found.ndim - 2))
        return jnp.sum(jnp.where(is_own, found, 0), axis=0)

    return jax.tree.map(own_head, of_heads(variables, vectors, species, edges))
