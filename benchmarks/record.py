"""The file that a benchmark writes: its command, its environment, and its results."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys

import jax
import numpy as np

from eqfuse.ops import _host

PACKAGES = (
    "eqfuse",
    "jax",
    "jaxlib",
    "e3nn-jax",
    "flax",
    "numpy",
    "llvmlite",
    "triton",
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "cuequivariance-jax",
    "cuequivariance-ops-jax-cu12",
    "cuequivariance-ops-jax-cu13",
    "openequivariance",
    "openequivariance-extjax",
)
"""Those of which the installed versions are written."""


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


def parity(expected, actual, tolerance: float) -> float:
    """Return how much two results differ, relative to the largest element of each array.

    Args:
      expected, actual: pytrees of arrays, alike in structure and shapes.
      tolerance: the most that they may differ.
    Returns:
      The largest of the arrays' differences.
    Raises:
      ParityError: it is larger than `tolerance`, or not a number, or the results are not alike.
    """
    leaves, structure = jax.tree.flatten(expected)
    others, other_structure = jax.tree.flatten(actual)
    shapes, other_shapes = ([np.shape(a) for a in side] for side in (leaves, others))
    if (structure, shapes) != (other_structure, other_shapes):
        raise ParityError(f"results are not alike: {shapes} and {other_shapes}")
    worst = 0.0
    for a, b in zip(leaves, others, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        with np.errstate(invalid="ignore"):  # infinite on both sides: not a number, and refused
            difference, scale = np.abs(a - b).max(initial=0.0), np.abs(a).max(initial=0.0)
            error = difference / scale if scale else difference
        if not error <= tolerance:
            raise ParityError(f"results differ by {error:.1e}, more than {tolerance:.0e}")
        worst = max(worst, float(error))
    return worst


def environment(commit: str | None = None) -> dict:
    """Return date, device, processors, memory, versions and commit; starts JAX's backend.

    Args:
      commit: of the code, where it runs outside its repository; None to ask git.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit or git_commit(),
        "device": str(jax.devices()[0].device_kind),
        "platform": jax.default_backend(),
        "cpu": cpu_model(),
        "processors": _host.num_processors(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that affect measurements."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cpu_model() -> str:
    """Return the name of the processor, as the system reports it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def git_commit() -> str | None:
    """Return this repository's commit, "-dirty" if changed, or None without git."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
    folder = pathlib.Path(__file__).parents[1]
    if not (folder / ".git").exists():  # an installed package, whatever repository is around it
        return None
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


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


class Record:
    """The file of a benchmark: its command, its environment, and its results, written as they come.

    Args:
      path: the file; None to write nothing.
      command: as it was typed; None for that of this process.
      commit: as for `environment`.
    """

    def __init__(self, path, command: str | None = None, commit: str | None = None):
        self._path = path
        command = command or shlex.join(["python", *sys.orig_argv[1:]])
        self._content = {"command": command, "environment": environment(commit), "results": []}

    @property
    def environment(self) -> dict:
        return self._content["environment"]

    @property
    def results(self) -> list[dict]:
        return self._content["results"]

    @property
    def failed(self) -> list[dict]:
        """Return the results that are errors, of parity or others."""
        return [result for result in self.results if "error" in result]

    def finish(self) -> None:
        """End the process with an error if a result is one."""
        if self.failed:
            sys.exit("\n".join(f"error: {result}" for result in self.failed))

    def add(self, result: dict) -> None:
        """Keep a result: a dict of plain values and `Spread`s; one with "error" has no times."""
        self.results.append(result)
        if self._path is not None:
            write_json(self._path, self._content)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--json FILE` that every benchmark has."""
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write all numbers here")
