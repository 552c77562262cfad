"""Networks of random parameters, to time what nothing has trained."""

import jax

from eqfuse import models
from eqfuse.convert.converted import Converted
from eqfuse.data import Shape, collate


def random_network(model: str, fields: dict, numbers, *, dtype="float64", seed=0) -> Converted:
    """Return a network with random parameters, scales of 1 and energies of 0, for `write_run`.

    Args:
      model: its name.
      fields: its settings, see `eqfuse.models.build`.
      numbers: sorted atomic numbers of its elements.
    """
    network = models.build(model, **fields)
    with jax.enable_x64(True):
        graph = collate([], Shape(2, 2, 1), "float64").graph
        given = jax.random.key(seed), graph.vectors, graph.species, graph.edges
        params = jax.device_get(jax.jit(network.init)(*given)["params"])
    ones, references = (1.0,) * len(numbers), dict.fromkeys(numbers, 0.0)
    return Converted("eqfuse", model, fields, params, ones, ones, references, dtype)
