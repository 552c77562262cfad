"""Sizes of padded arrays: all headroom is chosen here, so that few programs are compiled.

A training knows its samples, and has a few `Shape`s for all of their batches. Calculators, dynamics
and exported programs have room for structures that are not known yet.
"""

import math
from typing import NamedTuple

import numpy as np

from eqfuse.ops import Edges

_NODES, _EDGES = 8, 64  # sizes of batches are multiples of these
_SOME_NODES, _SOME_EDGES = 4, 32  # and those of structures of these
_PAIR_HEADROOM, _EDGE_HEADROOM, _NODE_HEADROOM, _OCCUPANCY_HEADROOM = 1.1, 1.02, 1.1, 1.3
_NUM_DRAWS = 1024
_WORTH_A_SHAPE = 0.9


def _up(size: float, multiple: int) -> int:
    return -(-int(size) // multiple) * multiple


class Shape(NamedTuple):
    """Padded sizes of a batch, the padding node and graph included."""

    n_nodes: int
    n_edges: int
    n_graphs: int


def choose_shapes(
    sizes: np.ndarray, batch_size: int, max_shapes: int, parts: int = 1
) -> tuple[Shape, ...]:
    """Return ascending shapes for batches of samples, from their numbers of atoms and edges alone.

    The largest holds any batch, the others the batches that are likely. All parts of a batch, of
    `batch_size` samples at most, have the shape of the largest part.
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
    return Shape(_up(n_nodes + 1, _NODES), _up(max(n_edges, 1), _EDGES), batch_size + 1)


def room_for_pairs(count: int) -> int:
    """Return the number of pairs that a list of `count` pairs is padded to."""
    return _up(_PAIR_HEADROOM * count + 1, _SOME_EDGES)


def room_for_edges(count: int) -> int:
    """Return the number of edges of a program for about `count` edges within the cutoff.

    The headroom of 2% and two standard deviations of a Poisson distribution is for fluctuations.
    """
    return _up(_EDGE_HEADROOM * count + 2 * math.sqrt(count) + 1, _SOME_EDGES)


def room_for_nodes(count: int) -> int:
    """Return the number of nodes of a program for structures whose number of atoms changes."""
    return _up(_NODE_HEADROOM * count + 1, _SOME_NODES)


def room_in_boxes(most: int, num_atoms: int) -> int:
    """Return the occupancy of a grid in which the fullest box has `most` atoms."""
    return min(num_atoms, math.ceil(_OCCUPANCY_HEADROOM * most) + 2)


def padded_edges(senders, receivers, num_nodes: int, room: int) -> tuple[Edges, np.ndarray]:
    """Return `room` edges, sorted by receiver, and the number that each had, in this order.

    The padding, which comes after the edges, joins nodes to themselves and is spread over all: the
    edges of one node are summed one after the other.
    """
    padding = room - len(senders)
    loops = np.arange(padding) * num_nodes // max(padding, 1)
    senders, receivers = np.append(senders, loops), np.append(receivers, loops)
    order = np.argsort(receivers * num_nodes + senders, kind="stable")
    return Edges.from_arrays(senders[order], receivers[order], num_nodes), order
