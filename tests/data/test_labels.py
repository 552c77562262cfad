"""Labels that some structures lack, and weights of structures."""

import dataclasses

import numpy as np
import pytest

from eqfuse.data import Batcher, DataError, Dataset, Shape, Structure, collate
from eqfuse.data.structures import Weights, weighted_by_type


@pytest.fixture
def structures(make_structure, rng):
    return [make_structure(rng, 3 + k % 4, elements=(1, 8)) for k in range(12)]


def without(structure, *names):
    return dataclasses.replace(structure, **dict.fromkeys(names))


def build(structures, **more):
    return Dataset.build(structures, cutoff=12.0, **{"val_size": 2, **more})


def test_a_batch_masks_what_is_not_known(structures):
    first, second = without(structures[0], "energy"), without(structures[1], "forces")
    samples = build([first, second, structures[2]], validation=structures[3:4]).train
    batch = collate(samples, Shape(40, 400, 5), np.float64)
    labels, node = batch.labels, 0
    for k, sample in enumerate(samples):
        nodes = slice(node, node := node + sample.num_atoms)
        assert labels.energy_mask[k] == (sample.energy is not None)
        assert labels.forces_mask[nodes].tolist() == [sample.forces is not None] * sample.num_atoms
        assert labels.energy[k] == (sample.energy or 0.0)
        forces = np.zeros((sample.num_atoms, 3)) if sample.forces is None else sample.forces
        np.testing.assert_array_equal(labels.forces[nodes], forces)
    assert labels.energy_mask.sum() == 2
    assert 0 < labels.forces_mask.sum() < batch.graph.node_mask.sum()
    assert not labels.stress_mask.any()


def test_reference_energies_are_fitted_to_structures_with_an_energy(structures):
    few = structures[:7]
    fitted = build(few, validation=structures[10:])
    more = [without(s, "energy") for s in structures[7:10]]
    data = build(few + more, validation=structures[10:])
    assert data.references == fitted.references
    assert len(data.train) == 10
    assert data.num_labelled("energy") == (7, 2)


def test_without_any_energy_references_are_zero(structures):
    data = build([without(s, "energy") for s in structures])
    assert data.references == {1: 0.0, 8: 0.0}
    assert data.energy_per_atom == 0
    assert data.num_labelled("energy") == (0, 0)
    assert data.num_labelled("forces") == (10, 2)


def test_an_element_of_structures_without_energy_needs_a_reference(structures):
    chlorine = Structure([17, 1], np.eye(2, 3), forces=np.zeros((2, 3)))
    with pytest.raises(DataError, match="structure 12: trains on Cl, which no training structure"):
        build([*structures, chlorine], validation=structures[:1])
    references = {1: 0.0, 8: 0.0, 17: 0.0}
    build([*structures, chlorine], validation=structures[:1], references=references)
    del references[17]
    with pytest.raises(DataError, match="structure 12: no reference energy for Cl"):
        build([*structures, chlorine], validation=structures[:1], references=references)


def test_statistics_are_of_what_is_known(structures):
    references = {1: 1.0, 8: -2.0}
    known = build(structures[:6], validation=structures[10:], references=references)
    more = [without(s, "energy", "forces") for s in structures[6:10]]
    data = build(structures[:6] + more, validation=structures[10:], references=references)
    assert data.force_rms == pytest.approx(known.force_rms, rel=1e-14)
    assert data.energy_per_atom == pytest.approx(known.energy_per_atom, rel=1e-14)
    assert data.mean_neighbors != known.mean_neighbors  # they have neighbours, though
    none = build([without(s, "forces") for s in structures])
    assert none.force_rms == 1


def test_weights_are_in_every_batch_if_a_sample_has_one(structures):
    structures[0] = dataclasses.replace(structures[0], weights=Weights(2.0, 3.0, 4.0))
    batcher = Batcher(build(structures, validation=structures[1:2]).train, 4)
    seen = []
    for batch in batcher.batches():
        weights, graph = batch.labels.weights, batch.graph
        assert weights.energy.shape == weights.stress.shape == graph.graph_mask.shape
        assert weights.forces.shape == graph.node_mask.shape
        for of_graph, own in ((weights.energy, 2), (weights.stress, 4)):
            assert set(of_graph[graph.graph_mask].tolist()) <= {1.0, own}
            assert not of_graph[~graph.graph_mask].any()
        assert not weights.forces[~graph.node_mask].any()
        heavy = np.isin(graph.graph_index, np.flatnonzero(weights.energy == 2)) & graph.node_mask
        np.testing.assert_array_equal(
            weights.forces[graph.node_mask], 1 + 2 * heavy[graph.node_mask]
        )
        seen.append((weights.energy == 2).sum())
    assert sorted(seen) == [0, 0, 1]


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_an_impossible_weight_is_refused(structures, weight):
    with pytest.raises(DataError, match=r"the weight of the forces is .*; it must be finite"):
        dataclasses.replace(structures[0], weights=Weights(1.0, weight))


def test_weights_by_config_type(structures):
    bulk = dataclasses.replace(structures[0], config_type="bulk", weights=Weights(1.0, 3.0, 1.0))
    slab, plain = dataclasses.replace(structures[1], config_type="slab"), structures[2]
    weighted = weighted_by_type([bulk, slab, plain], {"bulk": 2.0, "Default": 0.5})
    assert [s.weights for s in weighted] == [(2, 6, 2), (1, 1, 1), (0.5, 0.5, 0.5)]
    [left_out] = weighted_by_type([bulk], {"bulk": 0.0})
    assert left_out.energy is left_out.forces is None
