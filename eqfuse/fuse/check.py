"""Compare a rewritten function with the function as it is written, on the arguments it is given."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

MOST = 1e3
"""Units of rounding, of the largest number of an array, by which two orders of sums may differ."""


def differences(written: Callable, replaced: Callable, arrays, eps: float) -> tuple[str, bool]:
    """Return how far values and gradients of two functions of arrays differ, and if by rounding.

    Gradients are those of the outputs times random numbers, by all floating arrays. A function
    that has none is compared by its values. `eps` is the unit of rounding.
    """
    floats = [n for n, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]
    try:
        expected = jax.jit(_with_gradients(written, arrays, floats))(*arrays)
        found = jax.jit(_with_gradients(replaced, arrays, floats))(*arrays)
    except (TypeError, ValueError, NotImplementedError):  # no derivative in reverse
        expected, found = ((jax.jit(f)(*arrays), []) for f in (written, replaced))
    most = max(np.abs(a).max(initial=0) for a in map(_numbers, jax.tree.leaves(expected)))
    errors = [
        max((_error(a, b, most) for a, b in zip(*sides, strict=True)), default=0.0)
        for sides in zip(expected, found, strict=True)
    ]
    by_rounding = max(errors) <= MOST * eps
    said = "checked" if by_rounding else "WRONG, please report it"
    said += f": values differ by {errors[0]:.0e}, gradients by {errors[1]:.0e} of the largest"
    return said, by_rounding


def _with_gradients(function: Callable, arrays, floats: list[int]) -> Callable:
    """Return a function of the arrays: outputs of `function`, and gradients of a random sum."""

    def computed(*arrays):
        outputs, pull = jax.vjp(function, *arrays)
        rng = np.random.default_rng(0)
        gradients = pull([_cotangent(o, rng) for o in outputs])
        return outputs, [gradients[n] for n in floats]

    return computed


def _cotangent(output, rng):
    if not jnp.issubdtype(output.dtype, jnp.inexact):
        return np.zeros(output.shape, jax.dtypes.float0)
    return jnp.asarray(rng.normal(size=output.shape), output.dtype)


def _numbers(array) -> np.ndarray:
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _error(a, b, most: float) -> float:
    """Return the largest difference of two arrays, of their largest number; NaN equals NaN."""
    a, b = _numbers(a), _numbers(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    a, b = np.where(same, 0, a), np.where(same, 0, b)
    error = np.abs(a - b).max(initial=0.0)
    scale = np.abs(a).max(initial=0.0) + 0.1 * (most if np.isfinite(most) else 0.0)
    return float(error / scale) if np.isfinite(error) and scale else float(error and np.inf)
