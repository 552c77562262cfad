"""Padded batches: everything is there once, and padding is neutral."""

import jax
import numpy as np
import pytest

from eqfuse.data import Batcher, DataError, Dataset, Shape, collate
from eqfuse.data.samples import Sample


@pytest.fixture
def data(make_structure):
    rng = np.random.default_rng(0)
    structures = [
        make_structure(rng, rng.integers(2, 12), periodic=i % 2 == 0, stress=i % 4 == 0)
        for i in range(43)
    ]
    return Dataset.build(structures, cutoff=10.0, val_size=3)


def members(batch):
    """Energies of the real graphs: unique, so they name the samples."""
    return batch.labels.energy[batch.graph.graph_mask].tolist()


def test_every_sample_is_seen_once_in_each_epoch(data):
    batcher = Batcher(data.train, 7, dtype=np.float64)
    assert len(batcher) == 6
    expected = sorted(sample.energy for sample in data.train)
    for epoch in range(3):
        batches = list(batcher.batches(epoch))
        assert len(batches) == 6
        assert sorted(e for batch in batches for e in members(batch)) == expected
        assert [batch.graph.graph_mask.sum() for batch in batches] == [7, 7, 7, 7, 7, 5]


def test_order_depends_on_seed_and_epoch_only(data):
    def order(seed, epoch):
        batches = Batcher(data.train, 7, seed=seed).batches(epoch)
        return [energy for batch in batches for energy in members(batch)]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert order(0, 1) != order(1, 0)
    plain = Batcher(data.train, 7, dtype=np.float64).batches(shuffle=False)
    assert [e for batch in plain for e in members(batch)] == [s.energy for s in data.train]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_holds_what_its_members_hold(data, dtype):
    samples = data.train[:5]
    batch = collate(samples, Shape(64, 4000, 8), dtype)
    graph, labels = batch.graph, batch.labels
    real = np.any(graph.vectors != 0, axis=1)
    senders, receivers, shifts = (
        array[real] for array in (graph.edges.senders, graph.edges.receivers, graph.shifts)
    )
    node, edge = 0, 0
    for i, s in enumerate(samples):
        nodes, edges = slice(node, node + s.num_atoms), slice(edge, edge + s.num_edges)
        np.testing.assert_array_equal(graph.positions[nodes], s.positions.astype(dtype))
        np.testing.assert_array_equal(graph.species[nodes], s.species)
        np.testing.assert_array_equal(graph.graph_index[nodes], i)
        np.testing.assert_array_equal(senders[edges], s.senders + node)
        np.testing.assert_array_equal(receivers[edges], s.receivers + node)
        np.testing.assert_array_equal(shifts[edges], s.shifts.astype(dtype))
        np.testing.assert_array_equal(graph.cells[i], s.cell.astype(dtype))
        np.testing.assert_array_equal(labels.forces[nodes], s.forces.astype(dtype))
        assert labels.energy[i] == dtype(s.energy)
        assert labels.num_atoms[i] == s.num_atoms
        assert labels.stress_mask[i] == (s.stress is not None)
        assert labels.energy_mask[i]
        assert labels.forces_mask[nodes].all()
        if s.stress is not None:
            np.testing.assert_array_equal(labels.stress[i], s.stress.astype(dtype))
        node, edge = nodes.stop, edges.stop
    assert node == graph.node_mask.sum()
    assert labels.stress_mask.any()
    assert not labels.stress_mask.all()
    for array in (graph.positions, graph.shifts, graph.cells, labels.energy, labels.forces):
        assert array.dtype == dtype


def test_padding(data):
    batcher = Batcher(data.train, 7, dtype=np.float64)
    for batch in batcher.batches():
        graph, labels = batch.graph, batch.labels
        nodes, graphs = ~graph.node_mask, ~graph.graph_mask
        assert nodes.any()
        assert graphs.any()
        # Real ones first, then padding.
        assert (np.diff(nodes.astype(int)) >= 0).all()
        assert (np.diff(graphs.astype(int)) >= 0).all()
        assert (graph.graph_index[nodes] == graph.num_graphs - 1).all()
        assert (np.diff(graph.graph_index) >= 0).all()
        assert (labels.num_atoms[graphs] == 1).all()
        for label in (labels.energy[graphs], labels.forces[nodes], labels.stress[graphs]):
            assert not label.any()
        for mask in (labels.energy_mask[graphs], labels.forces_mask[nodes]):
            assert not mask.any()
        assert not labels.stress_mask[graphs].any()
        assert labels.weights is None
        assert not graph.cells[graphs].any()
        lengths = np.linalg.norm(graph.vectors, axis=1)
        loops = graph.edges.receivers[lengths == 0]
        np.testing.assert_array_equal(loops, graph.edges.senders[lengths == 0])
        assert not graph.shifts[lengths == 0].any()
        assert not nodes[graph.edges.receivers[lengths > 0]].any()
        sizes = {sample.energy: sample.num_edges for sample in data.train}
        assert len(lengths) - len(loops) == sum(sizes[energy] for energy in members(batch))
        of_node = np.bincount(loops, minlength=len(nodes))
        assert of_node.max() - of_node.min() <= 1  # none is walked for longer than others


def test_edges_are_sorted_by_receiver_then_sender(data):
    for batch in Batcher(data.train, 7).batches():
        edges = batch.graph.edges
        np.testing.assert_array_equal(edges.receiver_order, np.arange(edges.num_edges))
        order = np.lexsort((edges.senders, edges.receivers))
        np.testing.assert_array_equal(order, np.arange(edges.num_edges))


@pytest.mark.parametrize("max_shapes", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 40, 1000])
def test_few_shapes_hold_every_batch(data, max_shapes, batch_size):
    batcher = Batcher(data.train, batch_size, max_shapes=max_shapes)
    assert 1 <= len(batcher.shapes) <= max_shapes
    used = set()
    for epoch in range(6):
        for batch in batcher.batches(epoch):
            graph = batch.graph
            used.add((len(graph.node_mask), graph.edges.num_edges, graph.num_graphs))
    assert used <= set(batcher.shapes)
    assert {shape.n_graphs for shape in batcher.shapes} == {min(batch_size, 40) + 1}


def test_the_largest_samples_together_fit(data):
    largest_first = sorted(data.train, key=lambda s: (s.num_edges, s.num_atoms), reverse=True)
    batcher = Batcher(largest_first, 4)
    assert sum(batch.graph.graph_mask.sum() for batch in batcher.batches(shuffle=False)) == 40


def sample_of_size(n_atoms, n_edges):
    return Sample(
        positions=np.zeros((n_atoms, 3)),
        species=np.zeros(n_atoms, np.int32),
        senders=np.zeros(n_edges, np.int32),
        receivers=np.zeros(n_edges, np.int32),
        shifts=np.zeros((n_edges, 3)),
        cell=np.zeros((3, 3)),
        energy=0.0,
        forces=np.zeros((n_atoms, 3)),
    )


def test_largest_shape_is_rare_where_atoms_and_edges_are_unrelated():
    sizes = np.random.default_rng(2).integers((10, 100), (200, 4000), (80, 2))
    batcher = Batcher([sample_of_size(*size) for size in sizes], 8, max_shapes=2)
    assert len(batcher.shapes) == 2
    largest = batcher.shapes[-1].n_nodes
    nodes = [len(b.graph.node_mask) for epoch in range(10) for b in batcher.batches(epoch)]
    # The smaller shape holds all of 1024 random batches; these are 100 more.
    assert np.count_nonzero(np.array(nodes) == largest) <= 3


def test_equal_sizes_make_one_tight_shape():
    batcher = Batcher([sample_of_size(27, 300)] * 20, 5)
    assert batcher.shapes == (Shape(136, 1536, 6),)


def test_a_batch_of_nothing_is_padding():
    batch = collate([], Shape(8, 64, 2))
    assert not batch.graph.node_mask.any()
    assert not batch.graph.graph_mask.any()
    np.testing.assert_array_equal(batch.graph.edges.receivers, np.arange(8).repeat(8))
    assert (batch.graph.graph_index == 1).all()
    assert (batch.labels.num_atoms == 1).all()


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_parts_of_a_batch_are_the_batch(data, parts):
    """The order of the samples does not depend on how many parts there are, nor on whose."""
    whole = Batcher(data.train, 7)
    split = Batcher(data.train, 7, parts=parts)
    own = Batcher(data.train, 7, parts=parts, own=[parts - 1])
    assert len(split.shapes) <= 3
    for one, several, last in zip(whole.batches(2), split.batches(2), own.batches(2), strict=True):
        assert members(one) == members(several)
        shape = several.graph.node_mask.shape
        assert shape[0] == parts
        edges = several.graph.edges.senders.shape
        assert (shape[1], edges[1]) in [s[:2] for s in split.shapes]
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[-1:], b), several, last)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"batch_size": 2, "parts": 0}, "parts must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2, "max_shapes": 0}, "max_shapes must be at least 1"),
        ({"batch_size": 2, "seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_settings(data, kwargs, message):
    with pytest.raises(DataError, match=message):
        Batcher(data.train, **kwargs)


def test_nothing_and_too_much(data):
    with pytest.raises(DataError, match="no samples"):
        Batcher([], 4)
    sample = data.train[0]
    with pytest.raises(DataError, match="do not fit"):
        collate([sample], Shape(sample.num_atoms, 4000, 2))
    with pytest.raises(DataError, match="do not fit"):
        collate([sample], Shape(64, 4000, 1))
