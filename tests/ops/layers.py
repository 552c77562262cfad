"""Products with a Linear as one op, and Linears, as cases whose first operands are parameters."""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.ops import TensorProductLinear, TensorProductLinearGate
from eqfuse.ops.ir.products import UNROLLED_MUL
from tests.ops.cases import Random

NODES, EDGES, SETS = 5, 7, 3
MANY = 600
"""Rows that native kernels cut into parts, and add their gradients of weights."""


class OfModule(Random):
    """A module as a function of its parameters, in their order, and of its arrays.

    `arrays` are the shapes of the latter, and `arguments` what `apply` makes of them.
    """

    @functools.cached_property
    def parameters(self):
        """Return the shapes of e3nn's parameters."""
        arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in self.arrays.values()]
        module = self.module("e3nn")
        return jax.eval_shape(
            lambda *a: module.init(jax.random.key(0), *self.arguments(*a)), *arrays
        )

    @property
    def names(self) -> tuple[str, ...]:
        return (*(f"parameter {n}" for n in range(self.num_parameters)), *self.arrays)

    @property
    def num_parameters(self) -> int:
        return len(jax.tree.leaves(self.parameters))

    @functools.cached_property
    def _shapes(self):
        shapes = *(p.shape for p in jax.tree.leaves(self.parameters)), *self.arrays.values()
        operands = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
        return *shapes, jax.eval_shape(self.reference, *operands).shape

    def shapes(self):
        return self._shapes

    def split(self, operands):
        """Return the tree of parameters, and the arrays."""
        count = self.num_parameters
        return jax.tree.unflatten(jax.tree.structure(self.parameters), operands[:count]), [
            *operands[count:]
        ]

    def function(self, backend: str, fused: str | None = None):
        def function(*operands):
            params, arrays = self.split(operands)
            return self.module(backend, fused).apply(params, *self.arguments(*arrays)).array

        return function

    def reference(self, *operands):
        return self.function("e3nn")(*operands)


@dataclasses.dataclass(frozen=True)
class Layer(OfModule):
    """One op: over rows, or on a graph with nodes 3 and 4 isolated.

    In float32 it rounds eight times: as often as a product, and as often in Linear and activation.
    """

    cls: type
    x: str
    y: str
    out: str
    graph: bool = False
    weighted: bool = True
    skip: bool = False
    options: tuple = ()
    num_nodes: int = NODES
    num_edges: int = EDGES
    product_by_e3nn: bool = False

    factors = 6

    @property
    def channelwise(self) -> bool:
        return bool(dict(self.options).get("channelwise"))

    @property
    def is_many_by_many(self) -> bool:
        """Return whether both operands have many channels."""
        muls = (max(mul for mul, _ in e3nn.Irreps(i)) for i in (self.x, self.y))
        return min(muls) > UNROLLED_MUL and not self.channelwise

    @property
    def over_rows(self) -> bool:
        return not self.graph or self.channelwise

    @functools.cached_property
    def edges(self) -> ops.Edges | None:
        ends = np.random.default_rng(0).integers(0, 3, (2, self.num_edges))
        return ops.Edges.from_arrays(*ends, self.num_nodes) if self.graph else None

    @functools.cached_property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        rows = [self.num_nodes, self.num_edges if self.graph else self.num_nodes]
        rows = rows[::-1] if self.channelwise else rows
        dims = (e3nn.Irreps(irreps).dim for irreps in (self.x, self.y))
        arrays = dict(zip("xy", zip(rows, dims, strict=True), strict=True))
        if self.graph and self.weighted:
            keep = sorted({ir for _, ir in e3nn.Irreps(self.out)})
            product = e3nn.tensor_product(self.x, self.y, filter_ir_out=keep)
            arrays["weights"] = self.num_edges, product.num_irreps
        if self.skip:
            arrays["skip"] = self.num_nodes, e3nn.Irreps(self.out).dim
        return arrays

    def module(self, backend: str, fused: str | None = None):
        return self.cls(self.out, backend=backend, fused=fused, **dict(self.options))

    def arguments(self, *arrays):
        arrays = dict(zip(self.arrays, arrays, strict=True))
        skip = arrays.get("skip")
        return (
            e3nn.IrrepsArray(self.x, arrays["x"]),
            e3nn.IrrepsArray(self.y, arrays["y"]),
            arrays.get("weights"),
            self.edges,
            None if skip is None else e3nn.IrrepsArray(self.out, skip),
        )

    def has(self, way: str, dtype: str) -> bool:
        if self.num_nodes > MANY:
            return (way, dtype) == ("llvm always", "float64")
        if self.product_by_e3nn and (" " in way or dtype in ("bfloat16", "float16")):
            return False
        if "blocks" in way:
            return self.over_rows and dtype == "float64"
        if "always" in way and self.is_many_by_many and not self.over_rows:
            return False
        return way != "llvm always" or (self.over_rows and dtype in ("float64", "float32"))

    def runs(self, backend: str) -> bool:
        return 0 not in self.shapes()[-1]  # without edges, what is gated is the skip

    def kinds(self, fused: str | None) -> set[str] | None:
        """Return what native kernels compute: one that is both, each way, is a program."""
        if any(0 in shape for shape in self.shapes()):
            return None
        whole = {"program"} if fused == "always" and self.over_rows else set()
        return {"product", "matrices"} | whole


def rows(x, y, out, gate=False, graph=False, weighted=True, skip=False, **options):
    """Return a case, of whose op `options` are; without a graph unless there is one."""
    cls = TensorProductLinearGate if gate else TensorProductLinear
    return Layer(cls, x, y, out, graph, weighted, skip, tuple(options.items()))


def activations(function) -> dict:
    """Return those of a gate, all odd, as those of odd scalars are."""
    names = ("even_act", "odd_act", "even_gate_act", "odd_gate_act")
    return {name: lambda x, k=k: function((2 - k / 4) * x) for k, name in enumerate(names)}


graph = functools.partial(rows, graph=True)
bare = functools.partial(graph, weighted=False)
FORCED, CHANNELWISE = {"force_irreps_out": True}, {"channelwise": True}
X, Y, OF_BOTH = "5x0e+5x1o+2x0o", "0e+1o", "5x0e+5x1o"
gated_with_skip = functools.partial(rows, X, Y, "5x0e+3x0o+4x1o", gate=True, skip=True, **FORCED)
LAYERS = {
    "rows-linear": rows(OF_BOTH, Y, "7x0e+3x1o+4x1e"),
    "rows-gate": rows(X, Y, "7x0e+3x0o+2x0e+4x1o+1x1e", gate=True),
    "rows-bias": rows(X, "2x0e+1o", "7x0e+3x0o+4x1o", biases=True, path_normalization="path"),
    "rows-fully-connected": rows(X, "6x0e+5x1o", "7x0e+3x0o+4x1o"),
    "rows-channelwise": rows(OF_BOTH, OF_BOTH, "7x0e+3x1o+4x1e", **CHANNELWISE),
    "rows-many-columns": rows("36x0e+33x1o", Y, "150x0e+40x1o", biases=True),
    "rows-many-channels": rows("140x0e+33x1o", Y, "20x0e+4x1o", gate=True),
    "rows-gate-skip": gated_with_skip(),
    "rows-channels-of-both": rows("2x0e+3x1o", "2x0e+2x1o", "5x0e+3x1o+2x2e"),
    "rows-activation-bias": rows(X, Y, "7x0e+3x0o+4x1o", gate=True, biases=True, gated=False),
    "rows-other-activations": rows(
        *(X, Y, "7x0e+3x0o+9x0e+4x1o"),
        gate=True,
        even_act=jnp.tanh,
        odd_act=jnp.tanh,
        even_gate_act=jnp.abs,
    ),
    "rows-sine": gated_with_skip(**activations(jnp.sin)),
    "rows-nothing-left": rows(OF_BOTH, Y, "5x3e"),
    "rows-skip": rows(OF_BOTH, Y, "7x0e+4x1o", skip=True, **FORCED),
    "graph-channelwise": bare("5x0e+5x1o+5x1e", OF_BOTH, "7x0e+3x1o+4x1e", **CHANNELWISE, **FORCED),
    "graph-channelwise-no-path": bare(
        *("5x0e+5x1o+5x1e", OF_BOTH, "7x0e+3x1o+4x1e+2x2o"), **(CHANNELWISE | FORCED)
    ),
    "graph-channelwise-gate": bare(
        OF_BOTH, OF_BOTH, "7x0e+3x1o+4x1e", gate=True, **CHANNELWISE, **FORCED
    ),
    "graph-channelwise-small": bare("2x0e+2x1o", "2x0e+2x1o", "2x0e+1x1o", **CHANNELWISE),
    "graph-linear": graph(OF_BOTH, Y, "7x0e+3x1o+4x1e"),
    "graph-gate-skip": graph(X, Y, "5x0e+3x0o+4x1o", gate=True, skip=True, **FORCED),
    "graph-scalar-activation-bias": bare(
        X, Y, "7x0e+3x0o+4x1o", gate=True, biases=True, gated=False
    ),
    "graph-bias": graph("5x0e+3x1o", Y, "4x0e+3x1o", biases=True),
    "graph-one-channel": bare("1x0e+1x1o", "0e+1o+2e", "3x0e+1x1o+1x2e", gate=True),
    "graph-scalar-first": bare("5x0e+3x1o", Y, "2x0e+3x1o", scalar_first=True),
    "graph-small": bare("2x0e+2x1o", Y, "3x0e+1x1o", gate=True, skip=True, **FORCED),
    # more rows and columns of matrices than a tile has: several turns of both loops
    "graph-many-columns": graph(
        "5x0e+34x1o", Y, "70x0e+40x0e+40x1o", gate=True, skip=True, **FORCED
    ),
}
LAYERS |= {
    "rows-erf": dataclasses.replace(  # of which there are no kernels: e3nn's gate multiplies
        gated_with_skip(**activations(jax.scipy.special.erf)),
        product_by_e3nn=True,
    ),
    "rows-none": dataclasses.replace(LAYERS["rows-linear"], num_nodes=0),
    "rows-in-parts": dataclasses.replace(LAYERS["rows-gate"], num_nodes=MANY + 1),
    "graph-no-edges": dataclasses.replace(LAYERS["graph-gate-skip"], num_edges=0),
}


@dataclasses.dataclass(frozen=True)
class Linear(OfModule):
    """A Linear of rows; `weights` are the shape of those that mix its paths, if there are any.

    `by_e3nn` are those that e3nn's Linear itself computes.
    """

    options: tuple = ()
    weights: tuple[int, ...] | None = None
    irreps: str = "2x0e+3x1o+2x0e+1x0o+0x1e"
    out: str = "3x0e+2x1o+3x2e+1x0o+2x0e"
    num_rows: int = 7
    by_e3nn: bool = False

    factors, tolerance = 2, 1e-13
    """Of float64: a few dozen products."""

    @property
    def sums(self) -> dict[str, int]:
        return dict.fromkeys(map(str, range(9)), self.num_rows)

    @property
    def arrays(self) -> dict[str, tuple[int, ...]]:
        channels = {"channel_out", "weights_per_channel"} & {name for name, _ in self.options}
        shape = (
            *((self.num_rows, 3) if channels else (self.num_rows,)),
            e3nn.Irreps(self.irreps).dim,
        )
        return {"x": shape} if self.weights is None else {"weights": self.weights, "x": shape}

    def module(self, backend: str, fused: None = None):
        options = dict(self.options)
        if backend == "e3nn":
            return e3nn.flax.Linear(self.out, **options)
        return ops.Linear(self.out, backend=backend, **options)

    def arguments(self, *arrays):
        *before, x = arrays
        if "num_indexed_weights" in dict(self.options):
            before = [jnp.arange(self.num_rows) % SETS]
        return *before, e3nn.IrrepsArray(self.irreps, x)

    def has(self, way: str, dtype: str) -> bool:
        backends = ("llvm",) if self.by_e3nn else ("xla", "llvm", "triton")
        return way in backends and dtype == "float64"

    def runs(self, backend: str) -> bool:
        return backend != "xla"  # which has no kernels of a linear form

    def kinds(self, fused: None) -> set[str]:
        return {"matrices"}


def linear(weights=None, by_e3nn=False, **options):
    return Linear(tuple(options.items()), weights, by_e3nn=by_e3nn)


of_e3nn = functools.partial(linear, by_e3nn=True)
UNSIMPLIFIED = {"simplify_irreps_internally": False}
PARTS = {"instructions": ((0, 0), (2, 4), (1, 1)), "irreps_in": e3nn.Irreps(Linear.irreps)}
LINEARS = {
    "plain": linear(),
    "forced": linear(
        force_irreps_out=True, biases=True, path_normalization="path", gradient_normalization=0.5
    ),
    "indexed": linear(num_indexed_weights=SETS, biases=True),
    "initializer": linear(parameter_initializer=lambda: jax.nn.initializers.uniform(0.1)),
    "channels": of_e3nn(channel_out=2, biases=True),
    "weights": of_e3nn((7, 4), biases=True, gradient_normalization="path"),
    "per-channel": of_e3nn((7, 4), weights_per_channel=True, biases=True),
    "unsimplified-indexed": of_e3nn(num_indexed_weights=SETS, **UNSIMPLIFIED),
    "instructions": of_e3nn(force_irreps_out=True, biases=True, **PARTS, **UNSIMPLIFIED),
}
