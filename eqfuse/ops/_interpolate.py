"""`interpolate`: functions of one number, read from tables of polynomials."""

import jax
import jax.numpy as jnp

from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import Edges, orders
from eqfuse.ops.ir.products import interpolation
from eqfuse.ops.primitives import forms


def interpolate(
    tables, intervals: Edges, weights, *, backend: str | None = None
) -> list[jax.Array]:
    """Read tables of coefficients: a sum for each row, with weights such as powers of a number.

        out_k[e, u] = sum over n:  weights[e, n] * tables[k][interval of e, n, u]

    Args:
      tables: arrays [intervals, order, width], each with a width of its own.
      intervals: of the rows, by `group_by_interval`.
      weights: [rows, order].
      backend: see `eqfuse.ops.tensor_product`; "e3nn" runs the definition.
    Returns:
      [rows, width] for each table, of the promoted dtype.
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
    dtype = jnp.result_type(weights, *tables)
    weights, tables = jnp.asarray(weights, dtype), [jnp.asarray(t, dtype) for t in tables]
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
        return [jnp.sum(weights[:, :, None] * row, axis=1) for row in rows]
    form = interpolation(tuple(table.shape[-1] for table in tables), order)
    flat = [table.reshape(len(table), -1) for table in tables]
    return forms.evaluate(form, [*flat, weights], intervals, backend=backend)


def group_by_interval(interval, num_intervals: int) -> Edges:
    """Return the rows of each interval, by which gradients of a table are summed.

    Args:
      interval: [rows] int32, in [0, num_intervals).
      num_intervals: static.

    Example:
      >>> ops.group_by_interval(jnp.array([1, 0, 1]), 2).receiver_order
      Array([1, 0, 2], dtype=int32)
    """
    order, ptr = orders([interval], num_intervals)
    return Edges(interval, interval, order, ptr, order, ptr, num_intervals)
