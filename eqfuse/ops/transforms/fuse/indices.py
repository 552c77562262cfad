"""Gathers of rows of nodes, and sums of rows to nodes."""

import dataclasses

import numpy as np

from eqfuse.ops.transforms.fuse.trace import Trace


@dataclasses.dataclass(frozen=True)
class Gathered:
    """Rows of nodes, as an operand of each row.

    Attributes:
      value: array [nodes, ...].
      index: integers, [rows].
      mode: of `jax.lax.gather`, by name.
      fill: what a row out of range is made of, in mode FILL_OR_DROP.
      rows: the value that is gathered, [rows, ...].
    """

    value: int
    index: int
    mode: str
    fill: float | None
    rows: int


def _row_indices(trace: Trace, value: int) -> int | None:
    """Return the vector of which indices [rows, 1] are made; None for others."""
    node = trace.node(value)
    if node is None or node.name not in ("broadcast_in_dim", "reshape", "expand_dims"):
        return None
    [inner] = node.inputs[:1]
    shape = tuple(trace.avals[inner].shape)
    if len(shape) != 1 or tuple(trace.avals[value].shape) != (*shape, 1):
        return None
    if node.name == "broadcast_in_dim" and tuple(node.params["broadcast_dimensions"]) != (0,):
        return None
    return trace.first_equal(inner)  # indices that are made twice of one array are the same


def gathered(trace: Trace, number: int) -> Gathered | None:
    """Return what a node gathers, if it gathers whole rows of nodes, one for each row."""
    node = trace.nodes[number]
    if node.name != "gather":
        return None
    p, operand = node.params, trace.avals[node.inputs[0]]
    d = p["dimension_numbers"]
    index = _row_indices(trace, node.inputs[1])
    whole = tuple(p["slice_sizes"]) == (1, *operand.shape[1:])
    plain = (tuple(d.collapsed_slice_dims), tuple(d.start_index_map)) == ((0,), (0,))
    plain = plain and tuple(d.offset_dims) == tuple(range(1, operand.ndim))
    plain = plain and not d.operand_batching_dims and not d.start_indices_batching_dims
    if index is None or not whole or not plain or operand.shape[0] == 0:
        return None
    fill = p.get("fill_value")
    fill = np.nan if fill is None else float(fill)
    if not np.issubdtype(operand.dtype, np.inexact) and operand.dtype.name != "bfloat16":
        return None
    fill = fill if _mode(p) == "FILL_OR_DROP" else None
    return Gathered(node.inputs[0], index, _mode(p), fill, node.outputs[0])


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A sum of rows to nodes: start.at[index].add(updates)."""

    start: int
    index: int
    updates: int
    mode: str


def summed(trace: Trace, number: int) -> Scatter | None:
    """Return what a node sums, if it adds whole rows to nodes."""
    node = trace.nodes[number]
    if node.name != "scatter-add":
        return None
    start, indices, updates = node.inputs
    d, shape = node.params["dimension_numbers"], trace.avals[start].shape
    index = _row_indices(trace, indices)
    plain = tuple(d.update_window_dims) == tuple(range(1, len(shape)))
    plain = plain and tuple(d.inserted_window_dims) == (0,) == tuple(d.scatter_dims_to_operand_dims)
    plain = plain and not d.operand_batching_dims and not d.scatter_indices_batching_dims
    whole = tuple(trace.avals[updates].shape[1:]) == tuple(shape[1:])
    if index is None or not plain or not whole or shape[0] == 0:
        return None
    return Scatter(start, index, updates, _mode(node.params))


def _mode(params) -> str:
    """Return the mode by name; no mode is that of `jax.lax`, FILL_OR_DROP."""
    return getattr(params.get("mode"), "name", "FILL_OR_DROP")
