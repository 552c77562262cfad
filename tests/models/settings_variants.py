"""Settings of the three networks in which published ones differ from each other, by name."""

from eqfuse.models import MACE, Allegro, NequIP
from tests.models.networks import small

HIDDEN = "4x0e+3x1o+2x1e+2x2e"
PAIRS = ((3.0, 2.5, 2.0), (2.2, 3.0, 2.1), (2.4, 2.6, 2.8))
DEEP = {"readout_layers": 3, "latent_hidden": 5}
ALLEGRO = {
    "product": DEEP | {"embedding_dim": 6, "trainable_bessel": True},
    "spline": DEEP | {"two_body": "spline", "num_splines": 5, "spline_span": 3, "parity": False},
    "shallow": {"layers": 3, "two_body_layers": 1, "latent_layers": 1},
    "species": {
        "species_neighbors": (2.0, 3.0, 5.0),
        "pair_cutoffs": PAIRS,
        "two_body_hidden": 3,
    },
}
MACES = {
    "species": {
        "layers": 2,
        "species_linear": True,
        "first_skip": True,
        "density_normalization": True,
        "distance_transform": "agnesi",
        "atomic_numbers": (1, 8, 14),
    },
    "nonlinear": {
        "nonlinear": True,
        "edge_irreps": "2x0e+1x1o",
        "agnostic_product": True,
        "readout_biases": True,
        "apply_cutoff": False,
    },
    "nonlinear, basis with cutoff": {"nonlinear": True, "layers": 1},
    "edges": {
        "edge_irreps": "2x0e+1x1o+3x2e",
        "first_edge_irreps": True,
        "last_readout_only": True,
        "apply_cutoff": False,
        "density_normalization": True,
        "distance_transform": "soft",
        "atomic_numbers": (1, 8, 14),
    },
}
NEQUIP = {
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
}


def allegro(name, irreps_out="0e", **others):
    return small(Allegro, irreps_out, **{"layers": 2} | ALLEGRO[name] | others)


def mace(name, irreps_out="0e", **others):
    return small(MACE, irreps_out, **{"correlation": 2} | MACES[name] | others)


def nequip(name, irreps_out="0e", **others):
    return small(NequIP, irreps_out, **{"layers": 2, "lmax": 1} | NEQUIP[name] | others)


NETWORKS = {
    **{f"allegro, {name}": (allegro, name) for name in ALLEGRO},
    **{f"mace, {name}": (mace, name) for name in MACES},
    **{f"nequip, {name}": (nequip, name) for name in NEQUIP},
}
