"""The ops by definition, e3nn-jax only: backend "e3nn" runs this and the others must equal it."""

import e3nn_jax as e3nn


def graph_tensor_product(
    x, y, weights, edges, *, filter_ir_out=None, irrep_normalization=None, regroup_output=True
):
    """Gather, tensor product, weights, sum to receivers; see `eqfuse.ops.graph_tensor_product`."""
    messages = e3nn.tensor_product(
        x[edges.senders],
        y,
        filter_ir_out=filter_ir_out,
        irrep_normalization=irrep_normalization,
        regroup_output=regroup_output,
    )  # [n_edges, irreps_out]
    if weights is not None:
        messages = messages * weights
    return e3nn.scatter_sum(messages, dst=edges.receivers, output_size=edges.num_nodes)
