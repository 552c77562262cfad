"""Small networks of each kind, and what tests ask of them."""

import jax

from eqfuse.models import MACE, Allegro, NequIP
from tests.models.conftest import CUTOFF

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


def variables_of(model, graph, seed=0):
    init = jax.jit(model.init)
    return init(jax.random.key(seed), graph.vectors, graph.species, graph.edges)


def shapes_of(model, graph) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters by name."""
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), graph.vectors, graph.species, graph.edges
    )
    leaves = jax.tree.leaves_with_path(shapes["params"])
    return {"/".join(k.key for k in path): leaf.shape for path, leaf in leaves}
