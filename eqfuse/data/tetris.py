"""The eight Tetris shapes in three dimensions: the smallest equivariant classification task."""

import numpy as np

from eqfuse.data.neighbors import neighbor_list
from eqfuse.graph import Graph
from eqfuse.ops import Edges

SHAPE_NAMES = ("chiral1", "chiral2", "square", "line", "corner", "L", "T", "zigzag")

_CENTRES = (
    ((0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 1, 0)),
    ((1, 1, 1), (1, 1, 2), (2, 1, 1), (2, 0, 1)),
    ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)),
    ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)),
    ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)),
    ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)),
    ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1)),
    ((0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 1, 0)),
)
FACES = 1.1
"""Cubes that share a face are closer than this."""


def tetris(radius: float = FACES) -> tuple[Graph, np.ndarray]:
    """Return the eight shapes of four unit cubes as one batch, without padding.

    Args:
      radius: edges join the centres of cubes closer than this, in edges of a cube; by default
        those that share a face.
    Returns:
      a Graph of numpy arrays, float32, with 32 nodes, 50 edges (96 where all pairs are joined) and
      8 graphs, lengths in edges of a cube; and labels [8] int32, which are 0 to 7 in the order of
      `SHAPE_NAMES`. The first two shapes are mirror images of each other.
    References: Thomas et al. 2018, arXiv:1802.08219; the Tetris example of e3nn-jax.
    """
    centres = np.array(_CENTRES, np.float64)  # [8, 4, 3]
    num_graphs, per_graph = centres.shape[:2]
    senders, receivers = [], []
    for graph, positions in enumerate(centres):
        s, r, _ = neighbor_list(positions, np.zeros((3, 3)), np.zeros(3, bool), radius)
        senders.append(s + graph * per_graph)
        receivers.append(r + graph * per_graph)
    num_nodes = num_graphs * per_graph
    edges = Edges.from_arrays(np.concatenate(senders), np.concatenate(receivers), num_nodes)
    graph = Graph(
        positions=centres.reshape(num_nodes, 3).astype(np.float32),
        species=np.zeros(num_nodes, np.int32),
        edges=edges,
        shifts=np.zeros((edges.num_edges, 3), np.float32),
        graph_index=np.repeat(np.arange(num_graphs, dtype=np.int32), per_graph),
        cells=np.zeros((num_graphs, 3, 3), np.float32),
        node_mask=np.ones(num_nodes, bool),
        graph_mask=np.ones(num_graphs, bool),
    )
    return graph, np.arange(num_graphs, dtype=np.int32)
