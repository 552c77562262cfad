"""All parameters as one array, so that an optimizer's step is one kernel and not one for each."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

ALIGNMENT = 256
"""Bytes: XLA hands a slice that starts at a multiple to a kernel as it is, and copies others."""


@dataclasses.dataclass(frozen=True)
class Flat:
    """The layout of a tree of arrays of one dtype in one array, zeros between its leaves."""

    tree: jax.tree_util.PyTreeDef
    names: tuple[str, ...]  # of its leaves, the last key of each
    shapes: tuple[tuple[int, ...], ...]  # of its leaves
    sizes: tuple[int, ...]  # elements from the beginning of each leaf to that of the next
    dtype: jnp.dtype

    @classmethod
    def of(cls, tree) -> "Flat":
        paths, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = tuple(str(getattr(path[-1], "key", "")) if path else "" for path, _ in paths)
        shapes = tuple(leaf.shape for _, leaf in paths)
        if len({leaf.dtype for _, leaf in paths}) != 1:
            dtypes = [leaf.dtype for _, leaf in paths]
            raise ValueError(f"leaves of one dtype are needed, got {dtypes}")
        dtype = jnp.dtype(paths[0][1].dtype)
        step = ALIGNMENT // dtype.itemsize
        sizes = tuple(-(-math.prod(shape) // step) * step for shape in shapes)
        return cls(structure, names, shapes, sizes, dtype)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def flatten(self, tree) -> jax.Array:
        """Return the tree as one array [size], which is NumPy's if all leaves are."""
        leaves, parts = self.tree.flatten_up_to(tree), []
        xp = np if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp
        for leaf, size in zip(leaves, self.sizes, strict=True):
            parts += [xp.ravel(leaf), xp.zeros(size - leaf.size, self.dtype)]
        return xp.concatenate([part for part in parts if part.size])

    def unflatten(self, array) -> object:
        """Return the tree of an array [size], whose leaves are NumPy's if it is."""
        sizes = []
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            sizes += [math.prod(shape), size - math.prod(shape)]
        # not slices, whose gradient would be a sum of as many arrays, where this is one
        if isinstance(array, np.ndarray):
            parts = np.split(array, np.cumsum(sizes)[:-1])[::2]
        else:
            parts = jax.lax.split(array, sizes)[::2]
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)
