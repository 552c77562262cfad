"""A trained network for some of its elements: fewer parameters, the same predictions."""

import numpy as np
from ase.data import chemical_symbols

from eqfuse.train.run.checkpoint import module_of
from eqfuse.train.settings.schema import ConfigError


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
    keep = np.array([metadata["species"].index(z) for z in elements])
    potential, params = module_of(metadata, None).narrow(params, keep)
    references = metadata["reference_energies"]
    return params, {
        **metadata,
        "model_fields": {n: _plain(getattr(potential.model, n)) for n in metadata["model_fields"]},
        "potential": potential.to_plain(),
        "species": list(elements),
        "reference_energies": {str(z): references[str(z)] for z in elements},
    }


def _plain(value):
    """Return a setting of a model as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
