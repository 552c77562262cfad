"""Settings that networks refuse."""

import pytest

from eqfuse.models import MACE, Allegro, NequIP
from tests.models.networks import small, variables_of

ALL = (NequIP, Allegro, MACE)
XPLOR = {"cutoff_function": "xplor"}


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"channels": 0}, "channels must be (positive|at least 1), got 0"),
        ({"lmax": -1}, "lmax must be at least 0, got -1"),
        ({"cutoff": -1.0}, "cutoff must be positive, got -1.0"),
        ({"avg_num_neighbors": 0.0}, "avg_num_neighbors must be positive"),
        ({"num_species": 0}, "num_species must be positive"),
        ({"backend": "cuda"}, "backend 'cuda' is unknown"),
    ],
)
def test_settings_out_of_range_are_refused(graph, cls, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(small(cls, **settings), graph)


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        (NequIP, {"skip": "nequip"}, "skip must be one of species, linear, none"),
        (NequIP, {"skip": "none,linear,none"}, "or one of them for each of the 2 layers"),
        (NequIP, {"cutoff_function": "cosine"}, "cutoff_function must be polynomial or xplor"),
        (NequIP, XPLOR, "needs a cutoff_onset between 0 and 3.0 Å, got None"),
        (NequIP, XPLOR | {"cutoff_onset": 4.0}, "between 0 and 3.0 Å, got 4.0"),
        (NequIP, {"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        (NequIP, {"pair_cutoffs": ((4.0, 3, 3),) * 3}, "at most 3.0 Å"),
        (NequIP, {"species_neighbors": (2.0, 3.0)}, "species_neighbors must be 3 positive numbers"),
        (NequIP, {"hidden": "4x1o"}, "0e, which"),
        (NequIP, {"hidden": "4x0e,4x0e,4x0e"}, "for each of the 2 layers with commas"),
        (NequIP, {"radial": "tables"}, "radial must be one of auto, network, table, got 'tables'"),
        (NequIP, {"radial_knots": 3}, "radial_knots must be at least 4, got 3"),
        (Allegro, {"two_body": "sum"}, "two_body must be one of concatenate, product, spline"),
        (Allegro, {"two_body": "product", "embedding_dim": 5}, "an even embedding_dim, got 5"),
        (Allegro, {"two_body": "spline", "spline_span": 17}, "0 and num_splines, 16, got 17"),
        (Allegro, {"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        (Allegro, {"species_neighbors": (2.0, 3)}, "species_neighbors must be 3 positive numbers"),
        (Allegro, {"readout_layers": 0}, "readout_layers must be positive"),
        (Allegro, {"latent_dim": 0}, "latent_dim must be positive, got 0"),
        (MACE, {"correlation": 0}, "correlation must be at least 1, got 0"),
        (MACE, {"distance_transform": "tanh"}, "'tanh' is unknown; give 'agnesi', 'soft' or"),
        (MACE, {"distance_transform": "agnesi"}, "needs atomic_numbers= or covalent_radii= of"),
        (
            MACE,
            {"distance_transform": "agnesi", "atomic_numbers": (1,)},
            "of the 3 species, got",
        ),
    ],
)
def test_settings_of_one_network_are_refused_too(graph, cls, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(small(cls, **{"layers": 2} | settings), graph)
