"""The weighted graph product of NequIP for `benchmarks.launches`: e3nn-jax beside eqfuse.

    python -m benchmarks.launches graph_product

64 channels, l <= 2, both parities; forward, backward (gradients of x, y and the weights) and double
backward (gradients of those, and of the cotangent), at two sizes.
"""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import interpreted
from benchmarks.gpu.cases import CASES as PRODUCTS
from eqfuse import ops

SIZES = ((135, 2_700), (3_000, 160_000))
BACKENDS = {"e3nn-jax": "e3nn", "eqfuse": "triton"}
PRODUCT = PRODUCTS["nequip-64-l2"]
X, Y = e3nn.Irreps(PRODUCT.irreps_x), e3nn.Irreps(PRODUCT.irreps_y)
OUT = ops.graph_tensor_product(X, Y, filter_ir_out=PRODUCT.filter_ir_out)


def functions(backend: str):
    """Forward, backward and double backward as functions of arrays."""

    def forward(edges, x, y, w):
        x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
        keep = PRODUCT.filter_ir_out
        return ops.graph_tensor_product(x, y, w, edges, filter_ir_out=keep, backend=backend).array

    def backward(edges, x, y, w, dout):
        return jax.vjp(lambda *inputs: forward(edges, *inputs), x, y, w)[1](dout)

    def double(edges, x, y, w, dout, *cotangents):
        return jax.vjp(lambda *inputs: backward(edges, *inputs), x, y, w, dout)[1](cotangents)

    return {"forward": forward, "backward": backward, "double": double}


def arguments(order: str, num_nodes: int, num_edges: int):
    """Return shapes of what `functions` take."""
    index = np.zeros(num_edges, np.int32)
    edges = ops.Edges.from_arrays(index, index, num_nodes)
    edges = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), edges)
    shapes = [(num_nodes, X.dim), (num_edges, Y.dim), (num_edges, OUT.num_irreps)]
    given = {"forward": [], "backward": [(num_nodes, OUT.dim)]}
    given["double"] = given["backward"] + shapes
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes + given[order]]
    return (edges, *arrays)


CASES = {
    f"{order}, {num_nodes} nodes, {num_edges} edges, {name}": (
        lambda order=order, size=(num_nodes, num_edges), backend=backend: (
            functions(backend)[order],
            arguments(order, *size),
        )
    )
    for num_nodes, num_edges in SIZES
    for order in ("forward", "backward", "double")
    for name, backend in BACKENDS.items()
}


@functools.cache
def _difference() -> float:
    return interpreted.check("nequip-64-l2")


def parity(name: str) -> float:
    """Return the difference of the kernels of all orders from e3nn-jax, in Triton's interpreter."""
    return _difference()
