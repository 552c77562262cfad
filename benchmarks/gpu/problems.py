"""The ops that are checked and timed, each at any size, as functions of arrays and a backend."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.cases import BOTH2, CASES, SH2, SH3, Case, Channelwise, Contraction, times
from eqfuse import ops
from eqfuse.ops.ir.form import Form, Index

ORDERS = ("forward", "backward", "double")
SPECIES, CONTRACTION_MUL = 4, 128


@dataclasses.dataclass(frozen=True)
class Problem:
    """One op at one size."""

    function: Callable  # backend -> function(floats, integers) that gives one array
    shapes: tuple  # of the floats, a tuple of pytrees of tuples of integers
    integers: object = None  # edges or indices, numpy arrays in any pytree
    forms: dict[str, Form] = dataclasses.field(default_factory=dict)  # of `ORDERS`, if it is a form
    rows: int = 0  # over which the forms run
    summands: int = 1  # the most rows (or, without forms, products) that are summed into one
    composed: bool = False  # whether an array of the op's dtype lies between kernels
    case: Case | None = None  # the irreps, where the op is a product on a graph

    def products(self, order: str) -> list[int]:
        """Return the most products summed into one number, for each result."""
        if not self.forms:
            floats = len(jax.tree.leaves(self.shapes, is_leaf=_is_shape))
            return [self.summands] * {"forward": 1, "backward": floats, "double": floats + 1}[order]
        form = self.forms[order]
        terms = collections.Counter(
            (path.output, components[-1]) for path in form.paths for components, _ in path.terms
        )
        most = [1] * len(form.outputs)
        for (slot, _), count in terms.items():
            output = form.outputs[slot.operand]
            channels = 1 if output.channels else form.max_mul
            rows = self.summands if self.composed or output.index is not Index.ROW else 1
            most[slot.operand] = max(most[slot.operand], count * channels * rows)
        return most

    def arguments(self, order: str, dtype: str):
        """Return jax.ShapeDtypeStructs of the arguments of a derivative, all of one dtype."""
        floats = jax.tree.map(
            lambda shape: jax.ShapeDtypeStruct(shape, dtype), self.shapes, is_leaf=_is_shape
        )
        out = jax.eval_shape(self.function("e3nn"), floats, self.integers)
        return (floats, out, floats)[: 1 + ORDERS.index(order)]


def _is_shape(value) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def derivative(function, order: str):
    """Return an order of derivative, as a function(arguments, integers) that gives a tuple.

    The arguments are (floats, cotangent, cotangents of the gradients), as many as the order has.
    """

    def backward(floats, cotangent, integers):
        return jax.vjp(lambda f: function(f, integers), floats)[1](cotangent)[0]

    def double(floats, cotangent, cotangents, integers):
        return jax.vjp(lambda f, c: backward(f, c, integers), floats, cotangent)[1](cotangents)

    return {
        "forward": lambda arguments, integers: (function(*arguments, integers),),
        "backward": lambda arguments, integers: (backward(*arguments, integers),),
        "double": lambda arguments, integers: double(*arguments, integers),
    }[order]


def random_edges(nodes: int, edges: int, grouped: bool = True) -> ops.Edges:
    """Make random edges, grouped by receiver as neighbour lists are, or in any order."""
    pairs = np.random.default_rng(0).integers(0, nodes, (2, edges))
    senders, receivers = pairs[:, np.lexsort(pairs)] if grouped else pairs
    return ops.Edges.from_arrays(senders, receivers, nodes)


def _degree(edges: ops.Edges) -> int:
    """Return the most edges of one node."""
    counts = np.diff([edges.receiver_ptr, edges.sender_ptr])
    return int(counts.max(initial=1))


def _of_arrays(call: Callable, *irreps):
    """Return `Problem.function` of call(backend, integers, *operands), which gives an IrrepsArray.

    The irreps are None for an operand that is an array.
    """

    def function(backend):
        return lambda floats, integers: call(backend, integers, *_wrapped(irreps, floats)).array

    return function


def _wrapped(irreps, arrays):
    pairs = zip(irreps, arrays, strict=True)
    return [a if i is None else e3nn.IrrepsArray(i, a) for i, a in pairs]


def graph_product(case: Case, nodes: int, edges: int, grouped: bool = True) -> Problem:
    """Return `ops.graph_tensor_product`, or `ops.channelwise_tensor_product` on a graph."""
    irreps_x, irreps_y = e3nn.Irreps(case.irreps_x), e3nn.Irreps(case.irreps_y)
    keep, graph = {"filter_ir_out": case.filter_ir_out}, random_edges(nodes, edges, grouped)
    if isinstance(case, Channelwise):
        shapes = [(edges, irreps_x.dim), (nodes, irreps_y.dim)]
    else:
        weights = e3nn.tensor_product(irreps_x, irreps_y, **keep).num_irreps
        shapes = [(nodes, irreps_x.dim), (edges, irreps_y.dim), *[(edges, weights)] * case.weighted]

    def product(backend, graph, x, y, w=None):
        if isinstance(case, Channelwise):
            return ops.channelwise_tensor_product(x, y, graph, **keep, backend=backend)
        return ops.graph_tensor_product(x, y, w, graph, **keep, backend=backend)

    function = _of_arrays(product, irreps_x, irreps_y, *[None] * (len(shapes) - 2))
    described = case.forms(), edges, _degree(graph)
    own = None if isinstance(case, Channelwise) else case
    return Problem(function, tuple(shapes), graph, *described, case=own)


def contraction(case: Contraction, nodes: int, edges: int) -> Problem:
    """Return `ops.symmetric_contraction` of features of nodes, with weights of their species."""
    mul = CONTRACTION_MUL
    irreps, irreps_out = (e3nn.Irreps(times(mul, i)) for i in (case.irreps, case.irreps_out))
    paths = sum(count for *_, count in ops.symmetric_contraction_paths(irreps, irreps_out, 3))

    def contracted(backend, species, x, w):
        options = {"irreps_out": irreps_out, "correlation": 3, "backend": backend}
        return ops.symmetric_contraction(x, w.reshape(-1, paths, mul), species, **options)

    species = np.random.default_rng(0).integers(0, SPECIES, nodes).astype(np.int32)
    function, shapes = _of_arrays(contracted, irreps, None), (nodes, irreps.dim)
    shapes = (shapes, (SPECIES, paths * mul))
    return Problem(function, shapes, species, case.forms(), nodes, nodes, composed=True)


def row_product(name: str, irreps_x: str, irreps_y: str, nodes: int, edges: int) -> Problem:
    """Return `ops.tensor_product` or `ops.elementwise_tensor_product` of each edge."""
    irreps = e3nn.Irreps(irreps_x), e3nn.Irreps(irreps_y)

    def product(backend, _, x, y):
        return getattr(ops, name)(x, y, backend=backend)

    return Problem(_of_arrays(product, *irreps), tuple((edges, i.dim) for i in irreps))


def grouped_dense(nodes: int, edges: int) -> Problem:
    """Return a hidden layer of three radial networks, `ops.grouped_dense` of each edge."""

    def function(backend):
        options = {"scale": 0.125, "backend": backend}
        return lambda floats, _: ops.grouped_dense(floats[0], floats[1:], **options)

    shapes = ((edges, 192), *[(64, 64)] * 3)
    return Problem(function, shapes, summands=max(edges, 64), composed=True)


def _of_module(kind, irreps_out, fields: dict, order, irreps, shapes, graph=None) -> Problem:
    """Return a flax module of `ops`, whose parameters are operands too.

    `order` returns the module's arguments of the graph and the operands. The definition on e3nn-jax
    has no kernels, so no field "fused".
    """

    def module(backend):
        given = {n: v for n, v in fields.items() if n != "fused" or backend != "e3nn"}
        return kind(irreps_out, **given, backend=backend)

    def function(backend):
        return lambda floats, graph: (
            module(backend).apply(floats[0], *order(graph, *_wrapped(irreps, floats[1:]))).array
        )

    def init(*arrays):
        return module("e3nn").init(jax.random.key(0), *order(graph, *_wrapped(irreps, arrays)))

    params = jax.eval_shape(init, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    params = jax.tree.map(lambda leaf: leaf.shape, params)
    # of the gradient of a parameter: over rows, and the components of an irrep
    dim = max(ir.dim for side in (*irreps, e3nn.Irreps(irreps_out)) if side for _, ir in side)
    summands = max(max(shape) for shape in shapes)
    summands = max(summands, dim * max(rows for rows, _ in shapes))
    return Problem(function, (params, *shapes), graph, summands=summands, composed=True)


def fused(
    irreps: tuple[str, str, str], nodes: int, edges: int, on_graph=True, gate=False, **fields
) -> Problem:
    """Return `ops.TensorProductLinear`, of edges or on a graph, with or without a gate."""
    x, y, out = map(e3nn.Irreps, irreps)
    fields["filter_ir_out"] = keep = sorted({ir for _, ir in out})
    operands, shapes = [x, y], [(nodes if on_graph else edges, x.dim), (edges, y.dim)]
    if on_graph:
        operands.append(None)
        shapes.append((edges, e3nn.tensor_product(x, y, filter_ir_out=keep).num_irreps))
    if gate:
        operands.append(out)
        shapes.append((shapes[0][0], out.dim))
        fields["force_irreps_out"] = True

    def order(graph, x, y, *others):
        w, *skip = others if on_graph else (None, *others)
        return (x, y, w, graph, *skip)

    kind = ops.TensorProductLinearGate if gate else ops.TensorProductLinear
    graph = random_edges(nodes, edges) if on_graph else None
    return _of_module(kind, irreps[2], fields, order, operands, shapes, graph)


def linear(irreps: str, nodes: int, edges: int = 0) -> Problem:
    sides = (e3nn.Irreps(irreps),)
    return _of_module(ops.Linear, irreps, {}, lambda _, x: (x,), sides, ((nodes, sides[0].dim),))


NEQUIP = times(64, BOTH2), SH2, f"64x0e+64x0o+256x0e+{times(64, '1e+1o+2e+2o')}"
ROWS = times(32, BOTH2), SH2, times(32, BOTH2)
GATED_ROWS = *ROWS[:2], f"32x0e+32x0o+128x0e+{times(32, '1e+1o+2e+2o')}"

PROBLEMS: dict[str, Callable[[int, int], Problem]] = {
    **{
        name: functools.partial(contraction if type(case) is Contraction else graph_product, case)
        for name, case in CASES.items()
    },
    "fused-gate-64-l2": functools.partial(fused, NEQUIP, gate=True),
    "fused-gate-64-l2-always": functools.partial(fused, NEQUIP, gate=True, fused="always"),
    "fused-linear-128": functools.partial(fused, ("128x0e+128x1o", SH3, times(128, SH3))),
    "fused-rows-32-l2": functools.partial(fused, ROWS, on_graph=False),
    "fused-rows-32-l2-always": functools.partial(fused, ROWS, on_graph=False, fused="always"),
    "linear-64-l2": functools.partial(linear, times(64, BOTH2)),
    "product-rows": functools.partial(row_product, "tensor_product", times(32, BOTH2), SH2),
    "elementwise-rows": functools.partial(
        row_product, "elementwise_tensor_product", times(32, BOTH2), times(32, BOTH2)
    ),
    "grouped-dense-64": grouped_dense,
}
