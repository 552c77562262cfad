"""A network for some of its species: which of its numbers are those of a species."""

import jax


def take_species(params: dict, keep, names: tuple[str, ...]) -> dict:
    """Return parameters without those of the species that go.

    Args:
      params: parameters of a network, nested dicts.
      keep: [n] numbers of the species that stay.
      names: parameters, or modules above them, whose first axis counts the species.
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
