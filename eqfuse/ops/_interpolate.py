"""`interpolate`: functions of one number, read from tables of polynomials."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import Edges, group_by_interval
from eqfuse.ops.ir.products import interpolation
from eqfuse.ops.primitives import forms


def interpolate(
    tables, intervals: Edges, weights, dtype=None, *, backend: str | None = None
) -> list[jax.Array]:
    """Read tables of coefficients: a sum for each row, with weights such as powers of a number.

        out_k[e, u] = sum over n:  weights[e, n] * tables[k][interval of e, n, u]

    Args:
      tables: arrays [intervals, order, width], each with a width of its own.
      intervals: of the rows, by `group_by_interval`.
      weights: [rows, order].
      dtype: of the result; None for the promoted one. Sums are in float32 or better.
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs the definition.
    Returns:
      [rows, width] for each table.
    Raises:
      ValueError: no tables, or tables or weights of other shapes; a backend that cannot run here.

    Example:
      >>> table = jnp.array([[[0.0], [1.0]], [[1.0], [3.0]]])  # x below 1, and 1 + 3 (x - 1) above
      >>> rows = ops.group_by_interval(jnp.array([0, 1]), 2)
      >>> [found] = ops.interpolate([table], rows, jnp.array([[1.0, 0.5], [1.0, 0.5]]))
      >>> found.ravel()
      Array([0.5, 2.5], dtype=float32)
    """
    backend = resolve(backend, "interpolate", weights, *tables)
    promoted = jnp.result_type(weights, *tables)
    dtype = jnp.dtype(promoted if dtype is None else dtype)
    weights, tables = jnp.asarray(weights, promoted), [jnp.asarray(t, promoted) for t in tables]
    expected = f"[{intervals.num_nodes} intervals, order, width]"
    order = weights.shape[-1]
    if not tables or any(t.shape[:-1] != (intervals.num_nodes, order) for t in tables):
        shapes = [t.shape for t in tables]
        raise ValueError(f"tables must be {expected} of order {order}, got shapes {shapes}")
    if weights.shape != (intervals.num_edges, order):
        raise ValueError(
            f"weights must be [{intervals.num_edges} rows, order], got shape {weights.shape}"
        )
    if backend == "e3nn":
        rows = [table[intervals.senders] for table in tables]
        return [jnp.sum(weights[:, :, None] * row, axis=1).astype(dtype) for row in rows]
    half = backend == "triton" and promoted == jnp.float32 and dtype == jnp.bfloat16
    form = interpolation(tuple(table.shape[-1] for table in tables), order, half)
    flat = [table.reshape(len(table), -1) for table in tables]
    outputs = forms.evaluate(form, [*flat, weights], intervals, backend=backend)
    return [out.astype(dtype) for out in outputs]


class Tabulated(NamedTuple):
    """Weights of a product on a graph that are read from a table: polynomials of a number.

        weights[e, u] = factor[e] * sum over n:  table[interval of e, n, u] * number[e] ** n

    `TensorProductLinear` takes it in the place of weights. On a CPU, the kernels of the product and
    of its backward pass compute the row of an edge where they read it. A derivative by the table,
    and a second one, are those of `interpolate`.

    Example:
      >>> table = jnp.array([[[0.0], [1.0]], [[1.0], [3.0]]])  # x below 1, and 1 + 3 (x - 1) above
      >>> numbers, ones = jnp.array([[0.5], [0.5]]), jnp.ones((2, 1))
      >>> ops.Tabulated(table, jnp.array([0, 1]), numbers, ones).rows().ravel()
      Array([0.5, 2.5], dtype=float32)
    """

    table: jax.Array  # [intervals, order, width]
    intervals: jax.Array  # [n_edges] int32
    numbers: jax.Array  # [n_edges, 1]
    factor: jax.Array  # [n_edges, 1]

    def rows(self, backend: str | None = None) -> jax.Array:
        """Return the weights, [n_edges, width]."""
        count, order, _ = self.table.shape
        edges = group_by_interval(self.intervals, count)
        powers = jnp.cumprod(jnp.repeat(self.numbers, order - 1, axis=1), axis=1)
        powers = self.factor * jnp.concatenate([jnp.ones_like(self.numbers), powers], axis=1)
        return interpolate([self.table], edges, powers, backend=backend)[0]

    def times(self, factor) -> "Tabulated":
        """Return the weights times a factor [n_edges, 1]."""
        return self._replace(factor=self.factor * factor)
