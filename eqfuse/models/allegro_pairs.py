"""What Allegro's latents begin with: the species and the distance of two atoms."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from eqfuse.models.irreps import require_positive
from eqfuse.models.mlp import Kernels, dense, normalized
from eqfuse.models.radial_table import Pairs, Point, RadialTable, kept, recorded

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


def two_body_latents(network, basis, envelope, lengths, species, edges) -> jax.Array:
    """Return the latents of the two atoms of each edge, [n_edges, latent_dim].

        x_ij = u_ij MLP(z_i, z_j, B_ij), or MLP of an embedding of the pair, which vanishes with it

    Args:
      network: a `eqfuse.models.Allegro`, whose parameters are here.
      basis: radial basis, [n_edges, num_bessel], zero at the cutoff and for padding; or a
        `RadialTable` of all pairs of species, (receiver, sender) in the order of rows.
      envelope: u, [n_edges].
      lengths: [n_edges] Å; the cutoff or more for padding.
      species: [n_nodes] int32.
      edges: `eqfuse.ops.Edges`.
    """
    embed = _pair_embedding(network, basis)
    count, width = network.two_body_layers, network.two_body_hidden
    widths = [width or max(1, network.latent_dim >> k) for k in reversed(range(1, count))]
    like = jax.ShapeDtypeStruct((1, _columns(network)), basis.dtype)
    *hidden, last = Kernels((*widths, network.latent_dim), name="two_body")(like)
    act = normalized(jax.nn.silu)

    def before_last(point: Point, backend):
        centers, neighbors = jnp.divmod(point.pairs, network.num_species)
        x = embed(point, centers, neighbors, backend)
        for kernel in hidden:
            x = act(dense(x, kernel.astype(x.dtype), backend))
        return x

    def with_envelope(x, envelope):  # or else it vanishes with the embedding
        return envelope[:, None] * x if network.two_body == "concatenate" else x

    if not isinstance(basis, RadialTable):
        pairs = pairs_of(network, species, edges).index
        x = before_last(Point(basis, envelope, lengths, pairs), network.backend)
        x = dense(x, last, network.backend)
        return recorded(network, with_envelope(x, envelope))

    def make():
        return basis.table(
            lambda point: with_envelope(before_last(point, "xla"), point.envelope), last
        )

    return recorded(network, *basis.of_edges([kept(network, "two_body_table", make)]))


def pairs_of(network, species, edges) -> Pairs:
    """Return the pair of species of each edge, (receiver, sender)."""
    count = network.num_species
    return Pairs(species[edges.receivers] * count + species[edges.senders], count**2)


def _columns(network) -> int:
    """Return the number of columns of what the first MLP reads."""
    if network.two_body == "concatenate":
        return 2 * network.num_species + network.num_bessel
    return network.embedding_dim or network.latent_dim


def _pair_embedding(network, basis) -> Callable:
    """Return a function of a `Point`, species of both atoms and backend: what the MLP reads."""
    count, size = network.num_species, network.embedding_dim or network.latent_dim
    if network.two_body == "concatenate":

        def concatenate(point, centers, neighbors, backend):
            z = jnp.eye(count, dtype=point.basis.dtype)
            return jnp.concatenate([z[centers], z[neighbors], point.basis], axis=1)

        return concatenate
    if network.two_body == "spline":
        shape = (count, count, size, network.num_splines)
        init = nn.initializers.normal(1 / math.sqrt(max(network.spline_span, 1)))
        table = network.param("spline", init, shape, basis.dtype)

        def spline(point, centers, neighbors, backend):
            x = point.lengths / network.cutoff
            bumps = spline_basis(x, network.num_splines, network.spline_span)
            of_pairs = table.astype(bumps.dtype)[centers, neighbors]
            return jax.lax.dot_general(of_pairs, bumps, (((2,), (1,)), ((0,), (0,))))

        return spline
    init = nn.initializers.normal(1.0)
    first, second = (
        network.param(name, init, (count, size // 2), basis.dtype)
        for name in ("center", "neighbor")
    )
    like = jax.ShapeDtypeStruct((1, network.num_bessel), basis.dtype)
    [kernel] = Kernels((size,), name="radial")(like)

    def product(point, centers, neighbors, backend):
        dtype = point.basis.dtype
        of_species = first.astype(dtype)[centers], second.astype(dtype)[neighbors]
        radial = dense(point.basis, kernel.astype(dtype), backend)
        return jnp.concatenate(of_species, axis=1) * radial

    return product


def check_pairs(network):
    """Refuse settings of `two_body_latents` that are out of range.

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
