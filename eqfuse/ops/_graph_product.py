"""`graph_tensor_product`: gather, product, weights and sum to the receivers in one kernel."""

import functools

from eqfuse.ops import _reference
from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import Edges, check_edges
from eqfuse.ops._tensor_product import (
    are_irreps,
    graph_operands,
    irreps_filter,
    normalization,
    summed_product,
    tensor_product,
)
from eqfuse.ops.ir import products
from eqfuse.ops.primitives.choice import refuse, resolve_fused, unsupported_product_reason


def graph_tensor_product(
    x,
    y,
    weights=None,
    edges: Edges | None = None,
    *,
    filter_ir_out=None,
    irrep_normalization: str | None = None,
    regroup_output: bool = True,
    backend: str | None = None,
    fused: str | None = None,
):
    """Multiply node and edge features, weight the products and sum them to the receivers.

        out[n] = sum over edges e with receivers[e] = n:  weights[e] * (x[senders[e]] (x) y[e])

    On a GPU this is one kernel, and its backward pass one (two or three in float64, or for l = 3),
    and no product of an edge is in memory; sums repeat bit for bit, unless EQFUSE_DETERMINISTIC is
    0. Where x and y both have several channels, XLA sums products in memory, in any order.

    Args:
      x: node features, IrrepsArray [num_nodes, irreps_x]; or irreps, to get those of the output.
      y: edge features, IrrepsArray [n_edges, irreps_y], or [1, irreps_y] for all edges.
      weights: [n_edges, irreps_out.num_irreps], one number for each irrep of the product of
        `e3nn.tensor_product`, in its order; either axis may be 1; None for no weights. A GPU reads
        bfloat16 beside float32 as such and sums in float32: so rounded, 2e-3 (rms) is lost.
      edges: who sends to whom.
      filter_ir_out, irrep_normalization, regroup_output: as in `tensor_product`.
      backend: as in `tensor_product`.
      fused: "auto" and "always" are the above, and "always" refuses what is written to memory.
        "never" does one after the other. See `eqfuse.ops.resolve_fused`.
    Returns:
      IrrepsArray [num_nodes, irreps_out] of the promoted dtype, accumulated in float32 or better;
      the Irreps of the output if irreps were given.
    Raises:
      ValueError: no edges; shapes that do not fit the edges or the irreps, naming both; a backend
        that cannot run here; an unknown normalisation.
    References: Batzner et al. 2022, eq. 9 (the convolution of NequIP).

    Example:
      >>> edges = ops.Edges.from_arrays([0, 1, 2], [1, 2, 1], num_nodes=3)  # 0 -> 1, 1 -> 2, 2 -> 1
      >>> x, y = e3nn.IrrepsArray("0e", 1.0 + jnp.c_[:3]), e3nn.IrrepsArray("1o", jnp.eye(3))
      >>> ops.graph_tensor_product(x, y, edges=edges).array
      Array([[0., 0., 0.],
             [1., 0., 3.],
             [0., 2., 0.]], dtype=float32)
    """
    check_edges(edges, weights)
    backend = resolve(backend, "" if are_irreps(x, y) else "graph_tensor_product", x, y, weights)
    mode = resolve_fused(fused)
    options = {
        "filter_ir_out": irreps_filter(filter_ir_out),
        "irrep_normalization": normalization(irrep_normalization),
        "regroup_output": regroup_output,
    }
    if are_irreps(x, y):
        return tensor_product(x, y, backend="xla", **options)
    x, y, weights = graph_operands(x, y, weights, edges, options, backend)
    if backend == "e3nn":
        refuse(mode, "backend 'e3nn' computes op by op")
        return _reference.graph_tensor_product(x, y, weights, edges, **options)
    product = products.tensor_product(
        x.irreps,
        y.irreps,
        filter_ir_out=options["filter_ir_out"],
        normalization=options["irrep_normalization"],
        regroup=regroup_output,
        weighted=weights is not None,
        zero_x=x.zero_flags,
        zero_y=y.zero_flags,
        on_graph=True,
        unroll=backend == "llvm",
    )
    refuse(mode, unsupported_product_reason(product, backend))
    messages = functools.partial(tensor_product, backend=backend, **options)
    apart = bool(product.repeated) or mode == "never"
    return summed_product(product, x, y, weights, edges, messages if apart else None, backend)
