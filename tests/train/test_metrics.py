import dataclasses

import numpy as np
import pytest

from eqfuse.data import Batcher, Dataset, read_extxyz
from eqfuse.data.structures import Weights
from eqfuse.models import Prediction
from eqfuse.train.metrics import Errors, Loss, error_sums


@pytest.fixture
def batch(copper):
    dataset = Dataset.build(read_extxyz(copper), cutoff=3.0, val_size=2)
    return next(Batcher(dataset.train, 3).batches())


def perturbed(batch, rng):
    """Labels plus known errors, and nonsense where there is padding."""
    labels, graph = batch.labels, batch.graph
    errors = {
        name: rng.normal(size=getattr(labels, name).shape)
        for name in ("energy", "forces", "stress")
    }
    errors["energy"][~graph.graph_mask] = 1e6
    errors["forces"][~graph.node_mask] = 1e6
    errors["stress"][~graph.graph_mask] = 1e6
    values = {name: getattr(labels, name) + error for name, error in errors.items()}
    return Prediction(node_energy=None, **values), errors


def test_errors_are_those_of_the_real_atoms(batch, rng):
    prediction, errors = perturbed(batch, rng)
    graph = batch.graph
    expected = {
        "energy": errors["energy"][graph.graph_mask] / 4,
        "forces": errors["forces"][graph.node_mask],
        "stress": errors["stress"][graph.graph_mask],
    }
    total = Errors()
    for _ in range(2):
        total.add(error_sums(prediction, batch.labels, graph))
    table = total.table()
    for name, unit in (
        ("energy", "mev_per_atom"),
        ("forces", "mev_per_a"),
        ("stress", "mev_per_a3"),
    ):
        error = 1e3 * expected[name]
        # float32 labels near 10 eV: relative errors of 1e-6.
        assert table[f"{name}_mae_{unit}"] == pytest.approx(np.abs(error).mean(), rel=1e-5)
        assert table[f"{name}_rmse_{unit}"] == pytest.approx((error**2).mean() ** 0.5, rel=1e-5)
    assert total.sums["forces"][0] == 2 * errors["forces"][graph.node_mask].size


def test_loss_is_the_weighted_mean_square(batch, rng):
    prediction, errors = perturbed(batch, rng)
    graph = batch.graph
    loss = Loss(energy=2.0, forces=3.0, stress=5.0, force_scale=0.5)
    expected = 2 * np.mean((errors["energy"][graph.graph_mask] / 4) ** 2)
    expected += 3 * np.mean(errors["forces"][graph.node_mask] ** 2)
    expected += 5 * np.mean(errors["stress"][graph.graph_mask] ** 2)
    value = loss(error_sums(prediction, batch.labels, graph))
    assert float(value) == pytest.approx(expected / 0.25, rel=1e-5)


@pytest.mark.parametrize("kind", ["huber", "universal"])
def test_huber_and_universal_losses_are_those_of_mace(batch, rng, kind):
    """Twice them, so that small errors count as in the mean square."""
    prediction, errors = perturbed(batch, rng)
    labels, graph = batch.labels, batch.graph
    rows = np.flatnonzero(graph.node_mask)
    labels.forces[rows] = np.linspace(20, 400, len(rows))[:, None] * [0.6, 0.0, 0.8]
    prediction = prediction._replace(forces=labels.forces + errors["forces"])
    loss = Loss(energy=2.0, forces=3.0, stress=5.0, force_scale=0.5, kind=kind, delta=0.7)

    def huber(error, delta):  # torch.nn.HuberLoss
        size = np.abs(error)
        return np.where(size < delta, 0.5 * size**2, delta * (size - 0.5 * delta))

    lengths = np.linspace(20, 400, len(rows))[:, None]
    factors = 1.0
    if kind == "universal":  # conditional_huber_forces
        factors = np.select([lengths < 100, lengths < 200, lengths < 300], [1.0, 0.7, 0.4], 0.1)
    energy = errors["energy"][graph.graph_mask] / 4
    expected = 2 * huber(energy, 0.7).mean()
    expected += 3 * huber(errors["forces"][rows], 0.7 * factors).mean()
    expected += 5 * huber(errors["stress"][graph.graph_mask], 0.7).mean()
    value = loss(error_sums(prediction, labels, graph, loss.penalty))
    assert float(value) == pytest.approx(2 * expected / 0.25, rel=1e-5)
    square = dataclasses.replace(loss, delta=1e9)
    sums = error_sums(prediction, labels, graph, square.penalty)
    plain = dataclasses.replace(loss, kind="mse")
    assert float(square(sums)) == pytest.approx(float(plain(error_sums(prediction, labels, graph))))


def test_weights_of_frames_count_in_huber_losses_too(batch, rng):
    prediction, _ = perturbed(batch, rng)
    graph, shape = batch.graph, batch.labels.energy.shape
    halves = Weights(np.full(shape, 0.5), np.full(graph.node_mask.shape, 0.5), np.full(shape, 0.5))
    loss = Loss(energy=2.0, forces=3.0, stress=5.0, force_scale=0.5, kind="huber")
    labels = dataclasses.replace(batch.labels, weights=halves)
    values = [
        loss(error_sums(prediction, lab, graph, loss.penalty)) for lab in (batch.labels, labels)
    ]
    assert float(values[1]) == pytest.approx(0.5 * float(values[0]), rel=1e-5)


def test_a_batch_without_stress_labels_has_a_finite_loss(batch, rng):
    prediction, _ = perturbed(batch, rng)
    labels = dataclasses.replace(batch.labels, stress_mask=np.zeros_like(batch.labels.stress_mask))
    sums = error_sums(prediction, labels, batch.graph)
    assert float(sums["stress"][0]) == 0
    total = Errors()
    total.add(sums)
    assert np.isnan(total.table()["stress_mae_mev_per_a3"])
    assert np.isfinite(float(Loss(1.0, 1.0, 1.0, 1.0)(sums)))
