"""What NequIP knows of an edge, with the choices that published networks make differently."""

import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse.models.radial import (
    bessel_basis,
    lengths_and_directions,
    polynomial_cutoff,
    spherical_harmonics,
)

CUTOFF_FUNCTIONS = ("polynomial", "xplor")


def xplor_cutoff(lengths: jax.Array, onset: float, cutoff: float) -> jax.Array:
    """Return what is 1 up to an onset and falls to 0 at the cutoff, with one continuous derivative.

        u(d) = (c^2 - d^2)^2 (c^2 + 2 d^2 - 3 o^2) / (c^2 - o^2)^3    for o < d < c

    Args:
      lengths: d, [n_edges] Å.
      onset: o, Å.
      cutoff: c, Å.
    References: SevenNet (Park et al. 2024, J. Chem. Theory Comput. 20, 4857); HOOMD-blue's XPLOR.
    """
    on, cut, squares = onset**2, cutoff**2, lengths**2
    tail = (cut - squares) ** 2 * (cut + 2 * squares - 3 * on) / (cut - on) ** 3
    return jnp.where(lengths < onset, 1, jnp.where(lengths < cutoff, tail, 0))


def nequip_edges(network, vectors, species, edges) -> tuple[e3nn.IrrepsArray, jax.Array]:
    """Return spherical harmonics and the radial basis of each edge, as the settings say.

    Args:
      network: a `eqfuse.models.NequIP`, whose parameter `frequencies` are the Bessel functions'
        with `trainable_bessel`.
      vectors: [n_edges, 3] Å, of zero length for padding.
      species: [n_nodes] int32.
      edges: `eqfuse.ops.Edges`.
    Returns:
      IrrepsArray [n_edges, 0e + 1o + ...] (even irreps with `so3`), and [n_edges, num_bessel].
    """
    cutoff, count = network.cutoff, network.num_bessel
    lengths, directions, real = lengths_and_directions(vectors)
    reduced = lengths
    if network.pair_cutoffs is not None:  # as if the cutoff were that of the pair
        table = jnp.asarray(network.pair_cutoffs, lengths.dtype) / cutoff
        reduced = lengths / table[species[edges.receivers], species[edges.senders]]
    basis = _bessel(network, reduced)
    if network.cutoff_function == "xplor":
        envelope = xplor_cutoff(reduced, network.cutoff_onset, cutoff)
    else:
        envelope = polynomial_cutoff(reduced, cutoff, network.poly_power)
    basis = basis * jnp.where(real, envelope, 0)[:, None]
    assert basis.shape == (len(vectors), count), basis.shape
    sh = spherical_harmonics(directions, range(network.lmax + 1))
    if network.solid_harmonics:
        powers = [lengths[:, None] ** ir.l * jnp.ones(ir.dim, sh.dtype) for _, ir in sh.irreps]
        sh = e3nn.IrrepsArray(sh.irreps, sh.array * jnp.concatenate(powers, axis=1))
    if network.so3:
        sh = e3nn.IrrepsArray([(mul, (ir.l, 1)) for mul, ir in sh.irreps], sh.array)
    return sh, basis


def _bessel(network, lengths):
    """Return Bessel functions, [n_edges, num_bessel], whose frequencies may be parameters."""
    cutoff, count = network.cutoff, network.num_bessel
    if not network.trainable_bessel:
        return bessel_basis(lengths, count, cutoff)

    def init(_):
        return jnp.arange(1, count + 1, dtype=lengths.dtype) * (math.pi / cutoff)

    frequencies = network.param("frequencies", init)
    lengths = lengths[:, None]
    return math.sqrt(2 / cutoff) * jnp.sin(frequencies * lengths) / lengths


def check_edge_settings(network):
    """Refuse settings of edges that are out of range.

    Raises:
      ValueError: the first that is, by its name.
    """
    if network.cutoff_function not in CUTOFF_FUNCTIONS:
        known = " or ".join(CUTOFF_FUNCTIONS)
        raise ValueError(f"cutoff_function must be {known}, got {network.cutoff_function!r}")
    onset = network.cutoff_onset
    if network.cutoff_function == "xplor" and not (onset and 0 < onset < network.cutoff):
        raise ValueError(
            f"cutoff_function='xplor' needs a cutoff_onset between 0 and {network.cutoff} Å, got "
            f"{onset}"
        )
    cutoffs = network.pair_cutoffs
    if cutoffs is not None:
        fits = len(cutoffs) == network.num_species and all(
            len(row) == network.num_species and all(0 < c <= network.cutoff for c in row)
            for row in cutoffs
        )
        if not fits:
            raise ValueError(
                f"pair_cutoffs must be {network.num_species} rows of as many cutoffs, positive "
                f"and at most {network.cutoff} Å, got {cutoffs}"
            )
