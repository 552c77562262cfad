"""Errors of energies, forces and stresses, summed over batches."""

import dataclasses
import math

import jax.numpy as jnp

from eqfuse.data import Labels
from eqfuse.graph import Graph
from eqfuse.models import Prediction


def error_sums(prediction: Prediction, labels: Labels, graph: Graph) -> dict:
    """Sum the errors of one batch over the known labels.

    The energy's error is per atom (eV/atom), the forces' per component (eV/Å), the stress's per
    component (eV/Å^3).

    Returns:
      {quantity: [3] array of count, sum of |error|, sum of error^2}, or [4] with the sum of
      weight * error^2 if the labels have weights; stress only if predicted.
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
    weights = {} if labels.weights is None else labels.weights._asdict()
    return {name: _sums(e, masks[name], weights.get(name)) for name, e in errors.items()}


def _sums(error, mask, weights):
    error = jnp.where(mask, error, 0.0)
    count = jnp.broadcast_to(mask, error.shape).sum().astype(error.dtype)
    square = error**2
    sums = [count, jnp.abs(error).sum(), square.sum()]
    if weights is not None:
        sums.append((weights.reshape(mask.shape) * square).sum())
    return jnp.stack(sums)


@dataclasses.dataclass(frozen=True)
class Loss:
    """Weighted mean square errors over the square of the force scale: a pure number.

        loss = sum over q of weight_q * mean(w * error_q^2) / force_scale^2

    The mean is over the known labels; w are the weights of the structures, see `Labels`.

    Attributes:
      energy, forces, stress: weights for errors in eV/atom, eV/Å and eV/Å^3.
      force_scale: eV/Å, the RMS of the training forces.
    """

    energy: float
    forces: float
    stress: float
    force_scale: float

    def __call__(self, sums: dict):
        """Return the loss of errors summed by `error_sums`."""
        total = 0.0
        for name, values in sums.items():
            # A batch without labels of a kind has a count of zero.
            count = values[0] + (values[0] == 0)
            total = total + getattr(self, name) * values[-1] / count  # the weighted sum, if any
        return total / self.force_scale**2


class Errors:
    """Error sums accumulated over an epoch, in float64 on the host.

    Args:
      sums: those of the part of the epoch that is done; None to begin.
    """

    def __init__(self, sums: dict | None = None):
        self.sums = dict(sums or {})

    def add(self, sums: dict):
        for name, values in sums.items():
            values = [float(v) for v in values]
            before = self.sums.get(name, [0] * len(values))
            self.sums[name] = [a + b for a, b in zip(before, values, strict=True)]

    def table(self) -> dict[str, float]:
        """Return MAE and RMSE, which are NaN where nothing was added.

        Energy in meV/atom, forces in meV/Å, stress in meV/Å^3.
        """
        units = {"energy": "mev_per_atom", "forces": "mev_per_a", "stress": "mev_per_a3"}
        row = {}
        for name, (count, absolute, square, *_) in self.sums.items():
            mean, mean_square = (s / count if count else math.nan for s in (absolute, square))
            row[f"{name}_mae_{units[name]}"] = 1e3 * mean
            row[f"{name}_rmse_{units[name]}"] = 1e3 * mean_square**0.5
        return row
