"""The ops that are checked and timed, each at any size, as functions of arrays and a backend."""

from __future__ import annotations

import functools
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from eqfuse import ops
from eqfuse.bench.cases import BOTH2, CASES, SH2, SH3, Case, Channelwise, Contraction, times
from eqfuse.bench.problem import Problem

SPECIES, CONTRACTION_MUL = 4, 128


def random_edges(nodes: int, edges: int, grouped: bool = True) -> ops.Edges:
    """Make random edges, grouped by receiver as neighbour lists are, or in any order."""
    pairs = np.random.default_rng(0).integers(0, nodes, (2, edges))
    senders, receivers = pairs[:, np.lexsort(pairs)] if grouped else pairs
    return ops.Edges.from_arrays(senders, receivers, nodes)


def _degree(edges: ops.Edges) -> int:
    """Return the most edges of one node."""
    counts = [np.diff(pointers) for pointers in (edges.receiver_ptr, edges.sender_ptr)]
    return int(max(count.max(initial=1) for count in counts))


def graph_product(case: Case, nodes: int, edges: int, grouped: bool = True) -> Problem:
    """Return `ops.graph_tensor_product`; on e3nn-jax by its definition."""
    irreps_x, irreps_y = e3nn.Irreps(case.irreps_x), e3nn.Irreps(case.irreps_y)
    keep = {"filter_ir_out": case.filter_ir_out}
    weights = e3nn.tensor_product(irreps_x, irreps_y, **keep).num_irreps

    def function(backend):
        def product(floats, graph):
            x, y = e3nn.IrrepsArray(irreps_x, floats[0]), e3nn.IrrepsArray(irreps_y, floats[1])
            w = floats[2] if case.weighted else None
            return ops.graph_tensor_product(x, y, w, graph, **keep, backend=backend).array

        return product

    graph = random_edges(nodes, edges, grouped)
    shapes = [(nodes, irreps_x.dim), (edges, irreps_y.dim)]
    shapes += [(edges, weights)] * case.weighted
    return Problem(function, tuple(shapes), graph, case.forms(), edges, _degree(graph), case=case)


def contraction(case: Contraction, nodes: int, edges: int) -> Problem:
    """Return `ops.symmetric_contraction` of features of nodes, with weights of their species."""
    irreps, irreps_out = (
        e3nn.Irreps(times(CONTRACTION_MUL, i)) for i in (case.irreps, case.irreps_out)
    )
    paths = sum(count for *_, count in ops.symmetric_contraction_paths(irreps, irreps_out, 3))

    def function(backend):
        def contracted(floats, species):
            x = e3nn.IrrepsArray(irreps, floats[0])
            w = floats[1].reshape(-1, paths, CONTRACTION_MUL)
            options = {"irreps_out": irreps_out, "correlation": 3, "backend": backend}
            return ops.symmetric_contraction(x, w, species, **options).array

        return contracted

    species = np.random.default_rng(0).integers(0, SPECIES, nodes).astype(np.int32)
    shapes = ((nodes, irreps.dim), (SPECIES, paths * CONTRACTION_MUL))
    return Problem(function, shapes, species, case.forms(), nodes, nodes, composed=True)


def channelwise(case: Channelwise, nodes: int, edges: int) -> Problem:
    """Return `ops.channelwise_tensor_product` of features of edges and of their receivers."""
    irreps_x, irreps_y = e3nn.Irreps(case.irreps_x), e3nn.Irreps(case.irreps_y)
    keep = {"filter_ir_out": tuple(ir for _, ir in e3nn.Irreps(case.keep))}

    def function(backend):
        def product(floats, graph):
            x, y = e3nn.IrrepsArray(irreps_x, floats[0]), e3nn.IrrepsArray(irreps_y, floats[1])
            return ops.channelwise_tensor_product(x, y, graph, **keep, backend=backend).array

        return product

    graph = random_edges(nodes, edges)
    shapes = ((edges, irreps_x.dim), (nodes, irreps_y.dim))
    return Problem(function, shapes, graph, case.forms(), edges, _degree(graph))


def _with_parameters(module, irreps, shapes, graph, extra=None) -> Problem:
    """Return a flax module whose first operands are IrrepsArrays; its parameters are operands too.

    Args:
      module: backend -> module.
      irreps: of the operands, None for one that is no IrrepsArray.
      shapes: of the operands.
      graph: edges, which follow them, or None.
      extra: irreps of a last operand, the skip.
    """

    def operands(arrays, integers):
        sides = [*irreps, *([extra] if extra else [])]
        arrays = [
            a if i is None else e3nn.IrrepsArray(i, a) for i, a in zip(sides, arrays, strict=True)
        ]
        if graph is None:
            return arrays
        middle = [*arrays[: len(irreps)], *([None] * (3 - len(irreps))), integers, None]
        return [*middle, *arrays[len(irreps) :]]

    def function(backend):
        def apply(floats, integers):
            params, *arrays = floats
            return module(backend).apply(params, *operands(arrays, integers)).array

        return apply

    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    params = jax.eval_shape(
        lambda *a: module("e3nn").init(jax.random.key(0), *operands(a, graph)), *structs
    )
    params = jax.tree.map(lambda leaf: leaf.shape, params)
    summands = max(size for shape in shapes for size in shape)  # the gradient of a parameter
    return Problem(function, (params, *shapes), graph, summands=summands, composed=True)


GATED = f"64x0e+64x0o+256x0e+{times(64, '1e+1o+2e+2o')}"


def fused_gate(nodes: int, edges: int, fused: str | None = None) -> Problem:
    """Return NequIP's convolution with a skip, `ops.TensorProductLinearGate`."""
    irreps_x, irreps_y, irreps_z = (e3nn.Irreps(i) for i in (times(64, BOTH2), SH2, GATED))
    keep = sorted({ir for _, ir in irreps_z})
    width = e3nn.tensor_product(irreps_x, irreps_y, filter_ir_out=keep).num_irreps
    shapes = ((nodes, irreps_x.dim), (edges, irreps_y.dim), (edges, width), (nodes, irreps_z.dim))
    module = functools.partial(
        _module,
        ops.TensorProductLinearGate,
        GATED,
        force_irreps_out=True,
        filter_ir_out=keep,
        **_fused(fused),
    )
    graph = random_edges(nodes, edges)
    return _with_parameters(module, (irreps_x, irreps_y, None), shapes, graph, irreps_z)


def fused_linear(nodes: int, edges: int) -> Problem:
    """Return the product and the Linear of MACE on a graph, `ops.TensorProductLinear`."""
    irreps_x, irreps_y = e3nn.Irreps("128x0e+128x1o"), e3nn.Irreps(SH3)
    out = times(128, SH3)
    keep = sorted({ir for _, ir in e3nn.Irreps(out)})
    width = e3nn.tensor_product(irreps_x, irreps_y, filter_ir_out=keep).num_irreps
    shapes = ((nodes, irreps_x.dim), (edges, irreps_y.dim), (edges, width))
    module = functools.partial(_module, ops.TensorProductLinear, out, filter_ir_out=keep)
    return _with_parameters(module, (irreps_x, irreps_y, None), shapes, random_edges(nodes, edges))


def fused_rows(nodes: int, edges: int, fused: str | None = None) -> Problem:
    """Return the product and the Linear of each edge, `ops.TensorProductLinear` without a graph."""
    irreps_x, irreps_y = e3nn.Irreps(times(32, BOTH2)), e3nn.Irreps(SH2)
    shapes = ((edges, irreps_x.dim), (edges, irreps_y.dim))
    keep = sorted({ir for _, ir in irreps_x})
    module = functools.partial(
        _module,
        ops.TensorProductLinear,
        times(32, BOTH2),
        filter_ir_out=keep,
        **_fused(fused),
    )
    return _with_parameters(module, (irreps_x, irreps_y), shapes, None)


def linear(irreps: str, nodes: int, edges: int = 0) -> Problem:
    """Return `ops.Linear` of features of nodes to the same irreps."""
    module = functools.partial(_module, ops.Linear, irreps)
    shapes = ((nodes, e3nn.Irreps(irreps).dim),)
    return _with_parameters(module, (e3nn.Irreps(irreps),), shapes, None)


def _fused(fused: str | None) -> dict:
    return {} if fused is None else {"fused": fused}


def _module(kind, irreps, backend, **fields):
    """With `filter_ir_out`, e3nn-jax does not compute what nobody reads either."""
    if backend == "e3nn":  # the definition has no kernels
        fields.pop("fused", None)
    return kind(irreps, **fields, backend=backend)


def row_product(name: str, irreps_x: str, irreps_y: str, nodes: int, edges: int) -> Problem:
    """Return `ops.tensor_product` or `ops.elementwise_tensor_product` of each edge."""
    irreps = e3nn.Irreps(irreps_x), e3nn.Irreps(irreps_y)

    def function(backend):
        def product(floats, _):
            x, y = (e3nn.IrrepsArray(i, a) for i, a in zip(irreps, floats, strict=True))
            return getattr(ops, name)(x, y, backend=backend).array

        return product

    return Problem(function, tuple((edges, i.dim) for i in irreps), None)


def weighted_channels(nodes: int, edges: int) -> Problem:
    """Return the first features of Allegro, `ops.weighted_channels` of each edge."""
    irreps = e3nn.Irreps(SH2)

    def function(backend):
        def channels(floats, _):
            y, weights = floats
            return ops.weighted_channels(
                e3nn.IrrepsArray(irreps, y), weights, backend=backend
            ).array

        return channels

    return Problem(function, ((edges, irreps.dim), (edges, 64 * len(irreps))), None, summands=64)


def grouped_dense(nodes: int, edges: int) -> Problem:
    """Return a hidden layer of three radial networks, `ops.grouped_dense` of each edge."""

    def function(backend):
        def layers(floats, _):
            return ops.grouped_dense(floats[0], floats[1:], scale=0.125, backend=backend)

        return layers

    shapes = ((edges, 192), *[(64, 64)] * 3)
    return Problem(function, shapes, None, summands=max(edges, 64), composed=True)


_KINDS = {Case: graph_product, Contraction: contraction, Channelwise: channelwise}

PROBLEMS: dict[str, Callable[[int, int], Problem]] = {
    **{name: functools.partial(_KINDS[type(case)], case) for name, case in CASES.items()},
    "fused-gate-64-l2": fused_gate,
    "fused-gate-64-l2-always": functools.partial(fused_gate, fused="always"),
    "fused-linear-128": fused_linear,
    "fused-rows-32-l2": fused_rows,
    "fused-rows-32-l2-always": functools.partial(fused_rows, fused="always"),
    "linear-64-l2": functools.partial(linear, times(64, BOTH2)),
    "product-rows": functools.partial(row_product, "tensor_product", times(32, BOTH2), SH2),
    "elementwise-rows": functools.partial(
        row_product, "elementwise_tensor_product", times(32, BOTH2), times(32, BOTH2)
    ),
    "weighted-channels-64-l2": weighted_channels,
    "grouped-dense-64": grouped_dense,
}
