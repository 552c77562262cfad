"""The ops by definition, e3nn-jax only: backend "e3nn" runs this and the others must equal it."""

import e3nn_jax as e3nn
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.products import symmetric_basis


def tensor_product(x, y, *, scalar_first: bool = False, **options) -> e3nn.IrrepsArray:
    """Compute `e3nn.tensor_product`; `scalar_first`: what y's leading scalar gives is first."""
    if not scalar_first:
        return e3nn.tensor_product(x, y, **options)
    scalar, rest = y.slice_by_mul[:1], y.slice_by_mul[1:]
    parts = [e3nn.tensor_product(x, part, **options) for part in (scalar, rest)]
    return e3nn.concatenate(parts).regroup()


def graph_tensor_product(x, y, weights, edges, **options):
    messages = tensor_product(x[edges.senders], y, **options)  # [n_edges, irreps_out]
    if weights is not None:
        messages = messages * weights
    out = e3nn.scatter_sum(messages, dst=edges.receivers, output_size=edges.num_nodes)
    return edges.of_receivers(out)


def channelwise_tensor_product(x, y, edges, weights=None, *, filter_ir_out, irrep_normalization):
    if edges is not None:
        y = y[edges.receivers]
    pairs = [(i, j) for i in range(len(x.irreps)) for j in range(len(y.irreps))]
    if not pairs:
        shape = jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1])
        return e3nn.IrrepsArray("", jnp.zeros((*shape, 0), x.dtype))
    left, right = (
        e3nn.concatenate([a[..., a.irreps.slices()[k]] for k in which])
        for a, which in zip((x, y), zip(*pairs, strict=True), strict=True)
    )
    product = e3nn.elementwise_tensor_product(
        left, right, filter_ir_out=filter_ir_out, irrep_normalization=irrep_normalization
    )
    product = product.regroup()
    if weights is None:
        return product
    mul = x.irreps[0].mul
    weighted = product * weights
    chunks = [
        chunk.reshape(-1, chunk.shape[-2] // mul, mul, chunk.shape[-1]).sum(1)
        for chunk in map(jnp.asarray, weighted.chunks)
    ]
    irreps = e3nn.Irreps([(mul, ir) for _, ir in product.irreps])
    return e3nn.from_chunks(irreps, chunks, product.shape[:-1], product.dtype)


def symmetric_contraction(x, weights, irreps_out, correlation: int):
    """Sum products of x through e3nn's basis with weights [..., paths, channels]."""
    channels = x.mul_to_axis()  # [..., u, irreps]
    irs = [ir for _, ir in channels.irreps]
    chunks = []
    for mul, ir in irreps_out:
        chunk = jnp.zeros((*x.shape[:-1], mul, ir.dim), x.dtype)
        for degree in range(1, correlation + 1):
            basis = symmetric_basis(irs, ir, degree).astype(x.dtype)  # [d, ..., d, p x ir]
            letters = "abcdefgh"[:degree]
            factors = ",".join(f"...u{letter}" for letter in letters)
            products = jnp.einsum(
                f"{letters}k,{factors}->...uk", basis.array, *[channels.array] * degree
            )
            count = basis.irreps.num_irreps
            products = products.reshape(*products.shape[:-1], count, ir.dim)  # [..., u, p, ir]
            w, weights = weights[..., :count, :], weights[..., count:, :]
            chunk += jnp.einsum("...pu,...upk->...uk", w, products)
        chunks.append(chunk)
    return e3nn.from_chunks(irreps_out, chunks, x.shape[:-1], x.dtype)


def spread(weights, irreps: e3nn.Irreps, keep):
    """Return weights of the irreps that are kept as weights of all, zero for the others."""
    kept = np.concatenate([[ir in keep] * mul for mul, ir in irreps] + [np.zeros(0, bool)])
    whole = jnp.zeros((weights.shape[0], irreps.num_irreps), weights.dtype)
    return whole.at[:, kept.astype(bool)].set(weights)
