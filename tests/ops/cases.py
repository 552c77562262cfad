"""The small products on which every backend is checked against e3nn-jax."""

import dataclasses
import functools
import math
from typing import ClassVar

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.ops import _reference
from eqfuse.ops.ir import products
from eqfuse.ops.ir.form import Form

BOTH2 = "{n}x0e+{n}x0o+{n}x1e+{n}x1o+{n}x2e+{n}x2o"


def random_arrays(shapes, seed: int, held_by=np.float32) -> tuple[np.ndarray, ...]:
    """Return normal numbers that `held_by` can hold, in float64."""
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype(held_by).astype(np.float64) for s in shapes)


def product_form(x, y="0e+1o", keep=None, on_graph=True, weighted=True) -> Form:
    """Return the form of a product, which keeps the irreps of `keep`."""
    irreps = e3nn.Irreps(x), e3nn.Irreps(y)
    kept = None if keep is None else tuple(ir for _, ir in e3nn.Irreps(keep))
    options = {"weighted": weighted, "on_graph": on_graph}
    return products.tensor_product(*irreps, kept, "component", **options).form


@dataclasses.dataclass(frozen=True)
class Graph:
    """Edges as (sender, receiver); in any order, some twice, some from a node to itself."""

    num_nodes: int
    pairs: tuple[tuple[int, int], ...]

    @property
    def senders(self):
        return np.array([s for s, _ in self.pairs], np.int32)

    @property
    def receivers(self):
        return np.array([r for _, r in self.pairs], np.int32)

    def edges(self) -> ops.Edges:
        return ops.Edges.from_arrays(self.senders, self.receivers, self.num_nodes)


# node 1 receives most edges, node 2 none, node 3 has none at all
SMALL = Graph(5, ((0, 1), (2, 1), (4, 0), (1, 1), (0, 1), (2, 4)))
NO_EDGES = Graph(3, ())


class Random:
    """What has random operands of its shapes, of which the last is that of the result.

    Attributes:
      tolerance: in float64, as a fraction of the largest element.
      sums: over how many rows the gradient of an operand is a sum, if one row serves all.
      by_e3nn: whether it is computed by e3nn-jax on every backend.
      product_by_e3nn: whether products by a gate in it are.
    """

    tolerance, by_e3nn, product_by_e3nn = 1e-12, False, False
    sums: ClassVar[dict[str, int]] = {}

    @property
    def factors(self) -> int:
        """Return of how many values a term is the product."""
        return len(self.names)

    def has(self, way: str, dtype: str) -> bool:
        """Return whether it is compared in one of `parity.WAYS` and in a dtype."""
        return way in ("xla", "llvm", "triton") and dtype in ("float64", "float32")

    def runs(self, backend: str) -> bool:
        """Return whether a backend has anything to compute."""
        return all(0 not in shape for shape in self.shapes())

    def kinds(self, fused: str | None) -> set[str] | None:
        """Return what native kernels compute, see `parity.only`; None if it is not asked."""
        return None

    def operands(self, seed: int = 0, held_by=np.float32) -> tuple[np.ndarray, ...]:
        """Return float64 arrays of numbers that `held_by` can hold."""
        return random_arrays(self.shapes()[:-1], seed, held_by)


@dataclasses.dataclass(frozen=True)
class Case(Random):
    """A product: `function(backend)` computes it from arrays, `reference` by e3nn-jax alone.

    Attributes:
      op: the name of the op. "graph_tensor_product" is on a graph, "channelwise_tensor_product"
        where there is one: of edges, and nodes that receive.
      keep: `filter_ir_out`, as a string.
      shape_x, shape_y: leading axes, for the products without a graph.
      zero_x, zero_y: the blocks of the operands that are zero by structure.
      weighted: whether there are weights, on a graph.
      shared: which of "y" and "w" is one row for all edges, on a graph; "p" if the paths of an edge
        share one weight.
    """

    op: str
    irreps_x: str
    irreps_y: str
    keep: str | None = None
    irrep_normalization: str | None = None
    regroup_output: bool = True
    shape_x: tuple[int, ...] = (6,)
    shape_y: tuple[int, ...] = (6,)
    zero_x: tuple[bool, ...] | None = None
    zero_y: tuple[bool, ...] | None = None
    weighted: bool = True
    shared: str = ""
    graph: Graph | None = SMALL

    @property
    def options(self) -> dict:
        options = {"filter_ir_out": self.keep, "irrep_normalization": self.irrep_normalization}
        if self.op in ("tensor_product", "graph_tensor_product"):
            options["regroup_output"] = self.regroup_output
        return options

    @property
    def channelwise(self) -> bool:
        return self.op == "channelwise_tensor_product"

    @property
    def on_graph(self) -> bool:
        return self.graph is not None and (self.channelwise or self.op == "graph_tensor_product")

    @functools.cached_property
    def products(self) -> e3nn.Irreps:
        """Return the irreps of the products, before weights add those of matching channels."""
        x, y = e3nn.Irreps(self.irreps_x), e3nn.Irreps(self.irreps_y)
        if not self.channelwise:
            op = "tensor_product" if self.on_graph else self.op
            return getattr(e3nn, op)(x, y, **self.options)
        mul = max((mul for mul, _ in (*x, *y)), default=1)
        one = (e3nn.Irreps([(1, ir) for _, ir in side]) for side in (x, y))
        out = e3nn.tensor_product(*one, **self.options, regroup_output=False).regroup()
        return e3nn.Irreps([(mul * n, ir) for n, ir in out])

    @property
    def irreps_out(self) -> e3nn.Irreps:
        if not self.channelwise or not self.weighted:
            return self.products
        return e3nn.Irreps([(e3nn.Irreps(self.irreps_x)[0].mul, ir) for _, ir in self.products])

    @property
    def names(self) -> tuple[str, ...]:
        return ("x", "y", "w") if self.on_graph and self.weighted else ("x", "y")

    @property
    def sums(self) -> dict[str, int]:
        """Return how many rows the gradient of each operand is summed over, if one serves all."""
        if self.shared == "p":
            return {"w": self.products.num_irreps}
        if self.on_graph:
            return dict.fromkeys(self.shared, len(self.graph.pairs))
        rows = math.prod(np.broadcast_shapes(self.shape_x, self.shape_y))
        shapes = {"x": self.shape_x, "y": self.shape_y}
        return {name: rows for name, shape in shapes.items() if math.prod(shape) == 1 < rows}

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the operands, then that of the result."""
        dims = e3nn.Irreps(self.irreps_x).dim, e3nn.Irreps(self.irreps_y).dim, self.irreps_out.dim
        rows = [self.shape_x, self.shape_y, np.broadcast_shapes(self.shape_x, self.shape_y)]
        if self.on_graph:
            nodes, edges = (self.graph.num_nodes,), (len(self.graph.pairs),)
            rows = [nodes, (1,) if "y" in self.shared else edges, nodes]
            rows = [edges, nodes, edges] if self.channelwise else rows
        x, y, out = ((*shape, dim) for shape, dim in zip(rows, dims, strict=True))
        if len(self.names) == 2:
            return x, y, out
        of_all = () if self.channelwise else (1,)
        paths = 1 if self.shared == "p" else self.products.num_irreps
        return x, y, (*(of_all if "w" in self.shared else edges), paths), out

    def operands(self, seed: int = 0, held_by=np.float32) -> tuple[np.ndarray, ...]:
        """Return random arrays, which are zero where the case says so."""
        arrays = super().operands(seed, held_by)
        for array, irreps, zeros in zip(
            arrays, (self.irreps_x, self.irreps_y), (self.zero_x, self.zero_y), strict=False
        ):
            for block, zero in zip(e3nn.Irreps(irreps).slices(), zeros or (), strict=False):
                array[..., block] *= not zero
        return arrays

    def irreps_arrays(self, x, y):
        """Return the operands, with what is known to be zero in them."""
        return (
            e3nn.IrrepsArray(self.irreps_x, x, zero_flags=self.zero_x),
            e3nn.IrrepsArray(self.irreps_y, y, zero_flags=self.zero_y),
        )

    def function(self, backend: str):
        """Return the op of eqfuse as a function of arrays."""
        op = functools.partial(getattr(ops, self.op), **self.options, backend=backend)

        def function(x, y, w=None):
            x, y = self.irreps_arrays(x, y)
            if not self.on_graph:
                return op(x, y).array
            return op(x, y, weights=w, edges=self.graph.edges()).array

        return function

    def reference(self, x, y, w=None):
        """Return the definition: e3nn-jax and a sum over edges in jax.numpy."""
        x, y = self.irreps_arrays(x, y)
        if self.channelwise:
            return self._of_channels(x, y if self.graph is None else y[self.graph.receivers], w)
        if not self.on_graph:
            return getattr(e3nn, self.op)(x, y, **self.options).array
        messages = e3nn.tensor_product(x[self.graph.senders], y, **self.options)
        messages = messages if w is None else messages * w
        out = jnp.zeros((self.graph.num_nodes, messages.irreps.dim), messages.dtype)
        return out.at[self.graph.receivers].add(messages.array)

    def _of_channels(self, x, y, w):
        """Return the product of e3nn-jax for each channel; paths to an irrep are before it."""
        x, y = x.mul_to_axis(), y.mul_to_axis()
        out = e3nn.tensor_product(x, y, **self.options, regroup_output=False).regroup()
        rows = [jnp.zeros((*self.shapes()[-1][:-1], 0))]
        for chunk, (mul, ir) in zip(out.chunks, self.irreps_out, strict=True):
            if w is None:
                chunk = jnp.swapaxes(chunk, -3, -2)  # [..., channel, path, component]
            else:
                paths = chunk.shape[-2]
                weights, w = w[: paths * mul].reshape(paths, mul), w[paths * mul :]
                chunk = jnp.einsum("eupk,pu->euk", chunk, weights)
            rows.append(chunk.reshape(*rows[0].shape[:-1], mul * ir.dim))
        return jnp.concatenate(rows, axis=-1)


@dataclasses.dataclass(frozen=True)
class Interpolation(Random):
    """Tables of `widths`, read by rows of these intervals; results side by side.

    Interval 1 has most rows, interval 2 none.
    """

    widths: tuple[int, ...]
    order: int = 6
    intervals: tuple[int, ...] = (1, 0, 1, 3, 1, 1)
    num_intervals: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return ("weights", *(f"table {k}" for k in range(len(self.widths))))

    def shapes(self):
        rows = len(self.intervals)
        tables = [(self.num_intervals, self.order, width) for width in self.widths]
        return (rows, self.order), *tables, (rows, sum(self.widths))

    def function(self, backend: str):
        def function(weights, *tables):
            index = jnp.asarray(self.intervals, jnp.int32)
            intervals = ops.group_by_interval(index, self.num_intervals)
            return jnp.concatenate(
                ops.interpolate(tables, intervals, weights, backend=backend), axis=1
            )

        return function

    def reference(self, weights, *tables):
        index = np.array(self.intervals, int)
        rows = jax.nn.one_hot(index, self.num_intervals, dtype=weights.dtype)
        return jnp.concatenate(
            [jnp.einsum("ek,en,knu->eu", rows, weights, table) for table in tables], axis=1
        )


@dataclasses.dataclass(frozen=True)
class Contraction(Random):
    """A contraction; with `num_indices`, the weights are chosen by an index of each row."""

    irreps: str
    irreps_out: str
    correlation: int
    shape: tuple[int, ...] = (4,)
    num_indices: int | None = 3

    names = ("x", "w")

    @property
    def factors(self):
        """Return of how many values a term is the product: x as often as it occurs, and w."""
        return self.correlation + 1

    @property
    def sums(self):
        """Return over how many rows the gradient of each operand is a sum."""
        return {"w": math.prod(self.shape)} if self.num_indices == 1 else {}

    @functools.cached_property
    def paths(self):
        return ops.symmetric_contraction_paths(self.irreps, self.irreps_out, self.correlation)

    @property
    def index(self):
        if self.num_indices is None:
            return None
        return np.random.default_rng(7).integers(self.num_indices, size=self.shape)

    def shapes(self):
        x, out = e3nn.Irreps(self.irreps), e3nn.Irreps(self.irreps_out)
        lead = self.shape if self.num_indices is None else (self.num_indices,)
        weights = (*lead, sum(count for *_, count in self.paths), x[0].mul)
        return (*self.shape, x.dim), weights, (*self.shape, out.dim)

    def function(self, backend: str):
        options = {"irreps_out": self.irreps_out, "correlation": self.correlation}
        op = functools.partial(ops.symmetric_contraction, **options, backend=backend)
        return lambda x, w: op(e3nn.IrrepsArray(self.irreps, x), w, self.index).array

    def reference(self, x, w):
        """Return the definition, for which e3nn-jax makes the basis."""
        w = w if self.index is None else w[self.index]
        x, irreps_out = e3nn.IrrepsArray(self.irreps, x), e3nn.Irreps(self.irreps_out)
        return _reference.symmetric_contraction(x, w, irreps_out, self.correlation).array


_product = functools.partial(Case, "tensor_product")
_elementwise = functools.partial(Case, "elementwise_tensor_product")
_graph = functools.partial(Case, "graph_tensor_product")
_weighted = functools.partial(Case, "channelwise_tensor_product", shared="w")
_channelwise = functools.partial(Case, "channelwise_tensor_product", graph=None, weighted=False)

TENSOR_PRODUCT = {
    "l3-both-parities": _product("2x0o+2x1e+2x3o", "1o+3o", keep="0e+1e+1o+2o+3e"),
    "mixed": _product("128x0e+64x1o+32x2e", "0e+1o+2e", keep="0e+1o+2e"),
    "mul-1": _product("0e+1o", "0e+1o", shape_x=(33,), shape_y=(33,)),
    "mul-5": _product("5x0e+5x1o", "0e+1o"),
    "mul-33": _product("33x0e+33x1o", "0e+1o"),
    "norm": _product("8x0e+8x1o+8x2e", "1o+2e", irrep_normalization="norm"),
    "regroup": _product("3x1o+2x0e+4x1o", "1o+0e"),
    "not-regrouped": _product("3x1o+2x0e+4x1o", "1o+0e+1o", regroup_output=False),
    "no-axes": _product("8x0e+8x1o", "2x1o", shape_x=(), shape_y=()),
    "broadcast": _product("8x0e+8x1o", "0e+1o", shape_x=(3, 1), shape_y=(1, 2)),
    "one-y": _product("33x0e+33x1o", "0e+1o", shape_y=(1,)),
    "one-x": _product("5x0e+5x1o", "0e+1o", shape_x=(1,)),
    "one-y-many-by-many": _product("6x0e+5x1o", "5x0e+7x1o", shape_x=(3,), shape_y=()),
    "one-y-no-rows": _product("8x0e+8x1o", "0e+1o", shape_x=(0,), shape_y=(1,)),
    "no-rows": _product("8x0e+8x1o", "0e+1o", shape_x=(2, 0), shape_y=(1, 0)),
    "uvuv-unrolled": _product("6x0e+5x1o", "2x0e+3x1o"),
    "many-by-many": _product("6x0e+5x1o", "5x0e+7x1o", shape_x=(3,), shape_y=(3,)),
    "many-by-many-not-regrouped": _product(
        "5x1o+0e", "5x1o+6x0e", regroup_output=False, shape_x=(3,), shape_y=(3,)
    ),
    "one-by-many": _product("0e+1o", "33x0e+9x1o"),
    "zero-mul": _product("0x0e+4x1o+0x2e", "0e+0x1o+1o"),
    "zero-mul-not-regrouped": _product("0x0e+4x1o+0x2e", "0e+0x1o+1o", regroup_output=False),
    "zero-blocks": _product(
        "4x0e+4x1o+2x1o", "0e+1o", zero_x=(False, True, False), zero_y=(True, False)
    ),
    "zero-blocks-many-by-many": _product(
        "6x0e+2x1o+3x1o", "5x1o", zero_x=(True, True, False), shape_x=(3,), shape_y=(3,)
    ),
    "nothing-left": _product("8x0e+8x1o", "0e", keep="2e"),
    "no-irreps": _product("2x0e+2x1o", "", shape_y=(1,)),
}

CHANNELWISE = {
    "l3-both-parities": _channelwise("5x1e+5x2o", "5x1o+5x3o", keep="0o+1o+2o+3e"),
    "not-sorted": _channelwise("4x1o+4x0e+4x1o", "4x1o+4x0e", keep="0e+1o"),
    "zero-blocks": _channelwise("4x0e+4x1o", "4x0e+4x1o", zero_x=(True, False), keep="0e+1o"),
    "graph": _channelwise("5x0e+5x1o+5x1e", "5x0e+5x1o", keep="0e+1o", graph=SMALL),
    "graph-mul-33": _channelwise("33x0e+33x1o", "33x1o", graph=SMALL),
    "graph-no-edges": _channelwise("4x0e+4x1o", "4x0e", graph=NO_EDGES),
    "nothing-left": _channelwise("8x0e", "8x1o", keep="2e"),
}

WEIGHTED_CHANNELWISE = {
    "two-paths": _weighted("5x0e+5x1o+5x1e", "5x0e+5x1o", keep="0e+1o"),
    "not-sorted": _weighted("4x1o+4x0e+4x1o", "4x1o+4x0e", keep="0e+1o"),
    "zero": _weighted("3x0e+3x1o", "3x0e+3x1o", zero_x=(True, False)),
    "mul-33": _weighted("33x0e+33x1o", "33x1o"),
    "no-edges": _weighted("4x0e+4x1o", "4x0e", graph=NO_EDGES),
}

ELEMENTWISE = {
    "l3-both-parities": _elementwise("5x1e+5x2o+5x3o", "5x3o+5x2e+5x1o"),
    "mixed": _elementwise("128x0e+64x1o+32x2e", "64x1o+128x0e+32x2e"),
    "mul-1": _elementwise("0e+1o+1o", "1o+1o+2e", shape_x=(33,), shape_y=(33,)),
    "mul-5": _elementwise("5x0e+5x1o", "5x1o+5x1o"),
    "mul-33": _elementwise("33x0e+33x1o", "33x1o+33x1o"),
    "filter": _elementwise("8x1o+8x2e", "8x1o+8x2e", keep="0e+2e"),
    "norm": _elementwise("8x1o+8x2e", "8x1o+8x2e", irrep_normalization="norm"),
    "cut-blocks": _elementwise("3x0e+4x1o+2x1o", "5x1o+0e+3x2e"),
    "no-axes": _elementwise("8x1o", "8x1o", shape_x=(), shape_y=()),
    "broadcast": _elementwise("8x1o", "8x1o", shape_x=(3, 1), shape_y=(1, 2)),
    "one-y": _elementwise("5x0e+5x1o", "5x1o+5x1o", shape_y=(1,)),
    "no-rows": _elementwise("8x1o", "8x1o", shape_x=(0,), shape_y=(0,)),
    "zero-mul": _elementwise("0x0e+4x1o", "0x2e+4x1o"),
    "zero-blocks": _elementwise("4x0e+4x1o", "4x1o+4x1o", zero_x=(True, False)),
    "nothing-left": _elementwise("8x0e", "8x1o", keep="2e"),
}

GRAPH = {
    "l2-both-parities": _graph(BOTH2.format(n=4), "0e+1o+2e", keep="0e+1e+2o"),
    "l3": _graph("2x0e+2x1o+2x3o", "1o+3o", keep="0e+1o+3o"),
    "mixed": _graph("128x0e+64x1o+32x2e", "0e+1o+2e", keep="0e+1o+2e"),
    "mul-1": _graph("0e+1o", "0e+1o"),
    "mul-5": _graph("5x0e+5x1o", "0e+1o"),
    "mul-33": _graph("33x0e+33x1o", "0e+1o"),
    "mul-600": _graph("600x1o", "0e+1o", keep="0e+1o"),
    "norm": _graph("8x0e+8x1o", "1o+2e", irrep_normalization="norm"),
    "not-regrouped": _graph("3x1o+2x0e+1o", "1o+1o", keep="0e+1o", regroup_output=False),
    "unweighted": _graph("8x0e+8x1o", "0e+1o", weighted=False),
    "one-y": _graph("8x0e+8x1o", "0e+1o", shared="y"),
    "one-w": _graph("5x0e+5x1o", "0e+1o", shared="w"),
    "one-path": _graph("5x0e+5x1o", "0e+1o", shared="p"),
    "one-y-and-w": _graph("5x0e+5x1o", "0e+1o", shared="yw"),
    "one-y-many-by-many": _graph("5x0e+5x1o", "5x0e+6x1o", keep="0e+1o", shared="y"),
    "no-edges": _graph("8x0e+8x1o", "0e+1o", graph=NO_EDGES),
    "many-by-many": _graph("5x0e+5x1o", "5x0e+6x1o", keep="0e+1o"),
    "one-by-many": _graph("0e+1o", "9x0e+33x1o"),
    "zero-mul": _graph("0x0e+4x1o+0x2e", "0e+0x1o+1o"),
    "zero-blocks": _graph(
        "4x0e+4x1o+2x1o", "0e+1o", zero_x=(False, True, False), zero_y=(True, False)
    ),
    "nothing-left": _graph("8x0e+8x1o", "0e", keep="2e", weighted=False),
}

INTERPOLATE = {
    "one-table": Interpolation((33,)),
    "two-tables": Interpolation((5, 2)),
    "linear": Interpolation((3,), order=2),
    "no-rows": Interpolation((3,), intervals=()),
}

CONTRACTION = {
    "one-factor": Contraction("4x0e+4x1o", "4x1o+4x0e", 1),
    "two-factors-both-parities": Contraction("3x0e+3x0o+3x1o+3x1e", "3x0e+3x0o+3x1e", 2),
    "three-factors": Contraction("2x0e+2x1o+2x2e", "2x0e+2x1o", 3),
    "three-factors-pseudoscalar": Contraction("2x1o+2x1e", "2x0o+2x0e", 3),
    "channels-33": Contraction("33x0e+33x1o", "33x0e+33x1o", 2),
    "one-channel": Contraction("1x0e+1x1o", "1x1o", 3, shape=(33,)),
    "repeated": Contraction("2x1o+2x0e+2x1o", "2x1o+2x0e+2x0e", 2),
    "own-weights": Contraction("3x0e+3x1o", "3x0e", 3, num_indices=None),
    "one-index": Contraction("3x0e+3x1o", "3x0e+3x1o", 3, num_indices=1),
    "one-index-axes": Contraction("3x0e+3x1o", "3x1o", 2, shape=(2, 3), num_indices=1),
    "axes": Contraction("3x0e+3x1o", "3x0e", 2, shape=(2, 3)),
    "no-axes": Contraction("3x0e+3x1o", "3x1o", 2, shape=()),
    "no-rows": Contraction("3x0e+3x1o", "3x0e", 3, shape=(0,)),
    # of the largest published MACE
    "largest": Contraction("2x0e+2x1o+2x2e+2x3o", "2x0e+2x1o+2x2e", 3),
}
