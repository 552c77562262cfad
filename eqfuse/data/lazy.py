"""Sequences whose items are made when they are asked for, in the background or with reports."""

import abc
import collections
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

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

    def part_of(self, k: int) -> int:
        """Return the number of the sequence that item k is of."""
        return int(np.searchsorted(self._ends, k, "right"))

    def item(self, k: int):
        part = self.part_of(k)
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
    """Test a condition on each item, [n] bool; one byte for each is kept."""
    return np.fromiter((bool(condition(item)) for item in items), bool)


def without_isolated_atoms(structures: Sequence) -> Sequence:
    """Return the structures that are not isolated atoms, see `chosen`."""
    return selected(structures, lambda s: not s.is_isolated_atom)


SECONDS = 5.0
"""Until the first line, and between two."""


def reported(items: Iterable, what: str) -> Iterator:
    """Yield the items; every few seconds, print how many there were, such as 8 "frames read"."""
    start = last = time.monotonic()
    count = 0
    for count, item in enumerate(items, start=1):
        now = time.monotonic()
        if now - last >= SECONDS:
            print(f"{count} {what}, {now - start:.0f} s", file=sys.stderr, flush=True)
            last = now
        yield item
    if last > start:
        seconds = time.monotonic() - start
        print(f"{count} {what}, {seconds:.0f} s", file=sys.stderr, flush=True)


_END = object()
_DEPTH = 2


def prefetched(items: Iterable) -> Iterator:
    """Yield items in their order, made by a thread up to two ahead of their use.

    What the thread raises is raised here, in its place in the order.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1) as pool:
        waiting = collections.deque(pool.submit(next, iterator, _END) for _ in range(_DEPTH))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, iterator, _END))
            yield item
