"""Sequences whose items are made when they are asked for."""

import abc
from collections.abc import Iterable, Sequence

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
        return Subset(items, list(indices))
    return [items[i] for i in indices]


def without_isolated_atoms(structures: Sequence) -> Sequence:
    """Return the structures that are not isolated atoms, see `chosen`."""
    return chosen(structures, [k for k, s in enumerate(structures) if not s.is_isolated_atom])
