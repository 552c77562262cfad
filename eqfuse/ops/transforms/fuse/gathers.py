"""Gathers of parts of one array by one index array, as parts of one gather."""

from __future__ import annotations

import math

import numpy as np

from eqfuse.ops.transforms.fuse.indices import Gathered, gathered
from eqfuse.ops.transforms.fuse.moves import ArrayFactor, MovedRows
from eqfuse.ops.transforms.fuse.polynomials import TooLargeError
from eqfuse.ops.transforms.fuse.trace import Trace


class Gathers:
    """The gathers of rows in a trace.

    Slices, chunks and filters of an array that are gathered by the same indices as the array itself
    are elements of its rows.
    """

    def __init__(self, trace: Trace):
        self.trace = trace
        self._moves = MovedRows(trace)
        self._found: dict[int, tuple[Gathered, np.ndarray]] = {}
        alike: dict[tuple, list[tuple[int, Gathered]]] = {}
        for number in range(len(trace.nodes)):
            rows = gathered(trace, number)
            if rows is not None:
                aval = trace.avals[rows.value]
                key = rows.index, rows.mode, rows.fill, aval.shape[0], aval.dtype
                alike.setdefault(key, []).append((number, rows))
        for group in alike.values():
            self._join(group)

    def of(self, number: int) -> tuple[Gathered, np.ndarray] | None:
        """Return whose rows a node gathers, and which of their elements; None for other nodes."""
        return self._found.get(number)

    def _join(self, group: list[tuple[int, Gathered]]) -> None:
        """Find the elements of each of some gathers by one index, in the largest that has them."""
        places: dict[tuple, tuple[Gathered, int]] = {}
        for number, rows in sorted(group, key=lambda item: -self._size(item[1])):
            size = self._size(rows)
            elements = self._elements(rows.value) if len(group) > 1 else [None] * size
            known = [places.get(e) for e in elements]
            bases = {place[0] for place in known if place is not None}
            if len(bases) == 1 and None not in known:
                self._found[number] = bases.pop(), np.array([place for _, place in known])
                continue
            self._found[number] = rows, np.arange(size)
            for n, element in enumerate(elements):
                if element is not None:
                    places.setdefault(element, (rows, n))

    def _size(self, rows: Gathered) -> int:
        return math.prod(self.trace.avals[rows.value].shape[1:])

    def _elements(self, value: int) -> list[tuple | None]:
        """Return of each element of a row which one of which array it is; None for others."""
        elements: list[tuple | None] = [None] * math.prod(self.trace.avals[value].shape[1:])
        try:
            row = self._moves.of(value, 0)
        except TooLargeError:
            return elements
        for key, terms in row.terms.items():
            [name] = key or (None,)
            if isinstance(name, ArrayFactor) and name.axis is not None:
                for place, element in zip(terms.place, terms.index[:, 0], strict=True):
                    elements[place] = name, int(element)
        return elements
