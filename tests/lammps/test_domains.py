"""Nodes and pairs of a rank, without LAMMPS."""

import itertools

import numpy as np
import pytest

from eqfuse.data import DataError, neighbor_list
from eqfuse.lammps.domains import _distances, count_hops, list_nodes

CELL = np.array([[7.0, 0.0, 0.0], [0.6, 3.0, 0.0], [0.4, -0.3, 9.0]])


def images_of(positions, own, width):
    """Return positions and tags of own atoms and of all images within a distance of them."""
    shifts = np.array(list(itertools.product(range(-6, 7), repeat=3)))
    everything = positions[None] + (shifts @ CELL)[:, None]
    tags = np.broadcast_to(np.arange(len(positions)) + 1, everything.shape[:2])
    near = np.linalg.norm(everything[:, :, None] - positions[own][None, None], axis=-1).min(2)
    keep = near < width
    keep[np.flatnonzero((shifts == 0).all(axis=1))[0], own] = False
    return (
        np.concatenate([positions[own], everything[keep]]),
        np.concatenate([own + 1, tags[keep]]),
    )


@pytest.mark.parametrize("hops", [1, 2])
def test_pairs_are_those_of_the_periodic_list(rng, hops):
    """For every node that receives: the same vectors from the same atoms as in the whole cell."""
    positions, reach = rng.uniform(size=(9, 3)) @ CELL, 3.2
    own = np.array([2, 5, 7])
    x, tags = images_of(positions, own, hops * reach)
    nodes = list_nodes(x, tags, len(own), CELL, reach, hops)
    senders, receivers, shifts = neighbor_list(positions, CELL, [True] * 3, reach)
    vectors = positions[senders] + shifts - positions[receivers]
    at = x[nodes.images]
    ours = at[nodes.senders] + nodes.shifts @ CELL - at[nodes.receivers]

    def of(tag, ends, others, all_vectors):
        rows = np.column_stack([others, all_vectors])[ends == tag].round(9)
        return rows[np.lexsort(rows.T)]

    receiving = np.flatnonzero(nodes.away < hops)
    assert set(nodes.tags[receiving]) >= set(own + 1)
    for node in receiving:
        tag = nodes.tags[node]
        found = of(tag, nodes.tags[nodes.receivers], nodes.tags[nodes.senders], ours)
        np.testing.assert_allclose(found, of(tag, receivers + 1, senders + 1, vectors), atol=1e-8)
    assert len(set(nodes.tags)) == len(nodes.tags)
    assert (np.diff(nodes.away) >= 0).all()
    assert not set(nodes.receivers) & set(np.flatnonzero(nodes.away == hops))


def test_hops_are_counted_from_the_own_atoms():
    senders, receivers = np.array([[1, 0], [2, 1], [3, 2], [0, 1]]).T
    assert count_hops(5, 1, senders, receivers, 2).tolist() == [0, 1, 2, 3, 3]


def test_no_atoms_have_no_nodes():
    nodes = list_nodes(np.zeros((0, 3)), np.zeros(0, int), 0, CELL, 3.0, 2)
    assert len(nodes.images) == len(nodes.senders) == 0


def test_atoms_at_one_place_are_refused():
    with pytest.raises(DataError, match="at the same place"):
        list_nodes(np.zeros((2, 3)), np.array([1, 2]), 2, CELL, 3.0, 1)


def test_subdomains_are_near_each_other_through_the_boundary():
    bounds = np.array([[[k / 4, 0, 0], [(k + 1) / 4, 1, 1]] for k in range(4)])
    through = _distances(bounds, bounds[0], [True] * 3)
    np.testing.assert_allclose(through[:, 0], [0, 0, 0.25, 0])
    not_through = _distances(bounds, bounds[0], [False] * 3)
    np.testing.assert_allclose(not_through[:, 0], [0, 0, 0.25, 0.5])
