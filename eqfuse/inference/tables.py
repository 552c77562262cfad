"""Tables of radial functions of trained networks, where they are close to the networks.

The error of a table is that of its slopes: forces are sums of them, with factors that a table does
not change. It is measured in float64 at 800 lengths from a thousandth of the cutoff to the cutoff,
for each pair of species that has functions of its own, relative to the largest slope of the network
at that length or beyond, which is at least a thousandth of the largest of all. Tables are kept in
a folder of `eqfuse.ops._kept`, so that each network is measured once; those of `eqfuse convert`
are a part of its run, too.
"""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from eqfuse.models.radial_table import BLOCK, ORDER, choose, grid, jets_program, tables
from eqfuse.ops._kept import Kept
from eqfuse.runs.files import read_arrays
from eqfuse.runs.process import without_collection

BOUNDS = {"float64": 1e-7, "float32": 1e-5}
"""Largest error of tables that are taken without being asked for, by the dtype of the network.

By the same measure, rounding lengths to float32 changes slopes of published networks by up to 6e-6.
"""
KNOTS = (256, 384, 512, 1024)
"""Numbers of knots: the first that keeps the bound is taken."""
MOST_BYTES = 1 << 28
"""Size of the largest tables."""
_PROBES = 800  # lengths, which are at every 25th of the intervals of each of `KNOTS`
_LEAST_SLOPE = 1e-3
_FORMAT = 3  # of files


class Tables(NamedTuple):
    """The tables of a network, a tree of [pairs * intervals, 6, width], or None."""

    tree: dict | None
    knots: int
    why: str
    name: str = ""
    """Of the file, also in a run."""


def tables_of(potential, variables, dtype: str, run) -> Tables:
    """Return tables of a dtype within its bound, see `BOUNDS`: of the run, the cache, or made now.

    The run is a folder, or the file of one of its networks.
    """
    bound = BOUNDS[dtype]
    model = potential.model.clone(radial="auto", backend=None, fused=None)
    if getattr(model, "nonlinear", False):
        return Tables(None, 0, choose(model, 0).why)
    potential, variables = potential.clone(model=model), {"params": variables["params"]}
    key = hashlib.sha256(repr((_FORMAT, bound, KNOTS, MOST_BYTES, potential)).encode())
    for path, leaf in jax.tree.leaves_with_path(variables):
        leaf = np.ascontiguousarray(leaf)
        key.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        key.update(leaf.data)
    kept = Kept("radial", key.hexdigest(), ".npz")
    file = _folder(run) / kept.name
    found = _read(file) or _read(kept.read())
    if found is None:
        found = measured(potential, variables, bound)
        found = found._replace(tree=jax.tree.map(lambda table: table.astype(dtype), found.tree))
        kept.write(_packed(found))
    return found._replace(name=kept.name)


def keep(tables: Tables, run):
    """Make tables a part of a run: its first use on another machine then does not make them."""
    if tables.name:
        folder = _folder(run)
        folder.mkdir(exist_ok=True)
        (folder / tables.name).write_bytes(_packed(tables))


def _folder(run) -> Path:
    """Return RUN/tables, also of a head, which is a file in a folder of RUN."""
    path = Path(run).expanduser().absolute()
    return (path.parent.parent if path.is_file() else path) / "tables"


def measured(potential, variables, bound: float) -> Tables:
    """Make tables with more and more knots until their error is within a bound."""
    model, least, exact = potential.model, 0.0, None
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), without_collection():
        traced = jets_program(potential).trace(variables, np.zeros(BLOCK))
        numbers = sum(2 * int(np.prod(j.shape)) for j in jax.tree.leaves(traced.out_info))
        for knots in KNOTS:
            if knots < min(least, KNOTS[-1]):
                continue
            size = 8 * numbers * len(grid(model.breaks(), knots).half) // BLOCK
            if size > MOST_BYTES:
                pairs = model.num_pairs()
                of = f" of {pairs} pairs of species" if pairs > 1 else ""
                return Tables(None, 0, f"tables{of} would take {size / 1e9:.1f} GB")
            if exact is None:
                jets = traced.lower().compile()
                exact = tables(jets, variables, model.clone(radial_knots=_PROBES))
            tree = tables(jets, variables, model.clone(radial_knots=knots))
            cells = (grid(model.breaks(), n) for n in (knots, _PROBES))
            error = slope_error(tree, exact, *cells)
            why = f"tables of {knots} knots, whose slopes are the networks' to {error:.0e}"
            if error <= bound:
                return Tables(tree, knots, why)
            least = knots * (error / bound) ** 0.2  # errors of slopes fall with the fifth power
    return Tables(None, 0, f"{why} only")


def slope_error(tree, exact, cells, probes) -> float:
    """Return the largest error of slopes of tables at the knots of more exact ones.

    The trees have tables with the intervals `cells` and `probes`, see `eqfuse.models.radial_table`.
    """
    lengths = probes.center - probes.half  # where the exact tables have the networks' slopes
    interval = 0
    for first, number, start, step in cells.pieces:
        at = np.clip((lengths - start) // step, 0, number - 1).astype(int)
        interval = np.where(lengths >= start, first + at, interval)
    places = (lengths - cells.center[interval]) / cells.half[interval]

    def slopes(table, places, half):
        numbers = np.arange(1, ORDER)
        powers = numbers * places[:, None] ** (numbers - 1)
        return np.einsum("enu,en->eu", table[:, 1:], powers / half[:, None])

    errors = []
    for table, of_probes in zip(jax.tree.leaves(tree), jax.tree.leaves(exact), strict=True):
        pairs = len(table) // len(cells.half)
        for own, right in zip(np.split(table, pairs), np.split(of_probes, pairs), strict=True):
            expected = slopes(right, -np.ones(len(lengths)), probes.half)
            largest = np.abs(expected).max(axis=1)
            beyond = np.maximum.accumulate(largest[::-1])[::-1]
            scale = np.maximum(beyond, _LEAST_SLOPE * beyond[0])
            found = slopes(own[interval], places, cells.half[interval])
            error = np.abs(found - expected).max(axis=1)
            errors.append((error / np.where(scale > 0, scale, 1)).max())
    return float(max(errors))


def _packed(found: Tables) -> bytes:
    arrays = flatten_dict({"tree": found.tree or {}}, sep="/")
    content = io.BytesIO()
    np.savez(content, **arrays, knots=np.array(found.knots), why=np.array(found.why))
    return content.getvalue()


def _read(content: bytes | Path | None) -> Tables | None:
    """Return tables of a file or its content; None if there is none, or a damaged one."""
    if content is None:
        return None
    try:
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        arrays = read_arrays(file)  # which checks the sums of zip
        knots, why = int(arrays.pop("knots")), str(arrays.pop("why"))
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError):
        return None
    return Tables(unflatten_dict(arrays, sep="/")["tree"] if knots else None, knots, why)
