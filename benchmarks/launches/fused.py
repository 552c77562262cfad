"""Product, Linear and gate, forward and backward, for `benchmarks.launches`.

    python -m benchmarks.launches fused [NAME ...]

NequIP, 64 channels, l <= 2 of both parities, on graphs of two sizes, and Allegro's product of edge
features, over rows; the same definition on e3nn-jax and on our kernels, of those irreps of the
product only that the Linear reads.
"""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import interpreted
from eqfuse import ops

SIZES = ((135, 2_700), (3_000, 160_000))
BACKENDS = {"e3nn-jax": "e3nn", "eqfuse": "triton"}
FEATURES = "+".join(f"64x{ir}" for ir in ("0e", "0o", "1e", "1o", "2e", "2o"))
GATED = "64x0e+64x0o+256x0e+64x1e+64x1o+64x2e+64x2o"
HARMONICS = "0e+1o+2e"


def shape(irreps, rows: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an array of irreps."""
    return jax.ShapeDtypeStruct((rows, e3nn.Irreps(irreps).dim), jnp.float32)


def on_graph(backend: str, num_nodes: int, num_edges: int):
    """Return the op with a skip before its gate, as a function of arrays, and their shapes."""
    index = np.zeros(num_edges, np.int32)
    edges = ops.Edges.from_arrays(index, index, num_nodes)
    edges = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), edges)
    keep = sorted({ir for _, ir in e3nn.Irreps(GATED)})
    module = ops.TensorProductLinearGate(
        GATED, force_irreps_out=True, filter_ir_out=keep, backend=backend
    )
    width = ops.tensor_product(FEATURES, HARMONICS, filter_ir_out=keep).num_irreps

    def arguments(x, y, w, skip):
        arrays = zip((FEATURES, HARMONICS, GATED), (x, y, skip), strict=True)
        x, y, skip = (e3nn.IrrepsArray(irreps, a) for irreps, a in arrays)
        return x, y, w, skip

    def apply(params, x, y, w, skip, edges):
        x, y, w, skip = arguments(x, y, w, skip)
        return module.apply(params, x, y, w, edges, skip).array

    def init(x, y, w, skip, edges):
        x, y, w, skip = arguments(x, y, w, skip)
        return module.init(jax.random.key(0), x, y, w, edges, skip)

    arrays = [shape(FEATURES, num_nodes), shape(HARMONICS, num_edges)]
    arrays += [jax.ShapeDtypeStruct((num_edges, width), jnp.float32), shape(GATED, num_nodes)]
    return apply, (jax.eval_shape(init, *arrays, edges), *arrays, edges), 5


def over_rows(backend: str, num_edges: int):
    """Return the op without a gate."""
    keep = sorted({ir for _, ir in e3nn.Irreps(FEATURES)})
    module = ops.TensorProductLinear(FEATURES, filter_ir_out=keep, backend=backend)

    def operands(x, y):
        return e3nn.IrrepsArray(FEATURES, x), e3nn.IrrepsArray(HARMONICS, y)

    def apply(params, x, y):
        return module.apply(params, *operands(x, y)).array

    arrays = [shape(FEATURES, num_edges), shape(HARMONICS, num_edges)]
    params = jax.eval_shape(lambda x, y: module.init(jax.random.key(0), *operands(x, y)), *arrays)
    return apply, (params, *arrays), 3


def backward(apply, args, count: int):
    """Return the gradients of all operands, given the cotangent."""

    def vjp(cotangent, *args):
        return jax.vjp(lambda *a: apply(*a, *args[count:]), *args[:count])[1](cotangent)

    return vjp, (jax.eval_shape(apply, *args), *args)


def case(order: str, kind, backend: str, *sizes: int):
    """Return one of CASES."""
    apply, args, count = kind(backend, *sizes)
    return (apply, args) if order == "forward" else backward(apply, args, count)


CASES = {
    f"{order}, {title}, {label}": (
        lambda order=order, kind=kind, backend=backend, sizes=sizes: case(
            order, kind, backend, *sizes
        )
    )
    for title, kind, sizes in (
        *((f"graph of {n} nodes, {e} edges", on_graph, (n, e)) for n, e in SIZES),
        *((f"{e} rows", over_rows, (e,)) for _, e in SIZES),
    )
    for order in ("forward", "backward")
    for label, backend in BACKENDS.items()
}


@functools.cache
def _difference(rows: bool) -> float:
    spec = {"x": FEATURES, "y": HARMONICS, "on_graph": not rows, "gated": not rows}
    return interpreted.check_fused({**spec, "out": FEATURES if rows else GATED})


def parity(name: str) -> float:
    """Return the difference of both orders from e3nn-jax, in Triton's interpreter."""
    return _difference("rows" in name)
