"""What NequIP knows of an edge, with the choices that published networks make differently."""

import math
from collections.abc import Callable

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp

from eqfuse.models.radial import (
    bessel_basis,
    lengths_and_directions,
    polynomial_cutoff,
    spherical_harmonics,
)
from eqfuse.models.radial_table import RadialTable, radial_basis

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


def nequip_edges(
    network, vectors, species, edges
) -> tuple[e3nn.IrrepsArray, jax.Array | RadialTable]:
    """Return spherical harmonics and the radial basis of each edge, as the settings say.

    Args:
      network: a `eqfuse.models.NequIP`, whose parameter `frequencies` are the Bessel functions'
        with `trainable_bessel`.
      vectors: [n_edges, 3] Å, of zero length for padding.
      species: [n_nodes] int32.
      edges: `eqfuse.ops.Edges`.
    Returns:
      IrrepsArray [n_edges, 0e + 1o + ...] (even irreps with `so3`), and [n_edges, num_bessel],
      or a table in its place, see `radial_choice.choose`.
    """
    cutoff = network.cutoff
    lengths, directions, real = lengths_and_directions(vectors)
    bessel = network_bessel(network, lengths.dtype)

    def function(lengths, _):
        if network.cutoff_function == "xplor":
            envelope = xplor_cutoff(lengths, network.cutoff_onset, cutoff)
        else:
            envelope = polynomial_cutoff(lengths, cutoff, network.poly_power)
        return bessel(lengths) * envelope[:, None], envelope

    breaks = (network.cutoff_onset, cutoff) if network.cutoff_function == "xplor" else (cutoff,)
    reduced = reduced_lengths(network, lengths, species, edges)
    basis, _ = radial_basis(network, reduced, real, function, breaks)
    assert basis.shape == (vectors.shape[0], network.num_bessel), basis.shape
    sh = spherical_harmonics(directions, range(network.lmax + 1))
    if network.solid_harmonics:
        powers = [lengths[:, None] ** ir.l * jnp.ones(ir.dim, sh.dtype) for _, ir in sh.irreps]
        sh = e3nn.IrrepsArray(sh.irreps, sh.array * jnp.concatenate(powers, axis=1))
    if network.so3:
        sh = e3nn.IrrepsArray([(mul, (ir.l, 1)) for mul, ir in sh.irreps], sh.array)
    return sh, basis


def reduced_lengths(network, lengths, species, edges) -> jax.Array:
    """Return lengths as if the cutoff of each pair of species were that of the network.

    Args:
      network: with `cutoff` and `pair_cutoffs`.
      lengths: [n_edges] Å.
      species, edges: see `nequip_edges`.
    """
    if network.pair_cutoffs is None:
        return lengths
    table = jnp.asarray(network.pair_cutoffs, lengths.dtype) / network.cutoff
    return lengths / table[species[edges.receivers], species[edges.senders]]


def network_bessel(network, dtype) -> Callable[[jax.Array], jax.Array]:
    """Return the Bessel functions of a network, whose frequencies may be parameters.

    Args:
      network: with `cutoff`, `num_bessel` and `trainable_bessel`.
      dtype: of the parameters.
    Returns:
      A function of lengths [n] Å, in any precision, to [n, num_bessel].
    """
    cutoff, count = network.cutoff, network.num_bessel
    if not network.trainable_bessel:
        return lambda lengths: bessel_basis(lengths, count, cutoff)

    def init(_):
        return jnp.arange(1, count + 1, dtype=dtype) * (math.pi / cutoff)

    frequencies = network.param("frequencies", init)

    def functions(lengths):
        lengths = lengths[:, None]
        waves = jnp.sin(frequencies.astype(lengths.dtype) * lengths)
        return math.sqrt(2 / cutoff) * waves / lengths

    return functions


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
    check_species_settings(network)


def check_species_settings(network):
    """Refuse numbers of neighbours and cutoffs that do not fit the species.

    Raises:
      ValueError: the first that does not, by its name.
    """
    counts = network.species_neighbors
    if counts is not None and (len(counts) != network.num_species or min(counts) <= 0):
        raise ValueError(
            f"species_neighbors must be {network.num_species} positive numbers, got {counts}"
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
