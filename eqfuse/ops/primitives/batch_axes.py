"""The leading axes of operands taken together as rows, and taken apart again."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class BatchAxes:
    """Leading axes as rows.

    Where some are sharded on a mesh of explicit axes, these come first: the rows of a device are
    its own then, whatever the order of the axes.

    Attributes:
      shape: sizes of the axes.
      spec: the mesh axes that each is sharded over, or None.
    """

    shape: tuple[int, ...]
    spec: tuple

    @classmethod
    def of(cls, shape, arrays) -> "BatchAxes":
        """Return the axes `shape`, sharded as those of the arrays.

        Args:
          arrays: [..., n], whose leading axes broadcast to `shape`.
        """
        spec, taken = [None] * len(shape), set()
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.explicit_axes and not mesh.manual_axes:
            for array in arrays:
                own = jax.typeof(array).sharding.spec[: array.ndim - 1]
                for n, axes in enumerate(own, len(shape) - len(own)):
                    if spec[n] is None and not taken & set(_names(axes)):
                        spec[n] = axes
                        taken.update(_names(axes))
        return cls(tuple(shape), tuple(spec))

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return math.prod(self.shape)

    @functools.cached_property
    def _order(self) -> list[int]:
        """Return the axes as rows have them, those that change slowest first."""
        return sorted(range(len(self.shape)), key=lambda n: self.spec[n] is None)

    def rows(self, array, others: int = 1):
        """Return [rows, n], or [rows] without other axes.

        Args:
          array: [..., *others], whose leading axes broadcast to the shape.
          others: how many axes are no leading ones; several become one.
        """
        rest = array.shape[array.ndim - others :]
        array = jnp.broadcast_to(array, (*self.shape, *rest))
        shape = (self.count, math.prod(rest)) if others else (self.count,)
        if not any(self.spec):
            return array.reshape(shape)
        n = len(self.shape)
        array = jnp.transpose(array, (*self._order, *range(n, n + others)))
        names = tuple(name for axes in self.spec for name in _names(axes))
        return jnp.reshape(array, shape, out_sharding=PartitionSpec(names))

    def apart(self, rows):
        """Return [rows, n] as [..., n]."""
        if not any(self.spec):
            return rows.reshape(*self.shape, rows.shape[-1])
        shape = [self.shape[n] for n in self._order]
        spec = PartitionSpec(*(self.spec[n] for n in self._order))
        array = jnp.reshape(rows, (*shape, rows.shape[-1]), out_sharding=spec)
        back = sorted(range(len(shape)), key=self._order.__getitem__)
        return jnp.transpose(array, (*back, len(shape)))


def _names(axes) -> tuple[str, ...]:
    """Return the mesh axes that an array's axis is sharded over."""
    if axes is None:
        return ()
    return axes if isinstance(axes, tuple) else (axes,)
