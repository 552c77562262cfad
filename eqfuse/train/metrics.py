"""Predictions of samples; and errors of energies, forces and stresses, summed over batches."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from eqfuse.data import Batcher, Labels
from eqfuse.data.group_errors import UNITS
from eqfuse.graph import Graph
from eqfuse.models import Prediction
from eqfuse.train.schedule import MoleculeTraining


class Predicted(NamedTuple):
    """What a network gives for a sample."""

    energy: float  # eV, relative to the reference energies
    forces: np.ndarray  # [n_atoms, 3] eV/Å, in the order of the sample
    stress: np.ndarray | None  # [3, 3] eV/Å^3, zero without a cell
    hessian_error: np.ndarray | None = None  # [n_atoms, 3] eV/Å^2, of a known row of the Hessian


def predictions(predict: Callable, params, batcher: Batcher) -> list[Predicted]:
    """Return what a compiled `eqfuse.models.predict` predicts for each sample of a batcher.

    With a batcher of rows of Hessians, `predict` takes `direction`, too.
    """
    found, groups = [], batcher.groups(shuffle=False)
    for batch, group in zip(batcher.batches(shuffle=False), groups, strict=True):
        rows, first = batch.labels.hessian, 0
        how = {} if rows is None else {"direction": rows.direction}
        made = jax.device_get(predict(params, batch.graph, **how))
        for k, number in enumerate(group):
            last = first + batcher.samples[number].num_atoms
            stress = None if made.stress is None else made.stress[k].astype(np.float64)
            forces = made.forces[first:last].astype(np.float64)
            error = None
            if rows is not None and rows.mask[first]:
                error = np.float64(made.along[first:last]) - rows.values[first:last]
            found.append(Predicted(float(made.energy[k]), forces, stress, error))
            first = last
    return found


def error_sums(
    prediction: Prediction, labels: Labels, graph: Graph, penalty: Callable | None = None
) -> dict:
    """Sum the errors of one batch over the known labels.

    The energy's error is per atom (eV/atom), the forces' per component (eV/Å), the stress's per
    component (eV/Å^3), that of a row of a Hessian per component (eV/Å^2). For each quantity the
    sums are [3]: count, |error| and error^2; or [4] with weight * penalty (see `Loss.penalty`, None
    for the squares) if there is either.
    """
    errors = {
        "energy": (prediction.energy - labels.energy) / labels.num_atoms,
        "forces": prediction.forces - labels.forces,
    }
    masks = {
        "energy": labels.energy_mask & graph.graph_mask,
        "forces": (labels.forces_mask & graph.node_mask)[:, None],
    }
    if prediction.stress is not None:
        errors["stress"] = prediction.stress - labels.stress
        masks["stress"] = (labels.stress_mask & graph.graph_mask)[:, None, None]
    if prediction.along is not None:
        errors["hessian"] = prediction.along - labels.hessian.values
        masks["hessian"] = (labels.hessian.mask & graph.node_mask)[:, None]
    weights = {} if labels.weights is None else labels.weights._asdict()
    sums = {}
    for name, error in errors.items():
        mask, own = masks[name], weights.get(name)
        error = jnp.where(mask, error, 0.0)
        count = jnp.broadcast_to(mask, error.shape).sum().astype(error.dtype)
        parts = [count, jnp.abs(error).sum(), (square := error**2).sum()]
        if own is not None or penalty is not None:
            terms = square if penalty is None else penalty(name, error, labels.forces)
            parts.append((terms if own is None else own.reshape(mask.shape) * terms).sum())
        sums[name] = jnp.stack(parts)
    return sums


_STEPS = ((100.0, 0.7), (200.0, 0.4), (300.0, 0.1))
"""Universal loss: the length of a force, eV/Å, from which the threshold is that part of `delta`."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["energy", "forces", "stress", "force_scale", "hessian"],
    meta_fields=["kind", "delta"],
)
@dataclasses.dataclass(frozen=True)
class Loss:
    """Weighted mean penalties of errors over the square of the force scale: a pure number.

        loss = sum over q of weight_q * mean(w * penalty(error_q)) / force_scale^2

    The mean is over the known labels; w are the weights of the structures, see `Labels`. It is a
    pytree of its numbers, so that a compiled step is the same for others.

    References: mace's losses of these names, which are half of ours before the division: for
      "universal" Batatia et al. 2023, arXiv:2401.00096.
    """

    energy: float  # the weights, for errors in eV/atom, eV/Å and eV/Å^3
    forces: float
    stress: float
    force_scale: float  # eV/Å, the RMS of the training forces
    kind: str = "mse"  # the penalty, see `MoleculeTraining.loss`
    delta: float = 0.01  # threshold in the unit of the error
    hessian: float = 0.0  # as the other weights, for errors in eV/Å^2

    @classmethod
    def of(cls, settings: MoleculeTraining, force_scale: float) -> "Loss":
        """Return that of a training, whose weights and penalty are settings."""
        weights = settings.energy_weight, settings.forces_weight, settings.stress_weight
        kind = settings.loss, settings.huber_delta
        return cls(*weights, force_scale, *kind, hessian=settings.hessian_weight)

    @property
    def penalty(self) -> Callable | None:
        """Return (quantity, error, reference forces) to penalties; None for the squares."""
        return None if self.kind == "mse" else self._penalty

    def _penalty(self, name: str, error, forces):
        delta = self.delta
        if self.kind == "universal" and name == "forces":
            length = jnp.sqrt((forces**2).sum(axis=-1, keepdims=True))
            for least, part in _STEPS:
                delta = jnp.where(length < least, delta, part * self.delta)
        return 2 * optax.losses.huber_loss(error, delta=delta)

    def __call__(self, sums: dict):
        """Return the loss of errors summed by `error_sums`."""
        total = 0.0
        for name, values in sums.items():
            # A batch without labels of a kind has a count of zero.
            count = values[0] + (values[0] == 0)
            total = total + getattr(self, name) * values[-1] / count  # the weighted sum, if any
        return total / self.force_scale**2


def best_of(row: dict, criterion: str) -> float:
    """Return the number in a row of metrics.csv that the best network has the lowest of."""
    if criterion == "loss":
        return row["val_loss"]
    return row[f"val_{criterion}_{UNITS[criterion.partition('_')[0]]}"]


def added(before: dict, sums: dict) -> dict:
    """Return sums of `error_sums` and those before, {} at first, in float64 on the host."""
    sums = {name: np.asarray(values, float) for name, values in sums.items()}
    return {name: (values + before.get(name, 0)).tolist() for name, values in sums.items()}


def error_row(sums: dict) -> dict[str, float]:
    """Return MAE and RMSE of sums of `error_sums`, NaN where nothing was added.

    Energy in meV/atom, forces in meV/Å, stress in meV/Å^3.
    """
    row = {}
    for name, (count, absolute, square, *_) in sums.items():
        row[f"{name}_mae_{UNITS[name]}"] = 1e3 * (absolute / count if count else math.nan)
        row[f"{name}_rmse_{UNITS[name]}"] = 1e3 * (square / count if count else math.nan) ** 0.5
    return row
