"""All parameters as one array, so that an optimizer's step is one kernel and not one for each."""

import dataclasses
import math

import jax
import jax.numpy as jnp

ALIGNMENT = 256
"""Bytes: XLA hands a slice that starts at a multiple to a kernel as it is, and copies others."""


@dataclasses.dataclass(frozen=True)
class Flat:
    """How a tree of arrays of one dtype lies in one array, zeros between its leaves.

    Attributes:
      tree: the tree's structure.
      shapes: of its leaves.
      starts: where they begin.
      size: of the array.
      dtype: of all of them.
    """

    tree: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    size: int
    dtype: jnp.dtype

    @classmethod
    def of(cls, tree) -> "Flat":
        """The layout of a tree of arrays or jax.ShapeDtypeStructs.

        Raises:
          ValueError: leaves of several dtypes, or none.
        """
        leaves, structure = jax.tree.flatten(tree)
        if len({leaf.dtype for leaf in leaves}) != 1:
            raise ValueError(f"leaves of one dtype are needed, got {[x.dtype for x in leaves]}")
        dtype = jnp.dtype(leaves[0].dtype)
        step = ALIGNMENT // dtype.itemsize
        starts, size = [], 0
        for leaf in leaves:
            starts.append(size)
            size += -(-math.prod(leaf.shape) // step) * step
        return cls(structure, tuple(leaf.shape for leaf in leaves), tuple(starts), size, dtype)

    def flatten(self, tree) -> jax.Array:
        """The tree as one array [size]."""
        parts, stop = [], 0
        for start, leaf in zip(self.starts, self.tree.flatten_up_to(tree), strict=True):
            parts += [jnp.zeros(start - stop, self.dtype), jnp.ravel(leaf)]
            stop = start + math.prod(leaf.shape)
        parts.append(jnp.zeros(self.size - stop, self.dtype))
        return jnp.concatenate([part for part in parts if part.size])

    def unflatten(self, array) -> object:
        """The tree of an array [size]."""
        sizes = []
        for start, stop, shape in zip(
            self.starts, (*self.starts[1:], self.size), self.shapes, strict=True
        ):
            sizes += [math.prod(shape), stop - start - math.prod(shape)]
        # not slices, whose gradient would be a sum of as many arrays, where this is one
        parts = jax.lax.split(array, sizes)[::2]
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)
