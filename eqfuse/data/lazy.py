"""Sequences whose items are made when they are asked for."""

import abc
from collections.abc import Callable, Iterable, Sequence

import numpy as np


class Lazy(Sequence):
    """A sequence whose items are made each time that they are asked for, and not kept."""

    @abc.abstractmethod
    def item(self, k: int):
        """Return item number k, from 0."""

    def __getitem__(self, k):
        if isinstance(k, slice):
            return Subset(self, range(*k.indices(len(self))))
        if not -len(self) <= k < len(self):
            raise IndexError(f"there is no item {k} of {len(self)}")
        return self.item(int(k) % len(self))

    def __iter__(self):
        return (self.item(k) for k in range(len(self)))


class Subset(Lazy):
    """Some items of a sequence, by their numbers."""

    def __init__(self, items: Sequence, indices):
        self.items, self.indices = items, np.asarray(indices, np.int64)

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, k: int):
        return self.items[int(self.indices[k])]


class Mapped(Lazy):
    """What a function makes of each item of a sequence, and of its number."""

    def __init__(self, function: Callable, items: Sequence):
        self.function, self.items = function, items

    def __len__(self) -> int:
        return len(self.items)

    def item(self, k: int):
        return self.function(self.items[k], k)


class Joined(Lazy):
    """Items of several sequences, one after the other."""

    def __init__(self, *parts: Sequence):
        self.parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def item(self, k: int):
        part = int(np.searchsorted(self._ends, k, "right"))
        return self.parts[part][k - int(self._ends[part]) + len(self.parts[part])]


def chosen(items: Sequence, indices: Iterable[int]) -> Sequence:
    """Return the items of these numbers: a list, or a `Subset` of a lazy sequence."""
    if isinstance(items, Lazy):
        return Subset(items, indices)
    return [items[i] for i in indices]


def evenly(items: Sequence, most: int) -> Sequence:
    """Return evenly spaced items, between `most` and twice as many; all where there are fewer."""
    return items[:: max(1, len(items) // most)]


def selected(items: Sequence, condition: Callable[..., bool]) -> Sequence:
    """Return the items that fulfil a condition, see `chosen`."""
    return chosen(items, np.flatnonzero(flags(items, condition)))


def flags(items: Iterable, condition: Callable[..., bool]) -> np.ndarray:
    """Return whether each item fulfils a condition, [n] bool; one byte for each is kept."""
    return np.fromiter((bool(condition(item)) for item in items), bool)


def without_isolated_atoms(structures: Sequence) -> Sequence:
    """Return the structures that are not isolated atoms, see `chosen`."""
    return selected(structures, lambda s: not s.is_isolated_atom)
