"""What Allegro's latents begin with: the species and the distance of two atoms."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.models.irreps import require_positive
from eqfuse.models.mlp import MLP

TWO_BODY = ("concatenate", "product", "spline")


def spline_basis(x: jax.Array, count: int, span: int) -> jax.Array:
    """Return bumps on a grid, which are zero at 1 and beyond, with three derivatives.

        b_k(x) = (1 - cos(2 pi (x - l_k) / w))^2 / 4    for 0 < x - l_k < w

    with the width w = (span + 1) / count and the left ends l_k = (k - span) / count.

    Args:
      x: [n_edges] distances in units of the cutoff.
      count, span: number of bumps, and how many others each one overlaps with on its right.
    Returns:
      [n_edges, count].
    References: Tan et al. 2025, arXiv:2504.16068; nequip-allegro 0.8.
    """
    width = (span + 1) / count
    lower = (jnp.arange(count, dtype=x.dtype) - span) / count
    within = jnp.clip(x[:, None] - lower, 0, width)
    return (1 - jnp.cos(2 * math.pi / width * within)) ** 2 / 4


def embed_pairs(network, basis, lengths, species, edges) -> jax.Array:
    """Return what the first MLP reads of each edge, as `two_body` says, [n_edges, columns].

    Args:
      network: a `eqfuse.models.Allegro`, whose parameters are here.
      basis: radial basis, [n_edges, num_bessel], zero at the cutoff and for padding.
      lengths: [n_edges] in units of the cutoff; one or more for padding.
      species: [n_nodes] int32.
      edges: `eqfuse.ops.Edges`.
    """
    centers, neighbors = species[edges.receivers], species[edges.senders]
    count, size = network.num_species, network.embedding_dim or network.latent_dim
    if network.two_body == "concatenate":
        z = jax.nn.one_hot(species, count, dtype=basis.dtype)
        return jnp.concatenate([z[edges.receivers], z[edges.senders], basis], axis=1)
    if network.two_body == "spline":
        shape = (count, count, size, network.num_splines)
        init = nn.initializers.normal(1 / math.sqrt(max(network.spline_span, 1)))
        table = network.param("spline", init, shape, basis.dtype)
        bumps = spline_basis(lengths, network.num_splines, network.spline_span)
        return jnp.einsum("edk,ek->ed", table[centers, neighbors], bumps)
    init = nn.initializers.normal(1.0)
    tables = [
        network.param(name, init, (count, size // 2), basis.dtype)[of]
        for name, of in (("center", centers), ("neighbor", neighbors))
    ]
    radial = MLP((size,), None, network.backend, name="radial")(basis)
    return jnp.concatenate(tables, axis=1) * radial


def check_pairs(network):
    """Refuse settings of `embed_pairs` that are out of range.

    Raises:
      ValueError: the first that is, by its name.
    """
    if network.two_body not in TWO_BODY:
        known = ", ".join(TWO_BODY)
        raise ValueError(f"two_body must be one of {known}, got {network.two_body!r}")
    size = network.embedding_dim or network.latent_dim
    if network.two_body == "product" and size % 2:
        raise ValueError(f"two_body='product' needs an even embedding_dim, got {size}")
    if network.two_body == "spline":
        require_positive(num_splines=network.num_splines)
        if not 0 <= network.spline_span <= network.num_splines:
            raise ValueError(
                f"spline_span must be between 0 and num_splines, {network.num_splines}, got "
                f"{network.spline_span}"
            )
