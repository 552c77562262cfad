"""The Tetris shapes."""

import numpy as np

from eqfuse.data import tetris
from eqfuse.data.tetris import SHAPE_NAMES


def test_shape_and_order():
    graph, labels = tetris()
    assert graph.positions.shape == (32, 3)
    assert graph.positions.dtype == np.float32
    assert graph.edges.num_edges == 50
    assert graph.num_graphs == 8
    assert graph.node_mask.all()
    assert graph.graph_mask.all()
    np.testing.assert_array_equal(labels, np.arange(8))
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(graph.graph_index, np.repeat(np.arange(8), 4))
    np.testing.assert_array_equal(graph.edges.receiver_order, np.arange(50))
    # All are trees of three faces but the square, which is a ring of four.
    edge_graphs = graph.graph_index[graph.edges.receivers]
    expected = [8 if name == "square" else 6 for name in SHAPE_NAMES]
    np.testing.assert_array_equal(np.bincount(edge_graphs), expected)


def test_edges_join_cubes_that_share_a_face():
    graph, _ = tetris()
    same_graph = graph.graph_index[:, None] == graph.graph_index[None, :]
    distances = np.linalg.norm(graph.positions[:, None] - graph.positions[None, :], axis=-1)
    expected = np.argwhere(same_graph & (distances < 1.1) & (distances > 0))
    np.testing.assert_array_equal(
        np.stack([graph.edges.receivers, graph.edges.senders], axis=1), expected
    )
    np.testing.assert_array_equal(np.linalg.norm(graph.vectors, axis=1), 1.0)
