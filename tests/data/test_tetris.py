"""The Tetris shapes."""

import numpy as np

from eqfuse.data import tetris


def test_edges_join_cubes_that_share_a_face():
    graph, labels = tetris()
    assert graph.node_mask.all()
    assert graph.graph_mask.all()
    np.testing.assert_array_equal(labels, np.arange(8))
    np.testing.assert_array_equal(graph.graph_index, np.repeat(np.arange(8), 4))
    same_graph = graph.graph_index[:, None] == graph.graph_index[None, :]
    distances = np.linalg.norm(graph.positions[:, None] - graph.positions[None, :], axis=-1)
    expected = np.argwhere(same_graph & (distances < 1.1) & (distances > 0))
    edges = np.stack([graph.edges.receivers, graph.edges.senders], axis=1)
    np.testing.assert_array_equal(edges, expected)
    np.testing.assert_array_equal(np.linalg.norm(graph.vectors, axis=1), 1.0)
