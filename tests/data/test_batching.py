"""Padded batches: everything is there once, and padding is neutral."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from eqfuse.data import Batcher, DataError, Dataset, Shape, collate
from eqfuse.data.samples import Sample
from tests.data.conftest import random_structure


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    structures = [
        random_structure(rng, rng.integers(2, 12), periodic=i % 2 == 0, stress=i % 4 == 0)
        for i in range(43)
    ]
    return Dataset.build(structures, cutoff=10.0, val_size=3)


def members(batch):
    """Energies of the real graphs: unique, so they name the samples."""
    return batch.labels.energy[batch.graph.graph_mask].tolist()


def test_batches_have_every_sample_once_in_each_epoch(data):
    """In an order that depends on seed and epoch only."""

    def order(seed, epoch, **how):
        batches = Batcher(data.train, 7, seed=seed, dtype=np.float64).batches(epoch, **how)
        return list(map(members, batches))

    assert len(Batcher(data.train, 7)) == 6
    energies = [sample.energy for sample in data.train]
    orders = [order(*of) for of in ((0, 0), (0, 1), (1, 0))]
    for batches in orders:
        assert list(map(len, batches)) == [7, 7, 7, 7, 7, 5]
        assert sorted(itertools.chain(*batches)) == sorted(energies)
    assert order(0, 0) == orders[0]
    assert len(set(map(str, orders))) == 3
    assert [*itertools.chain(*order(0, 0, shuffle=False))] == energies


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_batch_holds_what_its_members_hold(data, dtype):
    """Labels that a member lacks are masked zeros."""
    samples = [*data.train[:5]]
    samples[1] = dataclasses.replace(samples[1], energy=None)
    samples[2] = dataclasses.replace(samples[2], forces=None)
    batch = collate(samples, Shape(64, 4000, 8), dtype)
    graph, labels = batch.graph, batch.labels
    real = np.any(graph.vectors != 0, axis=1)
    senders, receivers, shifts = (
        array[real] for array in (graph.edges.senders, graph.edges.receivers, graph.shifts)
    )
    node, edge = 0, 0
    for i, s in enumerate(samples):
        nodes, edges = slice(node, node + s.num_atoms), slice(edge, edge + s.num_edges)
        pairs = [
            (graph.positions[nodes], s.positions.astype(dtype)),
            (graph.species[nodes], s.species),
            (graph.graph_index[nodes], i),
            (senders[edges], s.senders + node),
            (receivers[edges], s.receivers + node),
            (shifts[edges], s.shifts.astype(dtype)),
            (graph.cells[i], s.cell.astype(dtype)),
            (labels.num_atoms[i], s.num_atoms),
        ]
        for name, at in (("energy", i), ("forces", nodes), ("stress", i)):
            own = getattr(s, name)
            pairs.append((getattr(labels, f"{name}_mask")[at], own is not None))
            pairs.append((getattr(labels, name)[at], 0 if own is None else np.asarray(own, dtype)))
        for found, expected in pairs:
            np.testing.assert_array_equal(found, expected)
        node, edge = nodes.stop, edges.stop
    assert node == graph.node_mask.sum()
    assert 0 < labels.stress_mask.sum() < len(samples)
    for array in (graph.positions, graph.shifts, graph.cells, labels.energy, labels.forces):
        assert array.dtype == dtype


def test_padding_is_neutral_and_edges_are_sorted(data):
    """Edges are sorted by receiver, then sender; loops are spread over all nodes."""
    sizes = {sample.energy: sample.num_edges for sample in data.train}
    for batch in Batcher(data.train, 7, dtype=np.float64).batches():
        graph, labels, edges = batch.graph, batch.labels, batch.graph.edges
        nodes, graphs = ~graph.node_mask, ~graph.graph_mask
        for padding in (nodes, graphs):
            assert padding.any()
        for in_order in (nodes, graphs, graph.graph_index):  # real ones first, then padding
            assert (np.diff(in_order.astype(int)) >= 0).all()
        assert (graph.graph_index[nodes] == graph.num_graphs - 1).all()
        assert (labels.num_atoms[graphs] == 1).all()
        assert labels.weights is None
        masks = labels.energy_mask, labels.stress_mask
        for of_graph in (labels.energy, labels.stress, graph.cells, *masks):
            assert not of_graph[graphs].any()
        for of_node in (labels.forces, labels.forces_mask):
            assert not of_node[nodes].any()
        loop = np.linalg.norm(graph.vectors, axis=1) == 0
        loops = edges.receivers[loop]
        np.testing.assert_array_equal(loops, edges.senders[loop])
        assert not graph.shifts[loop].any()
        assert not nodes[edges.receivers[~loop]].any()
        assert np.sum(~loop) == sum(sizes[energy] for energy in members(batch))
        of_node = np.bincount(loops, minlength=len(nodes))
        assert of_node.max() - of_node.min() <= 1  # none is walked for longer than others
        every = np.arange(edges.num_edges)
        np.testing.assert_array_equal(edges.receiver_order, every)
        np.testing.assert_array_equal(np.lexsort((edges.senders, edges.receivers)), every)


@pytest.mark.parametrize("max_shapes", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_shapes_are_few_and_hold_every_batch(data, max_shapes, batch_size):
    """Also a batch of the largest samples."""
    largest_first = sorted(data.train, key=lambda s: (s.num_edges, s.num_atoms), reverse=True)
    batcher = Batcher(largest_first, batch_size, max_shapes=max_shapes)
    assert 1 <= len(batcher.shapes) <= max_shapes
    epochs = [batcher.batches(shuffle=False), *map(batcher.batches, range(3))]
    graphs = [batch.graph for batches in epochs for batch in batches]
    assert sum(graph.graph_mask.sum() for graph in graphs) == 4 * 40
    used = {(len(g.node_mask), g.edges.num_edges, g.num_graphs) for g in graphs}
    assert used <= set(batcher.shapes)
    assert {shape.n_graphs for shape in batcher.shapes} == {min(batch_size, 40) + 1}


def sample_of_size(n_atoms, n_edges):
    nodes, shifts = np.zeros((n_atoms, 3)), np.zeros((n_edges, 3))
    species, edges = np.zeros(n_atoms, np.int32), np.zeros(n_edges, np.int32)
    return Sample(nodes, species, edges, edges, shifts, np.zeros((3, 3)), 0.0, nodes)


def test_shapes_where_atoms_and_edges_are_unrelated_or_equal():
    """The largest of two shapes is rare, and equal sizes make one tight shape."""
    sizes = np.random.default_rng(2).integers((10, 100), (200, 4000), (80, 2))
    batcher = Batcher([sample_of_size(*size) for size in sizes], 8, max_shapes=2)
    assert len(batcher.shapes) == 2
    largest = batcher.shapes[-1].n_nodes
    nodes = [len(b.graph.node_mask) for epoch in range(10) for b in batcher.batches(epoch)]
    # The smaller shape holds all of 1024 random batches; these are 100 more.
    assert np.count_nonzero(np.array(nodes) == largest) <= 3
    assert Batcher([sample_of_size(27, 300)] * 20, 5).shapes == (Shape(136, 1536, 6),)


def test_batch_of_nothing_is_padding():
    batch = collate([], Shape(8, 64, 2))
    assert not batch.graph.node_mask.any()
    assert not batch.graph.graph_mask.any()
    np.testing.assert_array_equal(batch.graph.edges.receivers, np.arange(8).repeat(8))
    assert (batch.graph.graph_index == 1).all()
    assert (batch.labels.num_atoms == 1).all()


@pytest.mark.parametrize("parts", [2, 8])
def test_parts_of_a_batch_are_the_batch(data, parts):
    """The order of the samples does not depend on how many parts there are, nor on whose."""
    whole, split, own = (
        Batcher(data.train, 7, **how)
        for how in ({}, {"parts": parts}, {"parts": parts, "own": [parts - 1]})
    )
    assert len(split.shapes) <= 3
    for one, several, last in zip(whole.batches(2), split.batches(2), own.batches(2), strict=True):
        assert members(one) == members(several)
        rows, nodes = several.graph.node_mask.shape
        assert rows == parts
        assert (nodes, several.graph.edges.senders.shape[1]) in [s[:2] for s in split.shapes]
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[-1:], b), several, last)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"parts": 0}, "parts must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_shapes": 0}, "max_shapes must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"samples": []}, "no samples"),
    ],
)
def test_bad_settings(data, kwargs, message):
    with pytest.raises(DataError, match=message):
        Batcher(**{"samples": data.train, "batch_size": 2} | kwargs)


def test_collate_refuses_a_shape_without_room_for_padding(data):
    sample = data.train[0]
    for shape in (Shape(sample.num_atoms, 4000, 2), Shape(64, 4000, 1)):
        with pytest.raises(DataError, match="do not fit"):
            collate([sample], shape)
