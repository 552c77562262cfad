"""Rows as polynomials of the elements of others: sums of monomials, as arrays of numbers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

MOST_TERMS = 1 << 22
"""Monomials of a row at most."""


class Unfit(ValueError):
    """A part of a trace is not of the kind that an op computes."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """Monomials of the same factors."""

    place: np.ndarray  # [n], the element of the row that each adds to
    scale: np.ndarray  # [n] float64
    index: np.ndarray  # [n, factors], the element of each factor

    def by_place(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scale and index of each element of the row; the scale is zero where none is."""
        scale, index = np.zeros(size), np.zeros((size, self.index.shape[1]), int)
        if len(np.unique(self.place)) < len(self.place):
            raise Unfit("rows are added to each other")
        scale[self.place], index[self.place] = self.scale, self.index
        return scale, index


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """A row of `shape`, in which the axis that counts rows is 1."""

    shape: tuple[int, ...]
    terms: dict[tuple, Terms]  # by their factors, names of rows; () for constants

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def labels(self) -> np.ndarray:
        """Return the number of each element, in the shape of the row."""
        return np.arange(self.size).reshape(self.shape)

    def take(self, labels: np.ndarray) -> Polynomial:
        """Return the row whose elements are those of these numbers, or zero where it is -1."""
        flat = labels.reshape(-1)
        terms = {key: _take(t, flat, self.size) for key, t in self.terms.items()}
        return Polynomial(labels.shape, {k: t for k, t in terms.items() if len(t.place)})

    def scaled(self, factor: float) -> Polynomial:
        of = self.terms if factor else {}
        scaled = {k: Terms(t.place, t.scale * float(factor), t.index) for k, t in of.items()}
        return Polynomial(self.shape, scaled)

    def __add__(self, other: Polynomial) -> Polynomial:
        terms = dict(self.terms)
        for key, t in other.terms.items():
            terms[key] = _joined([terms[key], t]) if key in terms else t
        return Polynomial(self.shape, terms)

    def __mul__(self, other: Polynomial) -> Polynomial:
        terms: dict = {}
        for key_a, a in self.terms.items():
            for key_b, b in other.terms.items():
                key, t = _product(key_a, a, key_b, b, self.size)
                if len(t.place):
                    terms[key] = _joined([terms[key], t]) if key in terms else t
        return Polynomial(self.shape, terms)

    def summed(self, count: int, shape: tuple[int, ...]) -> Polynomial:
        """Return a row each of whose elements is the sum of `count` adjacent ones."""
        terms = {
            key: merged(Terms(t.place // count, t.scale, t.index)) for key, t in self.terms.items()
        }
        return Polynomial(tuple(shape), terms)


def variable(name, shape: tuple[int, ...]) -> Polynomial:
    """Return a row that is another one."""
    place = np.arange(math.prod(shape))
    return Polynomial(tuple(shape), {(name,): Terms(place, np.ones(len(place)), place[:, None])})


def constant(array: np.ndarray) -> Polynomial:
    array = np.asarray(array)
    values = array.reshape(-1).astype(np.float64)
    place = np.flatnonzero(values)
    terms = {(): Terms(place, values[place], np.zeros((len(place), 0), int))} if len(place) else {}
    return Polynomial(array.shape, terms)


def merged(terms: Terms) -> Terms:
    """Return the same with equal monomials in one, without those that cancel exactly."""
    if not len(terms.place):
        return terms
    keys = np.column_stack([terms.place, terms.index])
    keys, inverse = np.unique(keys, axis=0, return_inverse=True)
    scale = np.bincount(inverse.reshape(-1), terms.scale, len(keys))
    kept = scale != 0
    return Terms(keys[kept, 0], scale[kept], keys[kept, 1:])


def _joined(parts: list[Terms]) -> Terms:
    columns = zip(*((t.place, t.scale, t.index) for t in parts), strict=True)
    return merged(Terms(*map(np.concatenate, columns)))


def _matches(place: np.ndarray, wanted: np.ndarray, size: int):
    """Return pairs (n, m) of which place[n] == wanted[m]; nothing matches a wanted -1."""
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(size + 1))
    count = np.where(wanted < 0, 0, starts[wanted + 1] - starts[np.maximum(wanted, 0)])
    if count.sum() > MOST_TERMS:
        raise Unfit("it has too many terms")
    m = np.repeat(np.arange(len(wanted)), count)
    before = np.cumsum(count) - count
    n = order[starts[wanted[m]] + np.arange(len(m)) - before[m]]
    return n, m


def _take(terms: Terms, wanted: np.ndarray, size: int) -> Terms:
    n, m = _matches(terms.place, wanted, size)
    return Terms(m, terms.scale[n], terms.index[n])


def _product(key_a, a: Terms, key_b, b: Terms, size: int):
    n, m = _matches(a.place, b.place, size)
    key = (*key_a, *key_b)
    order = sorted(range(len(key)), key=lambda i: str(key[i]))
    index = np.concatenate([a.index[n], b.index[m]], axis=1)[:, order]
    return tuple(key[i] for i in order), Terms(b.place[m], a.scale[n] * b.scale[m], index)
