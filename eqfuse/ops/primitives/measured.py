"""What was measured on this device: for an op of a shape, which of its kernels took least time.

`measuring` times the candidates and keeps a `Result` for each op; `choice` reads it here, and falls
back to its rule where there is none. Rows and nodes count to the nearest power of two, so that few
shapes are measured. What is kept is of one device, and of the source of the kernels: a file of
another device, or of another version, is never read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import json
import math
import pathlib
from typing import NamedTuple

import jax

from eqfuse.ops import _host, _kept
from eqfuse.ops._backend import DETERMINISTIC, is_set
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.fused import Fused

VARIABLE = "EQFUSE_MEASURE"
MARGIN = 0.03
"""The rule's choice stays where no other takes a smaller part of its time than 1 - MARGIN."""


def is_on() -> bool:
    """Return whether measurements count: they do unless EQFUSE_MEASURE is 0.

    Raises:
      ValueError: EQFUSE_MEASURE is neither 0 nor 1.
    """
    return is_set(VARIABLE)


@dataclasses.dataclass(frozen=True)
class Problem:
    """An op whose kernels are chosen by measuring, or a part of one.

    Attributes:
      op: a fused op; or a form or a linear form, whose kernel has several plans.
      num_rows, num_nodes: powers of two; no nodes where there is no graph.
      deterministic: its results must repeat to the bit.
    """

    op: Fused | Form
    num_rows: int
    num_nodes: int
    backend: str
    dtype: str
    deterministic: bool = True

    @classmethod
    def of(cls, op, num_rows: int, num_nodes: int, backend: str, dtype) -> Problem:
        sizes = nearest_power(num_rows), nearest_power(num_nodes)
        deterministic = not num_nodes or backend != "triton" or is_set(DETERMINISTIC)
        return cls(op, *sizes, backend, dtype.name, deterministic)

    @functools.cached_property
    def name(self) -> str:
        """Return what a result is kept under: words for a reader, and a digest of the op."""
        return f"{self}, {hashlib.sha256(repr(_plain(self.op)).encode()).hexdigest()}"

    def __str__(self):
        form = self.op.form if isinstance(self.op, Fused) else self.op
        kind = "a Linear" if form.has_matrices else "a product"
        if isinstance(self.op, Fused):
            kind = "a product, a Linear" + (" and a gate" if self.op.gate else "")
        where = f"{self.num_rows} rows"
        where = f"{self.num_rows} edges of {self.num_nodes} nodes" if self.num_nodes else where
        order = "" if self.deterministic else ", sums in any order"
        return f"{kind}, {len(form.paths)} paths, {where}, {self.dtype}{order}"


class Result(NamedTuple):
    """What was measured of a problem.

    Attributes:
      chosen: the name of a candidate.
      order: of the highest derivative that was timed with the op: 0, 1 or 2.
      ms: for each candidate that was timed, the milliseconds of the op and these derivatives.
      left_out: for the others, why.
    """

    chosen: str
    order: int
    ms: dict[str, float]
    left_out: dict[str, str]

    def __str__(self):
        parts = [f"{self.chosen} takes {self.ms[self.chosen]:.3g} ms"]
        parts += [f"{name} {ms:.3g}" for name, ms in self.ms.items() if name != self.chosen]
        parts += [f"{name} is left out: {why}" for name, why in self.left_out.items()]
        return ", ".join(parts)


@dataclasses.dataclass(eq=False)
class LookedUp:
    """The problems of `lookup` while a function is traced to see what it uses."""

    problems: list[Problem] = dataclasses.field(default_factory=list)


collecting = jax.make_user_context(None)
"""A `LookedUp`, or None. It is part of the keys of jit's caches, so that what is traced to be
looked at is never what runs."""


def nearest_power(count: int) -> int:
    return 2 ** round(math.log2(count)) if count else 0


def _plain(value):
    """Return a value whose text is the same in every process: of dataclasses, what is compared."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        fields = (f.name for f in dataclasses.fields(value) if f.compare)
        return type(value).__name__, *(_plain(getattr(value, name)) for name in fields)
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else str(value)


@functools.cache
def device_key(backend: str) -> dict:
    """Return what names this device, and the kernels that were timed on it."""
    key = {"kernels": _digest_of_sources(), "jax": jax.__version__}
    if backend == "llvm":
        return key | {"device": _host.description(), "processors": _host.num_processors()}
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    key["triton"] = importlib.metadata.version("triton")
    return key | {"device": [device.device_kind, capability]}


@functools.cache
def _digest_of_sources() -> str:
    """Return a digest of the files that write kernels, and call them."""
    folder, found = pathlib.Path(__file__).parents[1], hashlib.sha256()
    for part in ("ir", "backends", "primitives"):
        for path in sorted((folder / part).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


_results: dict[str, dict[str, Result]] = {}
"""By backend, what this process has read or measured: a result for each `Problem.name`."""


def results(backend: str) -> dict[str, Result]:
    """Return all that was measured on this device, by `Problem.name`; the file is read once."""
    if backend not in _results:
        kept = json.loads(_file(backend).read() or b"{}")
        _results[backend] = {name: Result(*fields) for name, fields in kept.items()}
    return _results[backend]


def lookup(problem: Problem) -> Result | None:
    """Return what was measured of a problem on this device, or None."""
    if looked_up := collecting.value:
        looked_up.problems.append(problem)
    return results(problem.backend).get(problem.name) if is_on() else None


def keep(problem: Problem, result: Result) -> None:
    """Keep a result for this process and, within `alone`, for those to come."""
    found = results(problem.backend)
    found[problem.name] = result
    _file(problem.backend).write(json.dumps(found, indent=1).encode())


def replace(problem: Problem, result: Result | None) -> None:
    """Let this process take another result than its file has, or none."""
    results(problem.backend).pop(problem.name, None)
    if result is not None:
        results(problem.backend)[problem.name] = result


@contextlib.contextmanager
def alone(backend: str):
    """Return a context in which no other process measures on this device, and read its file.

    What this process knows, such as by `replace`, stays above what the file has of an order.
    """
    path = _file(backend).path
    waiting = "eqfuse: waiting for another process, which times kernels on this machine"
    with _kept.alone(path.with_name(f".{path.name}.lock"), waiting):
        known, found = _results.pop(backend, {}), results(backend)
        found |= {n: r for n, r in known.items() if n not in found or r.order >= found[n].order}
        yield


def _file(backend: str) -> _kept.Kept:
    return _kept.Kept("measured", device_key(backend), ".json", f"{backend}-")
