"""The intervals of tables of radial functions, and the places of lengths in them."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

NEAREST = 1e-3
"""First knot, as a part of the cutoff; the functions of some networks are singular at zero."""
MARGIN = 1e-12
"""Distance from a break at which derivatives of one side are taken, as a part of the cutoff."""
ORDER = 6
"""Coefficients of a polynomial."""


class Grid(NamedTuple):
    """Intervals between knots, and the points at which functions are computed for them.

    Attributes:
      points: [n_points] Å.
      left, right: (first, last) of the points at the ends of intervals, for each piece.
      center, half: [intervals] Å: its middle, and half its length.
      pieces: (first interval, intervals, start, length of each) of the pieces between breaks.
    """

    points: np.ndarray
    left: tuple[tuple[int, int], ...]
    right: tuple[tuple[int, int], ...]
    center: np.ndarray
    half: np.ndarray
    pieces: tuple[tuple[int, int, float, float], ...]


@functools.lru_cache(maxsize=64)
def grid(breaks: tuple[float, ...], knots: int) -> Grid:
    """Return equal intervals between breaks, as many in each piece as its length asks for.

    Args:
      breaks: lengths at which derivatives jump, Å, increasing; the last is the cutoff.
      knots: number of intervals, roughly.
    """
    cutoff = breaks[-1]
    first, count, pieces, parts, left, right = 0, 0, [], [], [], []
    ends = [NEAREST * cutoff, *breaks]
    for start, end in itertools.pairwise(ends):
        number = max(2, round(knots * (end - start) / cutoff))
        lengths = np.linspace(start, end, number + 1)
        points = lengths.copy()  # each piece has its own, on its side of the breaks
        points[0] += MARGIN * cutoff if first else 0
        points[-1] -= MARGIN * cutoff
        left.append((count, count + number))
        right.append((count + 1, count + number + 1))
        parts.append((points, (lengths[1:] + lengths[:-1]) / 2, np.diff(lengths) / 2))
        pieces.append((first, number, start, (end - start) / number))
        first, count = first + number, count + number + 1
    points, center, half = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Grid(points, tuple(left), tuple(right), center, half, tuple(pieces))


def places(cells: Grid, lengths, inside):
    """Return the interval of each length, [n_edges] int32, and powers of the place in it."""
    fixed = jax.lax.stop_gradient(lengths)
    interval = 0
    for first, number, start, step in cells.pieces:
        at = jnp.clip(jnp.floor((fixed - start) / step), 0, number - 1).astype(jnp.int32)
        interval = jnp.where(fixed >= start, first + at, interval)
    dtype = np.dtype(lengths.dtype)
    middle = cells.center.astype(dtype)
    # what the middle loses by rounding, which is 1e-5 of a short interval in float32
    rest = (cells.center - middle.astype(np.float64)).astype(dtype)
    constants = jnp.asarray(np.stack([middle, rest, 1 / cells.half], axis=1), dtype)[interval]
    t = (lengths - constants[:, 0] - constants[:, 1]) * constants[:, 2]
    t = jnp.where(inside, t, 0)
    powers = [jnp.ones_like(t)]
    for _ in range(ORDER - 1):
        powers.append(powers[-1] * t)
    return interval, jnp.where(inside[:, None], jnp.stack(powers, axis=1), 0)
