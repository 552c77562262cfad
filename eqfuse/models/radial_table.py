"""Radial networks from a table: computed at some hundred lengths, interpolated for each edge.

A radial network is a smooth function of the length, so that its values at the knots of a grid are
enough: between two of them it is the polynomial of degree 5 that has its values, slopes and
curvatures at both. That is twice continuously differentiable, as the network is, and its error
falls with the sixth power of the distance of knots (the fifth for forces). The table is a function
of the parameters, part of every training step: forces are exactly the derivative of the energy, and
derivatives of every order, those of the parameters included, follow from `eqfuse.ops.interpolate`.

In float32 a table is as close to float64 as the network is. Differences of values at neighbouring
knots lose digits, so that hidden layers are computed in float64 at the knots, in any precision of
the network; a length is measured from the middle of its interval, which is stored as the sum of two
numbers.

Here exp(-d) stands for a radial network, in four intervals up to a cutoff of 5 Å:

    >>> cells = grid((5.0,), 4)
    >>> cells.points.round(3)
    array([0.005, 1.254, 2.502, 3.751, 5.   ])
    >>> value = np.exp(-cells.points)
    >>> jets = np.stack([value, -value, value])  # values, slopes and curvatures
    >>> table = coefficients(cells, jets[:, None, :, None], np)  # [intervals, 6, width]
    >>> table[2, :, 0].round(4)  # the polynomial from 2.502 to 3.751 Å
    array([ 0.0439, -0.0274,  0.0085, -0.0018,  0.0003, -0.    ])
    >>> interval, powers = places(cells, jnp.array([3.0]), jnp.array([True]))
    >>> print(f"interval {interval[0]}, {powers[0, 1]:.3f} half widths from its middle")
    interval 2, -0.203 half widths from its middle
    >>> print(f"{powers[0] @ table[2, :, 0]:.5f}, and exp(-3) is {np.exp(-3):.5f}")  # by t^0 to t^5
    0.04979, and exp(-3) is 0.04979
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.models import mlp
from eqfuse.ops import Edges

EDGES_PER_KNOT = {"cpu": 8, "gpu": 16}
"""Number of edges for each knot from which on a table is taken: measured on a CPU, see
`benchmarks/results/radial_tables.md`, and predicted for a GPU."""
NEAREST = 1e-3
"""First knot, as a part of the cutoff; the functions of some networks are singular at zero."""
MARGIN = 1e-12
"""Distance from a break at which derivatives of one side are taken, as a part of the cutoff."""
ORDER = 6
"""Coefficients of a polynomial."""
MOST_PARTS, EDGES_OF_PART = 8, 64
"""Most parts of an interval on a GPU, and least edges of one, see `_parts`."""
COLLECTION = "tables"
"""The variables of a network that are its tables, see `with_tables`."""
POINTS = "points"
"""The variable by which a network computes its radial functions at other points, see `Sampled`."""
WRITTEN = "written"
"""The variable by which a network writes functions of edges to memory once, for Hessians."""
BLOCK = 288
"""Points that are computed in a call for tables: those of 256 knots, and a few at breaks."""


class Choice(NamedTuple):
    """The choice between a table and networks for radial functions, with its reason."""

    table: bool
    why: str


def choose(network: nn.Module, num_edges: int) -> Choice:
    """Decide whether a network reads its radial functions from a table.

    It has `radial`, `radial_knots` and `num_pairs()`; a batch has `num_edges` with its padding.
    """
    kind, knots = network.radial, network.radial_knots
    if network.nonlinear:
        return Choice(False, "nonlinear interactions read species, too")
    if kind != "auto":
        return Choice(kind == "table", f"radial={kind}")
    need = EDGES_PER_KNOT["cpu" if jax.default_backend() == "cpu" else "gpu"]
    pairs = network.num_pairs()
    needed = need * knots * pairs
    each = f"{knots} knots" if pairs == 1 else f"{knots} knots for each of {pairs} pairs of species"
    compared = "at least" if num_edges >= needed else "fewer than"
    why = f"{num_edges} edges, {compared} {need} for each of {each}"
    return Choice(num_edges >= needed, why)


def with_tables(potential, variables) -> dict:
    """Return variables of a potential with the tables of its radial functions.

    A potential that is applied to them reads these tables, whatever `radial` is, and makes none.
    They are those of the parameters, computed in float64, and of their dtype: after a change of
    these, make them again. The variables are {"params": ...}, and then {"params": ..., "tables":
    ...}.
    """
    params = {"params": variables["params"]}
    dtype = jax.tree.leaves(params)[0].dtype
    with jax.enable_x64(True):
        found = tables(jets_program(potential), params, potential.model)
    return params | {COLLECTION: jax.tree.map(lambda t: jnp.asarray(t.astype(dtype)), found)}


def tables(jets: Callable, params, model: nn.Module) -> dict:
    """Return the tables of a model for its `radial_knots`, in float64, by a `jets_program`."""
    cells = grid(model.breaks(), model.radial_knots)
    count = len(cells.points)
    points = np.pad(cells.points, (0, -count % BLOCK), mode="edge").reshape(-1, BLOCK)
    blocks = [jax.device_get(jets(params, block)) for block in points]

    def table(*blocks):
        blocks = [block.reshape(3, model.num_pairs(), BLOCK, -1) for block in blocks]
        return coefficients(cells, np.concatenate(blocks, axis=2)[:, :, :count], np)

    return jax.tree.map(table, *blocks)


def jets_program(potential):
    """Return a jitted function of variables and `BLOCK` lengths in Å, where x64 is on.

    It returns values, slopes and curvatures of the functions that have tables, a tree of
    [3, pairs * BLOCK, width] in float64: one program for all numbers of knots.
    """
    model = potential.model.clone(radial="table", backend="xla")
    whole = potential.clone(model=model)

    def jets(params, points):
        params = jax.tree.map(lambda p: p.astype(jnp.float64), params)
        vectors = jnp.full((1, 3), model.cutoff / 4)  # tables do not depend on edges
        edges, species = Edges.from_arrays([0], [0], 1), np.zeros(1, np.int32)
        variables = params | {POINTS: {"model": {POINTS: points}}}
        return whole.apply(variables, vectors, species, edges, mutable=[COLLECTION])[1][COLLECTION]

    return jax.jit(jets)


class Grid(NamedTuple):
    """Intervals between knots, and the points at which functions are computed for them, Å."""

    points: np.ndarray  # each piece between breaks has one more than intervals
    center: np.ndarray  # [intervals], the middle of each
    half: np.ndarray  # [intervals], half the length
    pieces: tuple[tuple[int, int, float, float], ...]  # first interval, number, start, length


@functools.lru_cache(maxsize=64)
def grid(breaks: tuple[float, ...], knots: int) -> Grid:
    """Return roughly as many equal intervals as `knots`, in proportion to each piece's length.

    The breaks between pieces are lengths at which derivatives jump; the last is the cutoff.
    """
    cutoff = breaks[-1]
    first, pieces, parts = 0, [], []
    for start, end in itertools.pairwise([NEAREST * cutoff, *breaks]):
        number = max(2, round(knots * (end - start) / cutoff))
        lengths = np.linspace(start, end, number + 1)
        points = lengths.copy()  # each piece has its own, on its side of the breaks
        points[0] += MARGIN * cutoff if first else 0
        points[-1] -= MARGIN * cutoff
        parts.append((points, (lengths[1:] + lengths[:-1]) / 2, np.diff(lengths) / 2))
        pieces.append((first, number, start, (end - start) / number))
        first += number
    points, center, half = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Grid(points, center, half, tuple(pieces))


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


class Point(NamedTuple):
    """What a radial function depends on, at n lengths."""

    basis: jax.Array  # [n, num_bessel], Bessel functions of the length times the envelope
    lengths: jax.Array  # [n] Å
    pairs: jax.Array  # [n] int32, the number of the pair of species


class SpeciesPairs(NamedTuple):
    """The pair of species of each edge; by default functions depend on the length alone."""

    index: jax.Array | int = 0  # [n_edges] int32
    count: int = 1


ALONE = SpeciesPairs()


@dataclasses.dataclass(frozen=True)
class RadialTable:
    """The edges of a graph as places in tables of radial functions; in the place of their basis."""

    function: Callable  # (lengths [n], pairs [n]) to the basis and the envelope
    grid: Grid
    num_pairs: int  # each has a table of its own, in the order of `SpeciesPairs`
    num_bessel: int
    intervals: Edges  # the interval of each edge, and which of its parts
    parts: int  # of an interval, see `_parts`
    powers: jax.Array  # [n_edges, 6], of the place in the interval; zero for padding
    backend: str | None
    written: bool  # functions of edges to memory: second derivatives read them several times

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape that the basis of the edges would have."""
        return self.powers.shape[0], self.num_bessel

    @property
    def dtype(self):
        return self.powers.dtype

    def table(self, function: Callable, kernel=None) -> jax.Array:
        """Return the coefficients of a radial function of a `Point`, [intervals, 6, width].

        It is computed in float64; `kernel` is the matrix of a last dense layer, which is not.
        """
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            coefficients = self._coefficients(self._jets(function)).astype(self.dtype)
        return coefficients if kernel is None else self._last(coefficients, [kernel])[0]

    def networks(self, networks) -> list[jax.Array]:
        """Return the coefficients of dense networks of the basis, [intervals, 6, width] of each.

        All their matrices but the last have the same shapes. They are computed side by side,
        values, slopes and curvatures as rows of one matrix: what is small costs mostly launches.
        """
        *hidden, last = zip(*networks, strict=True)
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            jets = self._jets(lambda point: point.basis)
            for kernels in hidden:
                jets = _activated(*_dense_jets(jets, jnp.stack(kernels).astype(jets.dtype)))
            coefficients = self._coefficients(jets).astype(self.dtype)
        return self._last(coefficients, last)

    def _last(self, coefficients, kernels):
        rows = coefficients.reshape(-1, coefficients.shape[-1])
        backend = ops.resolve(self.backend, "grouped_dense")
        # XLA finds no tiles for this matmul on a GPU, fused with the conversion before it
        if backend == "triton" or (backend == "llvm" and mlp.has_few_rows(rows)):
            scale = mlp.scale(kernels[0])
            kinds = {"scale": scale, "split": True, "backend": self.backend}
            parts = ops.grouped_dense(rows, kernels, **kinds)
        else:
            shared = rows.shape[1] == kernels[0].shape[0]
            inputs = [rows] * len(kernels) if shared else jnp.split(rows, len(kernels), axis=1)
            parts = [mlp.dense(x, w, self.backend) for x, w in zip(inputs, kernels, strict=True)]
        return [part.reshape(*coefficients.shape[:2], -1) for part in parts]

    def _jets(self, function):
        """Return values, slopes and curvatures at the points, [3, pairs * points, width]."""
        points = jnp.asarray(self.grid.points)
        lengths = jnp.tile(points, self.num_pairs)
        pairs = jnp.repeat(jnp.arange(self.num_pairs, dtype=jnp.int32), len(points))

        def at(lengths):
            return function(Point(self.function(lengths, pairs)[0], lengths, pairs))

        def with_slope(lengths):
            return jax.jvp(at, (lengths,), (ones,))

        ones = jnp.ones_like(lengths)
        (value, slope), (_, curvature) = jax.jvp(with_slope, (lengths,), (ones,))
        return jnp.stack([value, slope, curvature])

    def _coefficients(self, jets):
        """Return the polynomials between points, [pairs * intervals, 6, width]."""
        jets = jets.reshape(3, self.num_pairs, len(self.grid.points), -1)
        return coefficients(self.grid, jets, jnp)

    def tabulated(self, table) -> ops.Tabulated | jax.Array:
        """Return the weights of products of each edge, which kernels compute from the table."""
        if self.written:
            return self.of_edges([table])[0]
        numbers, inside = self.powers[:, 1:2], self.powers[:, :1]
        return ops.Tabulated(table, self.intervals.senders, numbers, inside)

    def of_edges(self, tables, dtype=None) -> list[jax.Array]:
        """Return the functions of each edge, [n_edges, width] for each of the tables."""
        if self.parts > 1:
            tables = [jnp.repeat(table, self.parts, axis=0) for table in tables]
        return ops.interpolate(tables, self.intervals, self.powers, dtype, backend=self.backend)


class Sampled(RadialTable):
    """Functions at the points of a grid, in the place of tables: their values, not coefficients."""

    def _coefficients(self, jets):
        return jets

    def of_edges(self, tables, dtype=None) -> list[jax.Array]:
        """Return zeros: only the variables of the network are read."""
        return [jnp.zeros((self.shape[0], table.shape[-1]), self.dtype) for table in tables]


def coefficients(cells: Grid, jets, xp):
    """Return polynomials by NumPy or jax.numpy, [pairs * intervals, 6, width].

    The jets are values, slopes and curvatures at the points of the grid, [3, pairs, points, width].
    """
    half = cells.half[:, None] ** np.arange(3)[:, None, None, None]
    # before a piece are as many points as intervals, and one for each piece
    starts = [(first + k, number) for k, (first, number, *_) in enumerate(cells.pieces)]
    left, right = (
        half * xp.concatenate([jets[:, :, a + end : a + end + n] for a, n in starts], axis=2)
        for end in (0, 1)
    )
    sums, differences = (right + left) / 2, (right - left) / 2
    (s0, s1, s2), (d0, d1, d2) = sums, differences
    c4, c5 = (s2 - d1) / 8, (d2 - 3 * (s1 - d0)) / 8
    c2, c3 = d1 / 2 - 2 * c4, (s1 - d0) / 2 - 2 * c5
    found = xp.stack([s0 - c2 - c4, d0 - c3 - c5, c2, c3, c4, c5], axis=2)
    return found.reshape(-1, ORDER, jets.shape[-1])


def _dense_jets(jets, kernels):
    """Return dense layers of jets, [3, n, networks * width].

    The jets are [3, n, columns], which all networks read, or [3, n, networks * columns], and the
    kernels [networks, columns, width].
    """
    count, columns, width = kernels.shape
    shape, rows = (3, -1, count * width), jets.reshape(-1, jets.shape[-1])
    scale = mlp.scale(kernels[0])
    if rows.shape[1] == columns:
        kernels = jnp.swapaxes(kernels, 0, 1).reshape(columns, -1)
        return (scale * jax.lax.dot_general(rows, kernels, (((1,), (0,)), ((), ())))).reshape(shape)
    rows = rows.reshape(-1, count, columns)
    out = scale * jax.lax.dot_general(rows, kernels, (((2,), (1,)), ((1,), (0,))))
    return jnp.swapaxes(out, 0, 1).reshape(shape)


def _activated(value, slope, curvature):
    """Return value, slope and curvature after the activation, [3, n, width]."""
    act = mlp.normalized(jax.nn.silu)

    def with_slope(value, slope):
        return jax.jvp(act, (value,), (slope,))

    (value, slope), (_, curvature) = jax.jvp(with_slope, (value, slope), (slope, curvature))
    return jnp.stack([value, slope, curvature])


def kept(module: nn.Module, name: str, make: Callable[[], jax.Array]) -> jax.Array:
    """Return a table that is among the variables of a network, or else make it."""
    keeps = module.is_mutable_collection(COLLECTION) and not module.is_initializing()
    if keeps or module.has_variable(COLLECTION, name):
        return module.variable(COLLECTION, name, make).value
    return make()


def radial_basis(
    network: nn.Module,  # whose settings decide, see `choose`
    lengths: jax.Array,  # [n_edges] Å, positive
    real: jax.Array,  # [n_edges] bool, False for padding
    function: Callable,  # (lengths [n], pairs [n]) to the basis [n, num_bessel], envelope [n]
    breaks: tuple[float, ...],  # see `grid`
    pairs: SpeciesPairs = ALONE,
) -> tuple[jax.Array | RadialTable, jax.Array]:
    """Return the radial basis of each edge, zero for padding, or a table, and the envelope."""
    basis, envelope = function(lengths, pairs.index)
    envelope = jnp.where(real, envelope, 0)
    count = lengths.shape[0]
    if not (choose(network, count).table or network.variables.get(COLLECTION)):
        return jnp.where(real[:, None], basis, 0), envelope
    cells = grid(tuple(float(b) for b in breaks), network.radial_knots)
    interval, powers = places(cells, lengths, real & (lengths < breaks[-1]))
    interval = interval + pairs.index * len(cells.half)
    total = len(cells.half) * pairs.count
    parts = _parts(count, total, network.backend)
    if parts > 1:
        interval = interval * parts + jnp.arange(count, dtype=jnp.int32) % parts
    intervals = ops.group_by_interval(interval, total * parts)
    written, kind = bool(network.variables.get(WRITTEN)), RadialTable
    of_edges = intervals, parts, powers, network.backend, written
    if given := network.variables.get(POINTS):
        kind, cells = Sampled, cells._replace(points=given[POINTS])
    return kind(function, cells, pairs.count, basis.shape[1], *of_edges), envelope


def _parts(num_edges, num_intervals: int, backend: str | None) -> int:
    """Return into how many parts the edges of an interval are divided: powers of 2.

    A block of a GPU sums the gradient of an interval over its edges, one after the other. For many
    edges there are too few blocks: each part of an interval has one.
    """
    if ops.resolve(backend, "interpolate") != "triton":
        return 1
    parts = 1
    while parts < MOST_PARTS and num_edges >= 2 * parts * num_intervals * EDGES_OF_PART:
        parts *= 2
    return parts
