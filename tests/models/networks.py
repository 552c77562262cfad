"""Small networks of each kind, and the settings in which published ones differ from each other."""

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
LATENT = {"latent_dim": 8, "two_body_layers": 2, "latent_layers": 2, "readout_hidden": 2}
SMALL = {
    NequIP: COMMON | {"radial_hidden": 8},
    Allegro: COMMON | LATENT,
    MACE: COMMON | {"radial_hidden": 8, "radial_layers": 1, "readout_hidden": 2},
}
LAYERS = {NequIP: {"layers": 2, "lmax": 1}, Allegro: {"layers": 2}, MACE: {"correlation": 2}}
"""What variants have besides, unless they say otherwise."""

HIDDEN = "4x0e+3x1o+2x1e+2x2e"
PAIRS = ((3.0, 2.5, 2.0), (2.2, 3.0, 2.1), (2.4, 2.6, 2.8))
DEEP = {"readout_layers": 3, "latent_hidden": 5}
NUMBERS = {"atomic_numbers": (1, 8, 14)}
VARIANTS = {
    Allegro: {
        "product": DEEP | {"embedding_dim": 6, "trainable_bessel": True},
        "spline": DEEP
        | {"two_body": "spline", "num_splines": 5, "spline_span": 3, "parity": False},
        "shallow": {"layers": 3, "two_body_layers": 1, "latent_layers": 1},
        "species": {
            "species_neighbors": (2.0, 3.0, 5.0),
            "pair_cutoffs": PAIRS,
            "two_body_hidden": 3,
        },
    },
    MACE: {
        "species": NUMBERS
        | {
            "layers": 2,
            "species_linear": True,
            "first_skip": True,
            "density_normalization": True,
            "distance_transform": "agnesi",
        },
        "nonlinear": {
            "nonlinear": True,
            "edge_irreps": "2x0e+1x1o",
            "agnostic_product": True,
            "readout_biases": True,
            "apply_cutoff": False,
        },
        "nonlinear, basis with cutoff": {"nonlinear": True, "layers": 1},
        "edges": NUMBERS
        | {
            "edge_irreps": "2x0e+1x1o+3x2e",
            "first_edge_irreps": True,
            "last_readout_only": True,
            "apply_cutoff": False,
            "density_normalization": True,
            "distance_transform": "soft",
        },
    },
    NequIP: {
        "multiplicities": {"hidden": HIDDEN, "lmax": 2, "embedding_channels": 5},
        "layers differ": {"hidden": "4x0e+3x1o,5x0e+2x1o,3x0e", "layers": 3, "skip": "linear"},
        "all kept": {"hidden": "3x0e+2x0o+2x1o+2x1e", "keep_irreps": True},
        "so3": {"hidden": "4x0e+3x1e+2x2e", "lmax": 2, "so3": True, "skip": "linear"},
        "one-hot": {"one_hot": True, "layer_norm": True, "skip": "linear", "embedding_channels": 5},
        "norm": {"layer_norm": True, "hidden": "4x0e+2x1o"},
        "skips": {"skip": "none,linear,species", "layers": 3, "biases": True},
        "as stored": {"normalize_activation": False, "trainable_bessel": True},
        "plain norm": {"normalize_activation": False, "layer_norm": True, "biases": True},
        "xplor": {"cutoff_function": "xplor", "cutoff_onset": 2.0, "solid_harmonics": True},
        "neighbors": {"species_neighbors": (2.0, 3.0, 5.0)},
        "pairs": {"pair_cutoffs": PAIRS},
        "rounded": {"half_weights": True},
    },
}
NETWORKS = {
    f"{cls.__name__.lower()}, {name}": (cls, LAYERS[cls] | settings)
    for cls, variants in VARIANTS.items()
    for name, settings in variants.items()
}


def small(cls, irreps_out="0e", **settings):
    """Return a network of `SMALL`, with other settings where they are given."""
    return cls(irreps_out, **SMALL[cls] | settings)


def network(name, irreps_out="0e", **others):
    """Return a network of `NETWORKS`, with other settings where they are given."""
    cls, settings = NETWORKS[name]
    return small(cls, irreps_out, **settings | others)


def variables_of(model, graph, seed=3):  # with 0, NequIP has forces of 0.005 eV/Å only
    return drawn(model, graph.vectors, graph.species, graph.edges, seed=seed)
