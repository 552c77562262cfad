"""Small networks of each kind."""

from eqfuse.models import MACE, Allegro, NequIP
from tests.models.conftest import CUTOFF
from tests.parameters import drawn

COMMON = {
    "num_species": 3,
    "channels": 3,
    "lmax": 1,
    "cutoff": CUTOFF,
    "num_bessel": 4,
    "avg_num_neighbors": 4.0,
}
SMALL = {
    NequIP: COMMON | {"radial_hidden": 8},
    Allegro: COMMON
    | {"latent_dim": 8, "two_body_layers": 2, "latent_layers": 2, "readout_hidden": 2},
    MACE: COMMON | {"radial_hidden": 8, "radial_layers": 1, "readout_hidden": 2},
}


def small(cls, irreps_out="0e", **settings):
    """Return a network of `SMALL`, with other settings where they are given."""
    return cls(irreps_out, **SMALL[cls] | settings)


def variables_of(model, graph, seed=3):  # with 0, NequIP has forces of 0.005 eV/Å only
    return drawn(model, graph.vectors, graph.species, graph.edges, seed=seed)
