"""Splits, statistics and warnings of data sets, labels that some structures lack, and weights."""

import dataclasses

import numpy as np
import pytest

from eqfuse.data import Batcher, DataError, Dataset, Structure
from eqfuse.data.dataset import split_indices
from eqfuse.data.samples import prepare_samples, species_index
from eqfuse.data.structures import Weights, weighted_by_type
from tests.data.conftest import SKEWED, random_structure


@pytest.fixture
def structures():
    rng = np.random.default_rng(0)
    return [random_structure(rng, rng.integers(3, 9), elements=(1, 8)) for _ in range(20)]


@pytest.fixture
def twelve(structures):
    return structures[:12]


def build(structures, **kwargs):
    return Dataset.build(structures, **{"cutoff": 12.0, **kwargs})


def without(structure, *names):
    return dataclasses.replace(structure, **dict.fromkeys(names))


CHLORINE = Structure([17, 1], 1.3 * np.eye(2, 3), forces=np.zeros((2, 3)))


def test_split_is_the_same_on_every_platform():
    train, val = split_indices(10, None, 3, seed=0)
    assert train.tolist() == [6, 2, 0, 7, 5, 4, 9]
    assert val.tolist() == [1, 3, 8]
    assert set(split_indices(10, None, 3, seed=1)[1]) != {1, 3, 8}
    assert split_indices(10, 2, 3, seed=0)[1].tolist() == [1, 3, 8]  # whatever trains
    assert [*map(len, split_indices(9, None, 0.1, seed=0))] == [8, 1]  # one of nine, not none


@pytest.mark.parametrize(
    ("train_size", "val_size", "expected"),
    [
        (None, 0.1, (90, 10)),
        (0.71, 0.29, (71, 29)),
        (50, 7, (50, 7)),
        (0.5, 20, (50, 20)),
        (None, 0.129, (88, 12)),
        (None, 0.001, (99, 1)),  # one at least
        (None, 0, "the validation split is empty"),
        (None, 1.0, "the training split is empty"),
        (0, 5, "the training split is empty"),
        (98, 5, "98 training and 5 validation structures asked for, but there are only 100"),
        (None, -3, "val_size must be a number of structures or a fraction, got -3"),
        (2.5, 3, "train_size must be a number of structures or a fraction, got 2.5"),
    ],
)
def test_split_sizes(train_size, val_size, expected):
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            split_indices(100, train_size, val_size, seed=0)
    else:
        assert (*map(len, split_indices(100, train_size, val_size, seed=0)),) == expected


def test_dataset_has_the_labels_and_statistics_of_its_structures(structures):
    data = build(structures, cutoff=6.0)
    train = [structures[i] for i in data.train_indices]
    forces = np.concatenate([s.forces.ravel() for s in train])
    assert data.force_rms == pytest.approx(np.sqrt(np.mean(forces**2)), rel=1e-14)
    neighbours = []
    for s in train:
        distances = np.linalg.norm(s.positions[:, None] - s.positions[None], axis=-1)
        neighbours += ((distances < 6.0).sum(axis=1) - 1).tolist()
    assert data.avg_num_neighbors == pytest.approx(np.mean(neighbours), rel=1e-14)
    assert data.species == (1, 8)
    # The residual of the fit is orthogonal to the number of atoms, the sum of the counts.
    assert sum(s.energy * s.num_atoms for s in data.train) == pytest.approx(0, abs=1e-6)
    for structure, sample in zip(train, data.train, strict=True):
        np.testing.assert_array_equal(np.array(data.species)[sample.species], structure.numbers)
        moved = [s.positions - s.positions[0] for s in (sample, structure)]
        np.testing.assert_allclose(*moved, atol=1e-14)
        np.testing.assert_array_equal(sample.forces, structure.forces)


@pytest.mark.parametrize("pbc", [(1, 1, 1), (1, 0, 1), (0, 0, 1), (0, 0, 0)])
def test_samples_of_atoms_anywhere_have_small_coordinates(pbc):
    """Atoms far away, or astride the corner of a cell with a wide vacuum, are exact in float32."""
    rng, pbc = np.random.default_rng(0), np.array(pbc, bool)
    cell = 2 * SKEWED * [[1], [1], [30]]
    inside = rng.uniform(0.1, 0.9, (6, 3))
    inside[:, 2] = rng.normal(scale=0.005, size=6)
    away = rng.integers(-5000, 5000, (6, 3)) * pbc + 1000 * ~pbc
    vectors = []
    for fractions, dtype in ((inside, np.float64), (inside + away, np.float32)):
        structure = Structure([1] * 6, fractions @ cell, cell, pbc)
        (sample,) = prepare_samples([structure], 4.0, (1,), None)
        positions, shifts = sample.positions.astype(dtype), sample.shifts.astype(dtype)
        assert max(np.abs(positions).max(), np.abs(shifts).max()) < 32
        vectors.append(positions[sample.senders] + shifts - positions[sample.receivers])
    assert len(vectors[0]) > 0
    # float32 roundings of three numbers below 32 Å; at 3e4 Å they would be 1e-3 Å.
    np.testing.assert_allclose(vectors[1], vectors[0], rtol=0, atol=6e-6)


def test_atoms_without_neighbours_are_warned_of(structures):
    lone = Structure([1, 8], [[0, 0, 0], [99.0, 0, 0]], energy=-1.0, forces=np.zeros((2, 3)))
    message = r"2 of \d+ atoms have no neighbours within the cutoff of 12\.0 Å \(in 1 of 21 struc"
    with pytest.warns(UserWarning, match=message) as record:
        data = build([*structures, lone])
    assert record[0].filename == __file__
    assert np.isfinite(data.avg_num_neighbors)


def test_element_that_is_not_known_is_named(structures):
    with pytest.raises(DataError, match=r"structure \d+: O not among the model's species \(H, C\)"):
        build(structures, species=[6, 1])
    with pytest.raises(DataError, match="Si not among"):
        species_index([1, 14], (1, 8))
    np.testing.assert_array_equal(species_index([8, 1, 8], (1, 8)), [1, 0, 1])
    val = split_indices(20, None, 0.1, seed=0)[1]
    structures[val[0]] = dataclasses.replace(CHLORINE, energy=-1.0)
    with pytest.raises(DataError, match=rf"ure {val[0]}: validates with Cl, which no training"):
        build(structures)


def test_values_of_a_structure_are_checked():
    """Without a volume it has no stress, and a molecule has no cell."""
    for fields, message in (
        ({"numbers": [1, 1]}, r"positions must have shape \(2, 3\), got \(1, 3\)"),
        ({"numbers": [1.5]}, "vector of integers"),
        ({"stress": np.zeros(6)}, r"stress must have shape \(3, 3\)"),
        (
            {"numbers": [1, 1], "positions": np.eye(2, 3), "config_type": "IsolatedAtom"},
            r"config_type=IsolatedAtom is for one atom.* 2 atoms",
        ),
    ):
        with pytest.raises(DataError, match=message):
            Structure(**{"numbers": [1], "positions": [[0, 0, 0]]} | fields)
    cell, stress = 5 * np.eye(3), np.eye(3)
    molecule = Structure([1], [[0, 0, 0]], cell=cell, pbc=False, stress=stress)
    assert molecule.stress is None
    assert not molecule.cell.any()
    crystal = Structure([1], [[0, 0, 0]], cell=cell, pbc=True, stress=stress)
    np.testing.assert_array_equal(crystal.stress, stress)
    assert crystal.volume == pytest.approx(125)


def test_structures_given_for_validation(structures):
    frames, given = structures[:15], structures[15:]
    data = build(frames, validation=given, train_size=10, seed=2)
    assert data.val_indices.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(data.val[3].forces, given[3].forces)
    assert len(set(data.train_indices.tolist())) == len(data.train) == 10
    np.testing.assert_array_equal(data.train[4].forces, frames[data.train_indices[4]].forces)
    assert len(build(frames, validation=given).train) == 15
    for validation, message in (
        ([], "no validation structure"),
        ([structures[0], CHLORINE], "validation structure 1: validates with Cl"),
    ):
        with pytest.raises(DataError, match=message):
            build(structures, validation=validation)


def test_references_are_fitted_to_structures_with_an_energy(twelve):
    """They are zero without any."""
    few, val = twelve[:7], twelve[10:]
    data = build(few + [without(s, "energy") for s in twelve[7:10]], validation=val)
    assert data.references == build(few, validation=val).references
    assert len(data.train) == 10
    assert data.num_labelled("energy") == (7, 2)
    data = build([without(s, "energy") for s in twelve], val_size=2)
    assert data.references == {1: 0.0, 8: 0.0}
    assert data.energy_per_atom == 0
    assert data.num_labelled("energy") == (0, 0)
    assert data.num_labelled("forces") == (10, 2)


def test_references_of_an_element_of_structures_without_energy(twelve):
    given = {"structures": [*twelve, CHLORINE], "validation": twelve[:1]}
    with pytest.raises(DataError, match="structure 12: trains on Cl, which no training structure"):
        build(**given)
    references = {1: 0.0, 8: 0.0, 17: 0.0}
    build(**given, references=references)
    del references[17]
    with pytest.raises(DataError, match="structure 12: no reference energy for Cl"):
        build(**given, references=references)


def test_statistics_are_of_what_is_known(twelve):
    given = {"validation": twelve[10:], "references": {1: 1.0, 8: -2.0}}
    known = build(twelve[:6], **given)
    data = build(twelve[:6] + [without(s, "energy", "forces") for s in twelve[6:10]], **given)
    for name in ("force_rms", "energy_per_atom"):
        assert getattr(data, name) == pytest.approx(getattr(known, name), rel=1e-14)
    assert data.mean_neighbors != known.mean_neighbors  # they have neighbours, though
    none = build([without(s, "forces") for s in twelve], val_size=2)
    assert none.force_rms == 1


def test_weights_are_in_every_batch_if_a_sample_has_one(twelve):
    twelve[0] = dataclasses.replace(twelve[0], weights=Weights(2.0, 3.0, 4.0))
    seen = []
    for batch in Batcher(build(twelve, validation=twelve[1:2]).train, 4).batches():
        weights, graph = batch.labels.weights, batch.graph
        assert weights.energy.shape == weights.stress.shape == graph.graph_mask.shape
        for of_graph, own in ((weights.energy, 2), (weights.stress, 4)):
            assert set(of_graph[graph.graph_mask].tolist()) <= {1.0, own}
            assert not of_graph[~graph.graph_mask].any()
        heavy = np.isin(graph.graph_index, np.flatnonzero(weights.energy == 2))
        np.testing.assert_array_equal(weights.forces, (1 + 2 * heavy) * graph.node_mask)
        seen.append((weights.energy == 2).sum())
    assert sorted(seen) == [0, 0, 1]


def test_weights_by_config_type(twelve):
    bulk = dataclasses.replace(twelve[0], config_type="bulk", weights=Weights(1.0, 3.0, 1.0))
    slab, plain = dataclasses.replace(twelve[1], config_type="slab"), twelve[2]
    weighted = weighted_by_type([bulk, slab, plain], {"bulk": 2.0, "Default": 0.5})
    assert [s.weights[:3] for s in weighted] == [(2, 6, 2), (1, 1, 1), (0.5, 0.5, 0.5)]
    [left_out] = weighted_by_type([bulk], {"bulk": 0.0})
    assert left_out.energy is left_out.forces is None
