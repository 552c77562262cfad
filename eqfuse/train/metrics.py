"""Errors of energies, forces and stresses, summed over batches."""

import dataclasses
import math

import jax.numpy as jnp

from eqfuse.data import Labels
from eqfuse.graph import Graph
from eqfuse.models import Prediction

QUANTITIES = ("energy", "forces", "stress")


def error_sums(prediction: Prediction, labels: Labels, graph: Graph) -> dict:
    """Count, absolute sum and square sum of the errors of one batch, padding left out.

    The energy's error is per atom (eV/atom), the forces' per component (eV/Å), the stress's per
    component (eV/Å^3, structures that have a stress).

    Returns:
      {quantity: [3] array of count, sum of |error|, sum of error^2}; stress only if predicted.
    """
    sums = {
        "energy": _sums((prediction.energy - labels.energy) / labels.num_atoms, graph.graph_mask),
        "forces": _sums(prediction.forces - labels.forces, graph.node_mask[:, None]),
    }
    if prediction.stress is not None:
        mask = (labels.stress_mask & graph.graph_mask)[:, None, None]
        sums["stress"] = _sums(prediction.stress - labels.stress, mask)
    return sums


def _sums(error, mask):
    error = jnp.where(mask, error, 0.0)
    count = jnp.broadcast_to(mask, error.shape).sum().astype(error.dtype)
    return jnp.stack([count, jnp.abs(error).sum(), (error**2).sum()])


@dataclasses.dataclass(frozen=True)
class Loss:
    """Weighted mean square errors over the square of the force scale: a pure number.

        loss = sum over q of weight_q * mean(error_q^2) / force_scale^2

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
            # A batch without stresses has a count of zero.
            count = values[0] + (values[0] == 0)
            total = total + getattr(self, name) * values[2] / count
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
            self.sums[name] = [
                a + b for a, b in zip(self.sums.get(name, [0] * 3), values, strict=True)
            ]

    def table(self) -> dict[str, float]:
        """Return MAE and RMSE, which are NaN where nothing was added.

        Energy in meV/atom, forces in meV/Å, stress in meV/Å^3.
        """
        units = {"energy": "mev_per_atom", "forces": "mev_per_a", "stress": "mev_per_a3"}
        row = {}
        for name, (count, absolute, square) in self.sums.items():
            mean, mean_square = (s / count if count else math.nan for s in (absolute, square))
            row[f"{name}_mae_{units[name]}"] = 1e3 * mean
            row[f"{name}_rmse_{units[name]}"] = 1e3 * mean_square**0.5
        return row
