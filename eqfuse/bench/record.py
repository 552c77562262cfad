"""The file of results: how numbers spread, and JSON that is whole or not there."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib

import numpy as np


class ParityError(RuntimeError):
    """Two sides of a comparison do not compute the same; so neither is timed."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """A number that was measured several times.

    Attributes:
      median, low, high: of the measurements; the first and the third quartile.
      number: of measurements.
      warm_up: measurements before them that are left out.
    """

    median: float
    low: float
    high: float
    number: int
    warm_up: int

    @classmethod
    def of(cls, numbers, warm_up: int = 0) -> Spread:
        """Return the spread of numbers, of which the first `warm_up` are left out.

        Raises:
          ValueError: none are left.
        """
        kept = np.asarray(numbers, float)[warm_up:]
        if not kept.size:
            raise ValueError(f"{len(numbers)} measurements, {warm_up} of them warm-up: none left")
        low, median, high = np.percentile(kept, (25, 50, 75))
        return cls(float(median), float(low), float(high), len(kept), warm_up)


def write_json(path: str | os.PathLike, value) -> None:
    """Write a file that is there as a whole or not at all; dataclasses become dicts."""
    path = pathlib.Path(path)
    text = to_json(value, indent=1) + "\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def to_json(value, indent: int | None = None) -> str:
    """Return JSON of plain values, NumPy's arrays and numbers, and dataclasses."""
    return json.dumps(value, indent=indent, default=_plain)


def _plain(value):
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
