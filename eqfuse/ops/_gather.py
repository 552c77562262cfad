"""Rows of nodes for each edge, as a form, so that the gradient is a sum in a fixed order."""

import functools

import jax

from eqfuse.ops import _primitive
from eqfuse.ops._edges import Edges
from eqfuse.ops._form import Form, Index, Operand, Path, Segment, Slot


def of_receivers(x: jax.Array, edges: Edges, backend: str) -> jax.Array:
    """`x[edges.receivers]`, and a gradient that is the same bit for bit each time.

    That of XLA's indexing is a sum in the order in which the rows of a GPU come to it.

    Args:
      x: [num_nodes, size].
      edges: whose receivers.
      backend: "xla", "numba", "triton" or "triton-interpret".
    Returns:
      [n_edges, size].
    """
    [out] = _primitive.evaluate(_form(x.shape[1]), [x], edges, backend=backend)
    return out


@functools.cache
def _form(size: int) -> Form:
    row = (Segment(0, size, 1, 1),)
    x = Operand("x", size, row, True, Index.RECEIVER)
    out = Operand("out", size, row, True, Index.ROW)
    return Form((x,), (out,), (Path((Slot(0, 0),), Slot(0, 0), (((0, 0), 1.0),)),))
