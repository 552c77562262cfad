"""By what the programs multiply activations, so that they keep the variance of normal numbers."""

import math

import e3nn_jax as e3nn
import jax

from eqfuse.models.irreps import SCALAR

# e3nn for PyTorch estimates them with a million random numbers, of seed 0; they are in no file
SILU = 1.6791767923989418
TANH = 1.5937334472592695


def e3nn_gate(irreps) -> dict[e3nn.Irrep, float]:
    """Return the factor of each irrep after e3nn's gate with silu, and tanh for odd scalars.

    Args:
      irreps: after the gate.
    """
    return {ir: TANH if (ir.l == 0 and ir != SCALAR) else SILU for _, ir in irreps}


def e3nn_dense(weights, first: float = 1.0) -> list:
    """Return the matrices of an `e3nn.nn.FullyConnectedNet` with silu, which is then plain silu.

    Args:
      weights: of its layers, [rows, columns].
      first: what the input is multiplied with.
    """
    return [w * ((first if k == 0 else SILU) / math.sqrt(len(w))) for k, w in enumerate(weights)]


def normalized_by(name: str) -> float:
    """Return by what e3nn-jax multiplies an activation of `jax.nn`, to normalise it."""
    act = getattr(jax.nn, name)
    with jax.enable_x64(True):
        return float(e3nn.normalize_function(act)(1.0) / act(1.0))
