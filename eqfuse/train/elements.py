"""A trained network for other elements: some of its own, or more that it does not know."""

import numpy as np
from ase.data import chemical_symbols

from eqfuse.models.pairs import radii_of
from eqfuse.train.run.checkpoint import module_of
from eqfuse.train.settings.schema import ConfigError

_PERIODS = (1, 3, 11, 19, 37, 55, 87)
"""The first element of each period."""


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
            "these frames out, let them begin as a similar element (elements=add), start from a "
            "network that knows them, or train a new network on data with all elements (without "
            "start_from=)"
        )


def of_elements(params: dict, metadata: dict, elements) -> tuple[dict, dict]:
    """Return a network for other elements.

    Predictions of the elements that it knows are the same. One that it does not know begins with
    the weights and the reference energy of the most similar one that it knows, see `similar`.

    Args:
      params: its variables, numpy arrays.
      metadata: of its checkpoint.
      elements: sorted atomic numbers.
    Returns:
      params and metadata of the network for these elements.
    """
    known = metadata["species"]
    sources = [z if z in known else similar(z, known) for z in elements]
    keep = np.array([known.index(z) for z in sources])
    potential, params = module_of(metadata, None).narrow(params, keep)
    references = metadata["reference_energies"]
    fields = {n: _plain(getattr(potential.model, n)) for n in metadata["model_fields"]}
    settings = potential.to_plain()
    for owner in (fields, settings["repulsion"] or {}):
        if owner.get("covalent_radii") is not None:
            new = dict(zip(elements, radii_of(elements), strict=True))
            radii = zip(elements, owner["covalent_radii"], strict=True)
            owner["covalent_radii"] = [r if z in known else new[z] for z, r in radii]
        if owner.get("atomic_numbers") is not None:
            owner["atomic_numbers"] = list(elements)
    return params, {
        **metadata,
        "model_fields": fields,
        "potential": settings,
        "species": list(elements),
        "reference_energies": {
            str(z): references[str(source)] for z, source in zip(elements, sources, strict=True)
        },
    }


def similar(z: int, known) -> int:
    """Return the known element that is most like another one: of its group, then near in number.

    Args:
      z: atomic number of the other one.
      known: atomic numbers.
    """
    return min(known, key=lambda other: (_group(other) != _group(z), abs(other - z), other))


def _group(z: int) -> int:
    """Return the group of the periodic table, 1 to 18; less for lanthanides and actinides."""
    start = max(first for first in _PERIODS if first <= z)
    length = dict(zip(_PERIODS, np.diff([*_PERIODS, 119]), strict=True))[start]
    place = z - start
    return place + 1 if (place < 2 and length > 2) or place == 0 else int(18 - (length - place - 1))


def _plain(value):
    """Return a setting of a model as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
