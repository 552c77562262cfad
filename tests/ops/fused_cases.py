"""Fused ops of a product and a Linear in every way, and e3nn-jax's definition of them."""

import copy
import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.ops import TensorProductLinear, TensorProductLinearGate
from eqfuse.ops.ir.products import UNROLLED_MUL
from tests.ops.parity import PRODUCTS, UNOPTIMIZED, along_random_directions, only

NODES, EDGES = 5, 7


@dataclasses.dataclass(frozen=True)
class Case:
    """One op: over rows, or on a graph with node 3 and 4 isolated."""

    cls: type
    graph: bool
    x: str
    y: str
    out: str
    weighted: bool = True
    skip: bool = False
    options: tuple = ()

    @property
    def by_e3nn(self) -> bool:
        """Return whether e3nn-jax computes the product: both operands have many channels."""
        muls = (max(mul for mul, _ in e3nn.Irreps(i)) for i in (self.x, self.y))
        return min(muls) > UNROLLED_MUL and not dict(self.options).get("channelwise")

    @property
    def over_rows(self) -> bool:
        return not self.graph or bool(dict(self.options).get("channelwise"))


def rows(x, y, out, gate=False, graph=False, weighted=True, skip=False, **options):
    """Return a case, of whose op `options` are; without a graph unless there is one."""
    cls = TensorProductLinearGate if gate else TensorProductLinear
    return Case(cls, graph, x, y, out, weighted, skip, tuple(options.items()))


graph = functools.partial(rows, graph=True)
bare = functools.partial(graph, weighted=False)
FORCED, CHANNELWISE = {"force_irreps_out": True}, {"channelwise": True}
X, Y, OF_BOTH = "5x0e+5x1o+2x0o", "0e+1o", "5x0e+5x1o"
CASES = {
    "rows-linear": rows(OF_BOTH, Y, "7x0e+3x1o+4x1e"),
    "rows-gate": rows(X, Y, "7x0e+3x0o+2x0e+4x1o+1x1e", gate=True),
    "rows-bias": rows(X, "2x0e+1o", "7x0e+3x0o+4x1o", biases=True, path_normalization="path"),
    "rows-fully-connected": rows(X, "6x0e+5x1o", "7x0e+3x0o+4x1o"),
    "rows-channelwise": rows(OF_BOTH, OF_BOTH, "7x0e+3x1o+4x1e", **CHANNELWISE),
    "rows-many-columns": rows("36x0e+33x1o", Y, "150x0e+40x1o", biases=True),
    "rows-many-channels": rows("140x0e+33x1o", Y, "20x0e+4x1o", gate=True),
    "rows-gate-skip": rows(X, Y, "5x0e+3x0o+4x1o", gate=True, skip=True, **FORCED),
    "rows-channels-of-both": rows("2x0e+3x1o", "2x0e+2x1o", "5x0e+3x1o+2x2e"),
    "rows-activation-bias": rows(X, Y, "7x0e+3x0o+4x1o", gate=True, biases=True, gated=False),
    "rows-other-activations": rows(
        *(X, Y, "7x0e+3x0o+9x0e+4x1o"),
        gate=True,
        even_act=jnp.tanh,
        odd_act=jnp.tanh,
        even_gate_act=jnp.abs,
    ),
    "rows-skip": rows(OF_BOTH, Y, "7x0e+4x1o", skip=True, **FORCED),
    "graph-channelwise": bare("5x0e+5x1o+5x1e", OF_BOTH, "7x0e+3x1o+4x1e", **CHANNELWISE, **FORCED),
    "graph-channelwise-no-path": bare(
        *("5x0e+5x1o+5x1e", OF_BOTH, "7x0e+3x1o+4x1e+2x2o"),
        **(CHANNELWISE | FORCED),
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


class Problem:
    """The operands of a case, random, and the op on a backend as a function of all of them.

    Args:
      fused: as the op takes it.
    """

    def __init__(self, case: Case, dtype=np.float64, fused: str | None = None):
        self.case, self.rng, self.dtype = case, np.random.default_rng(0), dtype
        self.fused = None
        senders, receivers = self.rng.integers(0, 3, (2, EDGES))
        self.edges = ops.Edges.from_arrays(senders, receivers, NODES) if case.graph else None
        keep = sorted({ir for _, ir in e3nn.Irreps(case.out)})
        irreps = e3nn.tensor_product(case.x, case.y, filter_ir_out=keep)
        rows = [NODES, EDGES if case.graph else NODES]
        rows = rows[::-1] if dict(case.options).get("channelwise") else rows
        self.arrays = {
            name: self.normal(n, e3nn.Irreps(i).dim)
            for name, n, i in zip("xy", rows, (case.x, case.y), strict=True)
        }
        if case.graph and case.weighted:
            self.arrays["weights"] = self.normal(EDGES, irreps.num_irreps)
        if case.skip:
            self.arrays["skip"] = self.normal(NODES, e3nn.Irreps(case.out).dim)
        shapes = jax.eval_shape(lambda: self.init("e3nn"))
        self.params = jax.tree.map(lambda p: self.normal(*p.shape), shapes)
        self.fused = fused

    def normal(self, *shape):
        return jnp.asarray(self.rng.normal(size=shape).astype(self.dtype))

    def module(self, backend: str):
        options = dict(self.case.options) | {"fused": self.fused}
        return self.case.cls(self.case.out, backend=backend, **options)

    def arguments(self, arrays):
        skip = arrays.get("skip")
        return (
            e3nn.IrrepsArray(self.case.x, arrays["x"]),
            e3nn.IrrepsArray(self.case.y, arrays["y"]),
            arrays.get("weights"),
            self.edges,
            None if skip is None else e3nn.IrrepsArray(self.case.out, skip),
        )

    def init(self, backend: str):
        return self.module(backend).init(jax.random.PRNGKey(0), *self.arguments(self.arrays))

    def apply(self, backend: str, params, arrays):
        return self.module(backend).apply(params, *self.arguments(arrays))

    def in_dtype(self, dtype):
        """Return it in another dtype, on the same numbers as far as that can hold them."""
        other = Problem(self.case, dtype, self.fused)
        other.arrays, other.params = jax.tree.map(
            lambda a: jnp.asarray(a, dtype), (self.arrays, self.params)
        )
        return other


def assert_all_orders(case: Case, backend: str, fused: str | None = None):
    """Compare all `orders` with those of e3nn, in float64, to 1e-12.

    The sums have at most a few hundred products, each rounded to 1e-16. On a CPU an op that is one
    kernel each way is a Program.
    """
    kinds = {"product", "matrices"} | (
        {"program"} if fused == "always" and case.over_rows else set()
    )
    with jax.enable_x64(True):
        problem = Problem(case, fused=fused)  # its parameters are made by e3nn
        forbidden = () if case.by_e3nn else PRODUCTS
        with only(backend, kinds=kinds, forbidden=forbidden):
            found = orders(problem, backend)
        for (name, expected), got in zip(orders_of_e3nn(case).items(), found.values(), strict=True):
            assert worst(got, expected) < 1e-12, name


def orders(problem: Problem, backend: str) -> dict:
    """Return the derivatives of all orders by parameters and arrays."""

    def function(params, arrays):
        return problem.apply(backend, params, arrays).array

    point, orders = (problem.params, problem.arrays), ("value", "vjp", "jvp", "vjp of vjp")
    return along_random_directions(function, *point, orders=orders, options=UNOPTIMIZED)


def assert_low_precision(case: Case, backend: str, dtype, fused: str | None = None):
    """Allow errors of twice those of e3nn-jax in the same dtype, or of eight roundings.

    Four of them are those of a product (`parity.assert_parity`), as many of Linear and activation.
    """
    low, theirs, exact = of_e3nn(case, dtype)
    low = copy.copy(low)
    low.fused = fused
    for a, b, c in zip(gradients(low, backend), theirs, exact, strict=True):
        eight_roundings = 8 * float(jnp.finfo(dtype).eps) / 2 * np.abs(c).max(initial=0)
        allowed = max(2 * np.abs(b - c).max(initial=0), eight_roundings)
        assert np.abs(a - c).max(initial=0) <= allowed


@functools.cache
def orders_of_e3nn(case):
    """`orders` of e3nn, in float64."""
    return orders(Problem(case), "e3nn")


def worst(got, expected) -> float:
    """Return the largest error relative to the largest element of its array."""
    errors = [0.0]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.isfinite(a).all()
        errors.append(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)))
    return max(errors)


def gradients(problem: Problem, backend: str, options: dict | None = None):
    """Value and VJP along a fixed cotangent, as float64; `options` of the compiler."""

    def function(params, arrays):
        return problem.apply(backend, params, arrays).array

    point = (problem.params, problem.arrays)
    shape = jax.eval_shape(function, *point).shape
    cotangent = np.random.default_rng(1).integers(-4, 5, shape)

    def everything(point):
        value, pullback = jax.vjp(function, *point)
        return value, pullback(jnp.asarray(cotangent, value.dtype))

    found = jax.jit(everything, compiler_options=options)(point)
    assert all(a.dtype == problem.dtype for a in jax.tree.leaves(found))
    return [np.asarray(a).astype(np.float64) for a in jax.tree.leaves(found)]


@functools.cache
def of_e3nn(case, dtype):
    """Return a problem in a low precision, and its `gradients` by e3nn in that and in float64."""
    low = Problem(case, np.float32).in_dtype(dtype)
    with jax.enable_x64(True):
        exact = gradients(low.in_dtype(np.float64), "e3nn", UNOPTIMIZED)
    return low, gradients(low, "e3nn"), exact
