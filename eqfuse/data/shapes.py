"""The few sizes that batches are padded to."""

from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """Padded sizes of a batch, the padding node and graph included."""

    n_nodes: int
    n_edges: int
    n_graphs: int


class Waste(NamedTuple):
    """Fractions of the nodes and edges of the padded batches of an epoch that are padding."""

    nodes: float
    edges: float


_NODE_MULTIPLE, _EDGE_MULTIPLE = 8, 64
_NUM_DRAWS = 1024
_WORTH_A_SHAPE = 0.9


def choose_shapes(
    sizes: np.ndarray, batch_size: int, max_shapes: int, parts: int = 1
) -> tuple[Shape, ...]:
    """Return shapes for batches of samples, from the sizes of the samples alone.

    The largest holds any batch, the others the batches that are likely.

    Args:
      sizes: [n_samples, 2], atoms and edges of each.
      batch_size: samples in a part of a batch, at most.
      max_shapes: largest number of shapes.
      parts: number of parts of a batch, which all have the shape of the largest part.
    Returns:
      At least one, ascending.
    """
    largest = np.sort(sizes, axis=0)[-batch_size:].sum(axis=0)
    rng = np.random.Generator(np.random.PCG64(0))
    draws = (rng.random((_NUM_DRAWS, parts, batch_size)) * len(sizes)).astype(np.int64)
    sums = np.minimum(sizes[draws].sum(axis=2).max(axis=1), largest)
    sums = sums[np.lexsort((sums[:, 0], sums[:, 1]))]  # by edges, which cost most
    sums[:, 0] = np.maximum.accumulate(sums[:, 0])
    # The largest possible batch may be much larger than any that is likely: then the last but one
    # shape is the largest batch drawn.
    intervals = max_shapes if (sums[-1] >= largest).all() else max_shapes - 1
    levels = [k / intervals for k in range(1, max_shapes)] if max_shapes > 1 else []
    candidates = [sums[int(np.ceil(level * _NUM_DRAWS)) - 1] for level in levels]
    shapes = [_padded_shape(*largest, batch_size)]
    for n_nodes, n_edges in reversed(candidates):
        shape, larger = _padded_shape(n_nodes, n_edges, batch_size), shapes[0]
        if min(shape.n_nodes / larger.n_nodes, shape.n_edges / larger.n_edges) < _WORTH_A_SHAPE:
            shapes.insert(0, shape)
    return tuple(shapes)


def _padded_shape(n_nodes: int, n_edges: int, batch_size: int) -> Shape:
    return Shape(
        -(-(int(n_nodes) + 1) // _NODE_MULTIPLE) * _NODE_MULTIPLE,
        max(-(-int(n_edges) // _EDGE_MULTIPLE), 1) * _EDGE_MULTIPLE,
        batch_size + 1,
    )
