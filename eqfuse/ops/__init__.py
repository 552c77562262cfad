"""Equivariant operations, drop-in for e3nn-jax."""

from eqfuse.ops import _reference
from eqfuse.ops._backend import BACKENDS, resolve
from eqfuse.ops._edges import Edges

__all__ = ["BACKENDS", "Edges", "graph_tensor_product", "resolve"]


def graph_tensor_product(
    x,
    y,
    weights,
    edges: Edges,
    *,
    filter_ir_out=None,
    irrep_normalization=None,
    regroup_output: bool = True,
    backend: str | None = None,
):
    """Tensor product of node features and edge features, weighted and summed to the receivers.

        out[i] = sum over edges e with receivers[e] = i:  weights[e] * (x[senders[e]] (x) y[e])

    Args:
      x: node features, IrrepsArray [num_nodes, irreps_x].
      y: edge features, IrrepsArray [n_edges, irreps_y].
      weights: [n_edges, irreps_out.num_irreps], one number for each irrep of the product of
        `e3nn.tensor_product`, in its order; None for a product without weights.
      edges: who sends to whom.
      filter_ir_out, irrep_normalization, regroup_output: as in `e3nn.tensor_product`.
      backend: "e3nn", or None to choose by device.
    Returns:
      IrrepsArray [num_nodes, irreps_out].
    Raises:
      ValueError: a backend that is unknown or cannot run here.
    References: Batzner et al. 2022, eq. 9 (the convolution of NequIP).
    """
    resolve(backend)
    return _reference.graph_tensor_product(
        x,
        y,
        weights,
        edges,
        filter_ir_out=filter_ir_out,
        irrep_normalization=irrep_normalization,
        regroup_output=regroup_output,
    )
