"""Settings and parameters of each species, and networks for some of their species."""

import jax
import jax.numpy as jnp


def take_species(params: dict, keep, names: tuple[str, ...]) -> dict:
    """Return parameters of the species `keep` [n] only.

    The first axis of the named parameters, or of those in the named modules, counts the species.
    """

    def taken(path, leaf):
        return leaf[keep] if any(key.key in names for key in path) else leaf

    return jax.tree.map_with_path(taken, params)


def take(values, keep) -> tuple | None:
    """Return the settings of some species, of one setting for each; None for None."""
    return None if values is None else tuple(values[k] for k in keep)


def narrow_settings(network, keep) -> dict:
    """Return the settings of a network that count its species, for some of them."""
    cutoffs = take(network.pair_cutoffs, keep)
    return {
        "num_species": len(keep),
        "pair_cutoffs": cutoffs and tuple(take(row, keep) for row in cutoffs),
        "species_neighbors": take(network.species_neighbors, keep),
    }


def reduced_lengths(network, lengths, species, edges) -> jax.Array:
    """Return lengths as if the cutoff of each pair of species were that of the network."""
    if network.pair_cutoffs is None:
        return lengths
    table = jnp.asarray(network.pair_cutoffs, lengths.dtype) / network.cutoff
    return lengths / table[species[edges.receivers], species[edges.senders]]


def check_species_settings(network):
    """Refuse numbers of neighbours and cutoffs that do not fit the species."""
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
