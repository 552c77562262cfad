"""NequIP, Allegro and MACE, where they are alike, in float64."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import MACE, Allegro, NequIP
from tests.models.networks import idle_parameters, shapes_of, small, variables_of

ALL = (NequIP, Allegro, MACE)
TETRIS = "0o + 7x0e"
XPLOR = {"cutoff_function": "xplor"}


@pytest.mark.parametrize(
    ("cls", "irreps_out", "settings"),
    [
        (NequIP, "2x0e + 0o + 1o + 1e", {"layers": 3}),
        pytest.param(
            *(NequIP, "2x0e + 0o + 1o + 1e + 2e + 2o", {"layers": 3, "lmax": 2}),
            marks=pytest.mark.slow,
        ),
        pytest.param(Allegro, "0e + 0o + 1o + 0e + 1e", {}, marks=pytest.mark.slow),
        pytest.param(MACE, "2x0e + 0o + 1o + 1e", {"parity": True}, marks=pytest.mark.slow),
    ],
)
def test_every_output_irrep_is_equivariant(graph, rotation, cls, irreps_out, settings):
    model = small(cls, irreps_out, **settings)
    variables = variables_of(model, graph)
    apply = jax.jit(lambda v: model.apply(variables, v, graph.species, graph.edges))
    out = apply(graph.vectors)
    assert out.irreps == e3nn.Irreps(irreps_out)
    sizes = [np.abs(chunk).max() for chunk in out.chunks]
    # The pseudoscalar of nearly flat molecules is small, and far above what rounding would leave.
    assert min(sizes) > 1e-6

    for matrix in (rotation, -rotation):
        turned = apply(graph.vectors @ matrix.T)
        # Each product rounds at 1e-16, a few thousand of them follow each other; some cancel.
        expected = out.transform_by_matrix(matrix)
        for size, found, chunk in zip(sizes, turned.chunks, expected.chunks, strict=True):
            np.testing.assert_allclose(found, chunk, rtol=0, atol=1e-10 * size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (NequIP, {"layers": 4}),
        (NequIP, {"irreps_out": TETRIS, "layers": 3}),
        (Allegro, {"layers": 3}),
        (Allegro, {"irreps_out": TETRIS, "layers": 1}),
        (Allegro, {"irreps_out": "1o", "layers": 1}),
        (MACE, {}),
        (MACE, {"irreps_out": TETRIS, "parity": True}),
        (MACE, {"correlation": 1}),
        (MACE, {"irreps_out": "1o"}),
        (
            MACE,
            {
                "species_linear": True,
                "density_normalization": True,
                "distance_transform": "agnesi",
                "atomic_numbers": (1, 8, 14),
            },
        ),
    ],
)
def test_no_parameter_is_idle(graph, cls, settings):
    assert idle_parameters(small(cls, **settings), graph) == []


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (NequIP, {"parity": False}),
        (NequIP, {"layers": 2}),
        (NequIP, {"lmax": 0}),
        (Allegro, {"parity": False}),
        (MACE, {"parity": False}),
        (MACE, {"parity": True, "layers": 1}),
        (MACE, {"parity": True, "lmax": 0}),
    ],
)
def test_pseudoscalar_out_of_reach_is_refused(graph, cls, settings):
    with pytest.raises(ValueError, match=r"holds 0o, which .* cannot produce; use parity=True"):
        variables_of(small(cls, TETRIS, **settings), graph)


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
        (
            NequIP,
            {"cutoff_function": "xplor"},
            "needs a cutoff_onset between 0 and 3.0 Å, got None",
        ),
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


PARAMETERS = {
    NequIP: {
        "embedding": (3, 3),
        "layer_0/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "radial/layer_0/Dense_0/kernel": (4, 8),
        "radial/layer_0/Dense_1/kernel": (8, 8),
        "radial/layer_0/Dense_2/kernel": (8, 6),
        "layer_0/linear_down/w[0,0] 3x0e,6x0e": (3, 6),
        "layer_0/linear_down/w[1,1] 3x1o,3x1o": (3, 3),
        "layer_0/skip/w[0,0] 3x0e,6x0e": (3, 3, 6),
        "layer_1/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_1/linear_up/w[1,1] 3x1o,3x1o": (3, 3),
        "radial/layer_1/Dense_0/kernel": (4, 8),
        "radial/layer_1/Dense_1/kernel": (8, 8),
        "radial/layer_1/Dense_2/kernel": (8, 6),
        "layer_1/linear_down/w[0,0] 6x0e,3x0e": (6, 3),
        "layer_1/skip/w[0,0] 3x0e,3x0e": (3, 3, 3),
        "readout/w[0,0] 3x0e,1x0e": (3, 1),
    },
    Allegro: {
        "two_body/Dense_0/kernel": (10, 4),
        "two_body/Dense_1/kernel": (4, 8),
        "first_features/Dense_0/kernel": (8, 6),
        "layer_0/product/weights/Dense_0/kernel": (8, 6),
        "layer_0/product/linear/w[0,0] 6x0e,11x0e": (6, 11),
        "layer_0/product/linear/w[1,1] 6x1o,3x1o": (6, 3),
        "layer_0/latents/Dense_0/kernel": (8, 8),
        "layer_0/mlp/Dense_0/kernel": (8, 8),
        "layer_1/product/weights/Dense_0/kernel": (8, 6),
        "layer_1/product/linear/w[0,0] 6x0e,8x0e": (6, 8),
        "layer_1/latents/Dense_0/kernel": (8, 8),
        "layer_1/mlp/Dense_0/kernel": (8, 8),
        "readout/Dense_0/kernel": (8, 2),
        "readout/Dense_1/kernel": (2, 1),
    },
    MACE: {
        "embedding": (3, 3),
        "layer_0/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "radial/layer_0/Dense_0/kernel": (4, 8),
        "radial/layer_0/Dense_1/kernel": (8, 6),
        "layer_0/linear_basis/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_0/linear_basis/w[1,1] 3x1o,3x1o": (3, 3),
        "layer_0/contraction": (3, 9, 3),
        "layer_0/linear_down/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_0/linear_down/w[1,1] 3x1o,3x1o": (3, 3),
        "readout_0/w[0,0] 3x0e,1x0e": (3, 1),
        "layer_1/linear_up/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_1/linear_up/w[1,1] 3x1o,3x1o": (3, 3),
        "radial/layer_1/Dense_0/kernel": (4, 8),
        "radial/layer_1/Dense_1/kernel": (8, 12),
        "layer_1/linear_basis/w[0,0] 6x0e,3x0e": (6, 3),
        "layer_1/linear_basis/w[1,1] 6x1o,3x1o": (6, 3),
        "layer_1/contraction": (3, 5, 3),
        "layer_1/linear_down/w[0,0] 3x0e,3x0e": (3, 3),
        "layer_1/skip/w[0,0] 3x0e,3x0e": (3, 3, 3),
        "readout_1/linear_in/w[0,0] 3x0e,2x0e": (3, 2),
        "readout_1/linear_out/w[0,0] 2x0e,1x0e": (2, 1),
    },
}


@pytest.mark.parametrize("cls", ALL)
def test_parameters_have_these_names(graph, cls):
    """Networks were saved with them; another name would not find them."""
    assert shapes_of(small(cls, layers=2), graph) == PARAMETERS[cls]


# the layers compute no product 1e, and count none
OF_PRODUCTS = {
    NequIP: ("linear_down", ["w[0,0] 9x0e,9x0e", "w[1,1] 12x1o,3x1o", "w[2,2] 12x2e,3x2e"]),
    MACE: ("linear_basis", ["w[0,0] 6x0e,3x0e", "w[1,1] 9x1o,3x1o", "w[2,2] 6x2e,3x2e"]),
}


@pytest.mark.parametrize("cls", OF_PRODUCTS)
def test_parameters_are_numbered_by_the_products_with_weights(graph, cls):
    model = small(cls, "0e+1o+2e", layers=2, lmax=2, parity=False)
    name, expected = OF_PRODUCTS[cls]
    prefix = f"layer_1/{name}/"
    names = [n.removeprefix(prefix) for n in shapes_of(model, graph) if n.startswith(prefix)]
    assert names == expected


@pytest.mark.parametrize("cls", ALL)
def test_float32_in_float32_out(graph, cls):
    model = small(cls, layers=1)
    vectors = graph.vectors.astype(np.float32)
    variables = jax.jit(model.init)(jax.random.key(0), vectors, graph.species, graph.edges)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    out = jax.jit(model.apply)(variables, vectors, graph.species, graph.edges)
    assert out.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "irreps_out"), [(NequIP, "0e"), (Allegro, "0e + 0o + 1o"), (MACE, "0e")]
)
def test_a_graph_without_edges(graph, cls, irreps_out):
    """NequIP gives each element a number of its own, by its skips.

    The others give zero: energies of Allegro are of edges, and products of MACE have a factor A.
    """
    model = small(cls, irreps_out, layers=2)
    variables = variables_of(model, graph)
    edges = ops.Edges.from_arrays(np.zeros(0, int), np.zeros(0, int), 3)
    species = np.array([2, 1, 2], np.int32)
    out = jax.jit(model.apply)(variables, jnp.zeros((0, 3)), species, edges).array
    if cls is NequIP:
        assert np.all(np.isfinite(out))
        assert out[0] == out[2] != out[1]
    else:
        np.testing.assert_array_equal(out, np.zeros((3, e3nn.Irreps(irreps_out).dim)))
