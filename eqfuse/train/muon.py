"""Muon for equivariant networks: every matrix of a Linear or of an MLP moves orthogonally."""

import math

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from eqfuse.train.flat import Flat
from eqfuse.train.matrices import STEPS, Stacks, merged, with_zeros

RMS = 0.5
"""Root mean square of the elements of an update of a matrix, for a learning rate of one.

A common choice is 0.2, about what Adam's updates have. Weights of this package, like those of
e3nn-jax, have a standard deviation of one (their layers divide by sqrt(fan-in) instead), and were
trained better with 0.5 to 1: see benchmarks/results/accuracy.md.
"""

SPARED = 2.1e9
"""Operations with zeros that are worth the launches of a stack on a GPU: a prediction.

25 launches, each of which costs 1.8 µs more than its work, and 47 TFLOP/s.
"""

COEFFICIENTS, BETA, EPS = (3.4445, -4.7750, 2.0315), 0.95, 1e-8
"""Coefficients of Newton-Schulz iterations, Nesterov's momentum: those of optax."""


def muon(flat: Flat, spared: float | None = None) -> optax.GradientTransformation:
    """Return Muon for the matrices, Adam with Nesterov's momentum for other parameters.

    A matrix maps the channels of one irrep to channels of the same irrep (one `w[i,j]` of a
    Linear, of each species if it has weights of its own), or is the kernel of a dense layer. Its
    momentum is replaced by the nearest orthogonal matrix, times `RMS` sqrt(max(rows, columns)).
    Embeddings, weights of the symmetric contraction, biases, readouts to one channel and scale
    and shift of the energies are not matrices of this kind.

    Updates and state are those of `optax.contrib.muon`, which multiplies matrices of each shape
    by themselves and so launches several times as many kernels on a GPU.

    Args:
      flat: how the parameters lie in the one array that is optimized, of `Flat.of(params, place)`.
      spared: operations with zeros that a stack of matrices less is worth; None for none on a CPU
        and `SPARED` elsewhere.
    Returns:
      What to add to that array, for a learning rate of one.
    Raises:
      ValueError: they lie otherwise.
    References: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks";
      Liu et al. 2025, arXiv:2502.16982 (the factor); Koker and Smidt 2025, arXiv:2508.16067
      (an equivariant potential trained with it).
    """
    if spared is None:
        spared = 0.0 if jax.default_backend() == "cpu" else SPARED
    stacks = Stacks.of(flat)
    as_in_optax = [optax.identity()] * 3  # its states, of which these are empty
    inner = optax.partition(
        {
            "muon": optax.chain(_scale_by_muon(spared), *as_in_optax),
            "adam": optax.nadamw(1.0, eps=EPS, weight_decay=0.0),
        },
        {"others": "adam"} | dict.fromkeys(stacks.names, "muon"),
    )

    def update(gradient, state, params=None):
        del params  # for weight decay, of which there is none
        parts = stacks.split(gradient)
        updates, state = inner.update(parts, state, parts)
        return stacks.join(updates), state

    return optax.GradientTransformation(lambda params: inner.init(stacks.split(params)), update)


def _scale_by_muon(spared: float) -> optax.GradientTransformation:
    """Return `scale_by_muon` of optax and `scale_by_shape`, with fewer, larger matmuls."""
    of_optax = contrib.scale_by_muon(ns_coeffs=COEFFICIENTS, ns_steps=STEPS, beta=BETA)

    def update(gradients, state, params=None):
        del params
        count = optax.safe_increment(state.count)
        mu = optax.tree.update_moment(gradients, state.mu, BETA, 1)
        ahead = jax.tree.map(
            lambda m, g: BETA * m + (1 - BETA) * g,
            optax.tree.bias_correction(mu, BETA, optax.safe_increment(count)),
            optax.tree.bias_correction(gradients, BETA, count),
        )
        leaves, structure = jax.tree.flatten(ahead)
        leaves = [-RMS * math.sqrt(a.shape[2]) * a for a in _orthogonal_together(leaves, spared)]
        updates = jax.tree.unflatten(structure, leaves)
        return updates, contrib.MuonState(count=count, mu=mu, ns_coeffs=state.ns_coeffs)

    return optax.GradientTransformation(of_optax.init, update)


def _orthogonal_together(arrays: list, spared: float) -> list:
    """Return `_orthogonal` of each array, padded with zeros and put together where that pays."""
    shapes = [array.shape[1:] for array in arrays]
    counts = {shape: array.shape[0] for shape, array in zip(shapes, arrays, strict=True)}
    orthogonal = {}
    for stack, members in merged(counts, spared=spared).items():
        numbers = [n for n, shape in enumerate(shapes) if shape in members]
        together = jnp.concatenate([with_zeros(arrays[n], stack) for n in numbers])
        sizes = [arrays[n].shape[0] for n in numbers]
        for n, part in zip(numbers, jax.lax.split(_orthogonal(together), sizes), strict=True):
            orthogonal[n] = part[:, : shapes[n][0], : shapes[n][1]]
    return [orthogonal[n] for n in range(len(arrays))]


def _orthogonal(stack):
    """Return the nearly orthogonal matrices [matrices, rows, columns] of Newton and Schulz.

    An iteration of optax is x -> a x + (b A + c A A) x, with A = x x^T. Here y = s x, where s
    becomes s / a, so that addends have no factor: XLA makes one launch for a GPU of a matmul, its
    factor and such an addend, if nothing but a barrier reads the sum.
    """
    a, b, c = COEFFICIENTS
    norms = jnp.linalg.norm(stack, axis=(1, 2), keepdims=True)
    y, s = jax.lax.optimization_barrier(stack / (norms + EPS)), 1.0
    for _ in range(STEPS):
        square = s**-2 * (y @ jnp.swapaxes(y, 1, 2))
        y = y + b / a * ((square + c / b * (square @ square)) @ y)
        y, s = jax.lax.optimization_barrier(y), s / a
    return y / s
