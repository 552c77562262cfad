"""A trained network for some of its elements: fewer parameters, the same predictions."""

import jax
import numpy as np
from ase.data import chemical_symbols

from eqfuse.train.settings.settings import ConfigError

_BY_SPECIES = ("embedding", "contraction", "skip", "species_linear", "scale", "shift")
"""Parameters, or parts of the network, whose first axis are the species."""


def check_elements(needed, species) -> None:
    """Refuse elements that a trained network does not know.

    Args:
      needed: atomic numbers of the data.
      species: those of the network.
    Raises:
      ConfigError: naming them, and what to do.
    """
    if unknown := sorted(set(needed) - set(species)):
        names = ", ".join(chemical_symbols[z] for z in unknown)
        raise ConfigError(
            f"the data have {names}, for which the network of start_from= has no weights; leave "
            "these frames out, start from a network that knows them, or train a new network on "
            "data with all elements (without start_from=)"
        )


def of_elements(params: dict, metadata: dict, elements) -> tuple[dict, dict]:
    """Return a network for some of its elements.

    Args:
      params: its variables, numpy arrays.
      metadata: of its checkpoint.
      elements: sorted atomic numbers, all of which it knows.
    Returns:
      params and metadata of the smaller network; the predictions of these elements are the same.
    """
    species = list(metadata["species"])
    elements = list(elements)
    if elements == species:
        return params, metadata
    keep = np.array([species.index(z) for z in elements])
    params = jax.tree.map_with_path(
        lambda path, leaf: _kept([key.key for key in path], leaf, keep, len(species)), params
    )
    potential = dict(metadata["potential"])
    potential |= {name: _chosen(potential[name], keep) for name in ("scale", "shift")}
    if potential.get("repulsion") is not None:
        potential["repulsion"] = _with_elements(potential["repulsion"], keep)
    references = metadata["reference_energies"]
    fields = _with_elements(metadata["model_fields"], keep)
    return params, {
        **metadata,
        "model_fields": {**fields, "num_species": len(elements)},
        "potential": potential,
        "species": elements,
        "reference_energies": {str(z): references[str(z)] for z in elements},
    }


def _chosen(values, keep) -> list:
    return [values[k] for k in keep]


def _with_elements(fields: dict, keep) -> dict:
    """Return settings with those of the elements that are kept, where they are by element."""
    names = ("atomic_numbers", "covalent_radii")
    chosen = {n: _chosen(fields[n], keep) for n in names if fields.get(n) is not None}
    return {**fields, **chosen}


def _kept(path: list[str], leaf, keep, count: int):
    if path[-3:] == ["two_body", "Dense_0", "kernel"]:  # Allegro: both elements one-hot, then B
        rows = np.concatenate([keep, count + keep, np.arange(2 * count, len(leaf))])
        # a dense layer divides by the square root of its rows
        return (leaf[rows] * np.sqrt(len(rows) / len(leaf))).astype(leaf.dtype)
    return leaf[keep] if any(name in _BY_SPECIES for name in path) else leaf
