"""`channelwise_tensor_product`: blocks of one multiplicity, each with each, channel by channel."""

import functools

import e3nn_jax as e3nn
import jax.numpy as jnp

from eqfuse.ops import _reference
from eqfuse.ops._backend import resolve
from eqfuse.ops._edges import Edges, check_edges
from eqfuse.ops._tensor_product import (
    are_irreps,
    evaluate_rows,
    irreps_filter,
    normalization,
    operands,
)
from eqfuse.ops.ir import channelwise
from eqfuse.ops.primitives import forms


def channelwise_tensor_product(
    x,
    y,
    edges: Edges | None = None,
    *,
    weights=None,
    filter_ir_out=None,
    irrep_normalization: str | None = None,
    backend: str | None = None,
):
    """Multiply matching channels of every block of x with every block of y.

        out[..., u, k] = sum over i, j:  cg[i, j, k] * x[..., u, i] * y[..., u, j]

    `elementwise_tensor_product` joins the first block of x with the first of y, the second with the
    second; here all pairs are joined, as in `tensor_product`. On a graph, with `edges`, x is a
    feature of edges and y one of nodes, read at the receiver of the edge: nothing of the size of
    edges times irreps_y is written to memory.

    Args:
      x: IrrepsArray [..., irreps_x]; on a graph [n_edges, irreps_x]; or irreps, to get those of
        the output.
      y: IrrepsArray [..., irreps_y], whose irreps have the multiplicity of those of x; on a graph
        [num_nodes, irreps_y].
      edges: makes it a product on a graph.
      weights: on a graph, [irreps_out.num_irreps], a number for each channel of each pair of
        blocks; then the products of an irrep are multiplied with them and added: a block of each
        irrep is left. None for no weights.
      filter_ir_out: irreps to keep; None keeps all.
      irrep_normalization: "component" (default of e3nn-jax), "norm" or "none".
      backend: "triton", "llvm", "xla", "e3nn", "triton-interpret", or None: by device.
    Returns:
      IrrepsArray [..., irreps_out], sorted and merged, of the promoted dtype, accumulated in
      float32 or better; the Irreps of the output, without weights, if irreps were given.
    Raises:
      ValueError: multiplicities that differ, shapes that do not fit, weights without edges, a
        backend that cannot run here, edges that are not `Edges`, or an unknown normalisation.
    References: Musaelian et al. 2023 (the tensor product of Allegro); Tan et al. 2025,
      arXiv:2504.16068 (with weights); e3nn-jax 0.21.
    """
    check_edges(edges)
    op = "" if are_irreps(x, y) else "channelwise_tensor_product"
    backend = resolve(backend, op, x, y, weights)
    filter_ir_out = irreps_filter(filter_ir_out)
    irrep_normalization = normalization(irrep_normalization)
    build = functools.partial(
        channelwise.channelwise_tensor_product,
        filter_ir_out=filter_ir_out,
        normalization=irrep_normalization,
    )
    if are_irreps(x, y):
        return build(e3nn.Irreps(x), e3nn.Irreps(y)).irreps_out
    x, y = operands("channelwise_tensor_product", x, y)
    if weights is not None:
        x, y, weights = _check_weights(x, y, weights, edges, build(x.irreps, y.irreps).irreps_out)
    product = build(
        x.irreps,
        y.irreps,
        zero_x=x.zero_flags,
        zero_y=y.zero_flags,
        on_graph=edges is not None,
        weighted=weights is not None,
    )
    if edges is not None:
        check_receivers(x, y, edges)
    if backend == "e3nn":
        options = {"filter_ir_out": filter_ir_out, "irrep_normalization": irrep_normalization}
        return _reference.channelwise_tensor_product(x, y, edges, weights, **options)
    if edges is None:
        return evaluate_rows(product, x, y, backend)
    arrays = [x.array, y.array] + ([] if weights is None else [weights[None]])
    [out] = forms.evaluate(product.form, arrays, edges, backend=backend)
    return e3nn.IrrepsArray(product.irreps_out, out, zero_flags=product.zero_flags)


def _check_weights(x, y, weights, edges, irreps: e3nn.Irreps):
    """Return x, y and weights of one dtype; `irreps` are those of the product without weights.

    Raises:
      ValueError: weights without edges, or of another shape.
    """
    if edges is None:
        raise ValueError("weights are for a product on a graph, with edges")
    weights = jnp.asarray(weights)
    if weights.shape != (irreps.num_irreps,):
        raise ValueError(
            f"weights must be [{irreps.num_irreps} irreps of {irreps}], got shape {weights.shape}"
        )
    dtype = jnp.result_type(x.dtype, weights.dtype)
    return x.astype(dtype), y.astype(dtype), weights.astype(dtype)


def check_receivers(x, y, edges: Edges):
    """Refuse features x that are not of the edges, or y that are not of their nodes.

    Raises:
      ValueError: x or y of another shape, naming it.
    """
    if x.shape[:-1] != (edges.num_edges,):
        raise ValueError(f"x must be [{edges.num_edges} edges, {x.irreps}], got shape {x.shape}")
    if y.shape[:-1] != (edges.num_nodes,):
        raise ValueError(f"y must be [{edges.num_nodes} nodes, {y.irreps}], got shape {y.shape}")
