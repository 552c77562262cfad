"""All parameters as one array, so that an optimizer's step is one kernel and not one for each."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

ALIGNMENT = 256
"""Bytes: XLA hands a slice that starts at a multiple to a kernel as it is, and copies others."""


@dataclasses.dataclass(frozen=True)
class Flat:
    """The layout of a tree of arrays of one dtype in one array, zeros between its leaves."""

    tree: jax.tree_util.PyTreeDef
    names: tuple[str, ...]  # of its leaves, the last key of each
    shapes: tuple[tuple[int, ...], ...]  # of its leaves
    order: tuple[int, ...]  # numbers of the leaves, as they lie in the array
    starts: tuple[int, ...]  # of each leaf
    size: int  # of the array
    dtype: jnp.dtype

    @classmethod
    def of(cls, tree, place: Callable = lambda name, shape: 0) -> "Flat":
        """Return the layout of a tree of arrays or jax.ShapeDtypeStructs.

        `place` takes name and shape of a leaf to what the leaves are sorted by.
        """
        paths, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = tuple(str(getattr(path[-1], "key", "")) if path else "" for path, _ in paths)
        shapes = tuple(leaf.shape for _, leaf in paths)
        if len({leaf.dtype for _, leaf in paths}) != 1:
            dtypes = [leaf.dtype for _, leaf in paths]
            raise ValueError(f"leaves of one dtype are needed, got {dtypes}")
        dtype = jnp.dtype(paths[0][1].dtype)
        order = sorted(range(len(shapes)), key=lambda n: place(names[n], shapes[n]))
        starts, size = [0] * len(shapes), 0
        for n in order:
            starts[n] = size
            size += _room(shapes[n], dtype)
        return cls(structure, names, shapes, tuple(order), tuple(starts), size, dtype)

    def room(self, number: int) -> int:
        """Return elements from the beginning of a leaf to that of the next."""
        return _room(self.shapes[number], self.dtype)

    def flatten(self, tree) -> jax.Array:
        """Return the tree as one array [size]."""
        leaves = self.tree.flatten_up_to(tree)
        parts = []
        for n in self.order:
            rest = self.room(n) - math.prod(self.shapes[n])
            parts += [jnp.ravel(leaves[n]), jnp.zeros(rest, self.dtype)]
        return jnp.concatenate([part for part in parts if part.size])

    def unflatten(self, array) -> object:
        """Return the tree of an array [size]."""
        sizes = []
        for n in self.order:
            size = math.prod(self.shapes[n])
            sizes += [size, self.room(n) - size]
        # not slices, whose gradient would be a sum of as many arrays, where this is one
        parts = jax.lax.split(array, sizes)[::2]
        leaves = [None] * len(parts)
        for n, part in zip(self.order, parts, strict=True):
            leaves[n] = part.reshape(self.shapes[n])
        return jax.tree.unflatten(self.tree, leaves)


def _room(shape: tuple[int, ...], dtype: jnp.dtype) -> int:
    step = ALIGNMENT // dtype.itemsize
    return -(-math.prod(shape) // step) * step
