"""Runs of small networks with random parameters, which nothing had to train."""

import dataclasses
import functools

from eqfuse.convert.conversion import write_run
from eqfuse.convert.untrained import random_network
from eqfuse.models.potential import irreps_out

FIELDS = {
    "nequip": {"channels": 4, "layers": 2, "lmax": 1, "radial_hidden": 8},
    "mace": {"channels": 4, "layers": 2, "lmax": 1, "radial_hidden": 8, "correlation": 2},
    "allegro": {"channels": 4, "layers": 2, "lmax": 1, "latent_dim": 8, "latent_hidden": 8},
}


@functools.cache
def _network(model: str, seed: int, fields: tuple):
    fields = dict(fields)
    return random_network(model, fields, range(fields["num_species"]), seed=seed)


def untrained_run(
    folder,
    model: str = "nequip",
    numbers=(13, 29),
    dtype="float64",
    seed: int = 3,
    long_range=None,
    **other,
):
    """Return the folder of a run of a network between elements, within 4 Å.

    Args:
      folder: which exists.
      model: a key of `FIELDS`.
      numbers: sorted atomic numbers.
      dtype: of the run.
      seed: of the parameters.
      long_range: an `eqfuse.models.ewald.LatentEwald`, if it has charges.
      other: fields of the network.
    """
    fields = FIELDS[model] | other | {"cutoff": 4.0, "num_species": len(numbers)}
    fields |= {"irreps_out": irreps_out(long_range), "avg_num_neighbors": 12.0, "num_bessel": 4}
    names = range(len(numbers))
    converted = dataclasses.replace(
        _network(model, seed, tuple(fields.items())),
        dtype=dtype,
        scale=tuple(0.3 + 0.1 * k for k in names),
        shift=tuple(-0.5 - 0.2 * k for k in names),
        references={z: -1.0 * z for z in numbers},
        long_range=long_range,
    )
    source = folder / "nothing"
    source.write_text("")
    run = folder / model
    write_run([converted], source, run)
    return run
