import e3nn_jax as e3nn
import jax
import numpy as np
import pytest

from benchmarks.launches.e3nn_tetris import Reference
from benchmarks.launches.tetris_network import TetrisNet
from eqfuse.data.tetris import tetris
from eqfuse.train.tetris import tetris_logits


@pytest.fixture(scope="module", autouse=True)
def x64():
    """Tetris is trained in float32, as by its users."""
    with jax.enable_x64(False):
        yield


def test_the_tetris_network_is_that_of_e3nn():
    graph, _ = tetris()
    with jax.enable_x64(True):
        noise = np.random.default_rng(0).normal(size=graph.positions.shape)
        graph = _with(graph, graph.positions.astype(np.float64) + 0.1 * noise)
        reference, model = Reference(), TetrisNet()
        variables = jax.jit(reference.init)(jax.random.key(1), graph.positions, graph.edges)
        assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == 7170
        ours = jax.jit(model.init)(jax.random.key(1), graph.vectors, graph.species, graph.edges)
        jax.tree.map(np.testing.assert_array_equal, ours, variables)

        expected = jax.jit(reference.apply)(variables, graph.positions, graph.edges)
        out = jax.jit(model.apply)(variables, graph.vectors, graph.species, graph.edges)
        assert out.irreps == expected.irreps == "0o + 7x0e"
        # float64, outputs of order 1; the sums are taken in another order.
        np.testing.assert_allclose(out.array, expected.array, rtol=0, atol=1e-13)
        logits = tetris_logits(out, graph)
        expected = tetris_logits(expected, graph)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12)


def test_the_head_sums_over_graphs_and_reads_chirality_from_the_pseudoscalar():
    graph, _ = tetris()
    mask = graph.node_mask.copy()
    mask[3] = False
    values = np.arange(32 * 8, dtype=np.float32).reshape(32, 8)
    logits = tetris_logits(e3nn.IrrepsArray("0o + 7x0e", values), _with(graph, mask=mask))
    o, e = np.split((values * mask[:, None]).reshape(8, 4, 8).sum(axis=1), [1], axis=1)
    np.testing.assert_array_equal(logits, np.hstack([o * e[:, :1], -o * e[:, :1], e[:, 1:]]))


def _with(graph, positions=None, mask=None):
    fields = vars(graph) | {
        "positions": graph.positions if positions is None else positions,
        "node_mask": graph.node_mask if mask is None else mask,
    }
    return type(graph)(**fields)
