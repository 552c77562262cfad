"""What networks have and refuse: irreps, counts of ops and parameters, settings; in float64."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval as pe

from benchmarks.networks import random_graph, step_on
from eqfuse import models, ops
from eqfuse.models import MACE, Allegro, NequIP
from eqfuse.models.radial import xplor_cutoff
from eqfuse.ops.primitives import lowering
from examples.tetris import shapes
from tests.models.networks import VARIANTS, network, small, variables_of

XPLOR = {"cutoff_function": "xplor"}


OUT_OF_RANGE = [
    ({"layers": 0}, "layers must be at least 1, got 0"),
    ({"channels": 0}, "channels must be positive, got 0"),
    ({"lmax": -1}, "lmax must be at least 0, got -1"),
    ({"cutoff": -1.0}, "cutoff must be positive, got -1.0"),
    ({"avg_num_neighbors": 0.0}, "avg_num_neighbors must be positive"),
    ({"num_species": 0}, "num_species must be positive"),
    ({"backend": "cuda"}, "backend 'cuda' is unknown"),
]


@pytest.mark.parametrize(
    ("cls", "settings", "message"),
    [
        *[(cls, *refused) for cls in (NequIP, Allegro, MACE) for refused in OUT_OF_RANGE],
        (NequIP, {"skip": "nequip"}, "skip must be one of species, linear, none"),
        (NequIP, {"skip": "none,linear,none"}, "or one of them for each of the 2 layers"),
        (NequIP, {"cutoff_function": "cosine"}, "cutoff_function must be one of polynomial, xplor"),
        (NequIP, XPLOR, "needs a cutoff_onset between 0 and 3.0 Å, got None"),
        (NequIP, XPLOR | {"cutoff_onset": 4.0}, "between 0 and 3.0 Å, got 4.0"),
        (NequIP, {"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        (NequIP, {"pair_cutoffs": ((4.0, 3, 3),) * 3}, "at most 3.0 Å"),
        (NequIP, {"species_neighbors": (2.0, 3.0)}, "species_neighbors must be 3 positive numbers"),
        (NequIP, {"hidden": "4x1o"}, "0e, which"),
        (NequIP, {"hidden": "4x0e,4x0e,4x0e"}, "for each of the 2 layers with commas"),
        (NequIP, {"radial": "tables"}, "radial must be one of auto, network, table, got 'tables'"),
        (NequIP, {"radial_knots": 3}, "radial_knots must be at least 4, got 3"),
        (MACE, {"half_weights": True, "nonlinear": True}, "half_weights=True is for NequIP, and"),
        (Allegro, {"half_weights": True}, "half_weights=True is for NequIP, and for MACE"),
        (Allegro, {"two_body": "sum"}, "two_body must be one of product, spline"),
        (Allegro, {"embedding_dim": 5}, "an even embedding_dim, got 5"),
        (Allegro, {"two_body": "spline", "spline_span": 17}, "0 and num_splines, 16, got 17"),
        (Allegro, {"pair_cutoffs": ((3.0,),)}, "pair_cutoffs must be 3 rows of as many cutoffs"),
        (Allegro, {"species_neighbors": (2.0, 3)}, "species_neighbors must be 3 positive numbers"),
        (Allegro, {"readout_layers": 0}, "readout_layers must be positive"),
        (Allegro, {"latent_dim": 0}, "latent_dim must be positive, got 0"),
        (MACE, {"correlation": 0}, "correlation must be at least 1, got 0"),
        (
            MACE,
            {"distance_transform": "tanh"},
            "distance_transform must be one of agnesi, soft, None, got 'tanh'",
        ),
        (MACE, {"distance_transform": "agnesi"}, "needs atomic_numbers= or covalent_radii= of"),
        (MACE, {"distance_transform": "agnesi", "atomic_numbers": (1,)}, "of the 3 species, got"),
    ],
)
def test_settings_out_of_range_are_refused(graph, cls, settings, message):
    with pytest.raises(ValueError, match=message):
        variables_of(small(cls, **{"layers": 2} | settings), graph)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("neqiup", {}, "model 'neqiup' is unknown; did you mean nequip?"),
        ("xyz", {}, "model 'xyz' is unknown; choose one of nequip, allegro, mace"),
        ("nequip", {"layer": 3}, "no setting 'layer'; did you mean layers"),
    ],
)
def test_unknown_models_and_settings_are_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, **fields)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("nequip", ["7 linear", "3 tensor_product_linear_gate"]),
        # of two layers; and of both kinds that of the readout of the pseudoscalar
        (
            "allegro",
            ["3 graph_tensor_product", "2 channelwise_tensor_product", "1 tensor_product_linear"],
        ),
        ("mace", ["8 linear", "2 tensor_product_linear", "2 symmetric_contraction"]),
    ],
)
def test_ops_are_counted_and_told_what_runs_them(name, kinds):
    model, args, variables = built(name, backend="xla")
    why = "not llvm: backend 'xla' was asked for"
    apart = "; apart: backend 'xla' computes op by op, and has no fused kernels"
    expected = [f"  ops      {k} on xla, {why}{apart * ('_linear' in k)}" for k in kinds]
    few = f"{args[-1].num_edges} edges, fewer than 8 for each of 128 knots"
    expected.append(f"  radial   networks: {few}")
    for _ in range(2):  # also what has been traced before
        assert models.ops_summary(model, variables, shapes()[0]).splitlines() == expected


def built(name, **more):
    """Return a model for the Tetris shapes, its arguments, and the shapes of its variables."""
    settings = {"parity": True} if name == "mace" else {}
    model = models.build(name, irreps_out="0o + 7x0e", **settings, **more)
    graph, _ = shapes()
    args = (graph.vectors, graph.species, graph.edges)
    return model, args, jax.eval_shape(model.init, jax.random.key(0), *args)


@pytest.mark.parametrize("name", models.MODELS)
def test_summary_tells_layers_and_parameters(name):
    model, args, variables = built(name)
    text = models.summary(model, variables)
    assert "output   1x0o+7x0e" in text
    counts = {"nequip": "119,584", "allegro": "81,728", "mace": "77,984"}
    assert f"{counts[name]} parameters" in text
    assert text.count("layer ") == len(model.layer_irreps()) - 2
    # What the summary says of the layers is what the modules give.
    _, state = jax.eval_shape(
        lambda v: model.apply(v, *args, capture_intermediates=True, mutable=True), variables
    )
    for k, irreps in enumerate(model.layer_irreps()[1:-1]):
        out = state["intermediates"][f"layer_{k}"]["__call__"][0]
        if name == "allegro":
            x, _, v = out
            assert e3nn.Irreps([(x.shape[-1], "0e")]) + v.irreps == irreps
        else:
            assert out.irreps == irreps


@pytest.mark.parametrize(
    ("irreps_out", "settings", "expected"),
    [
        # MACE of the paper: A up to l = 3, features up to L, scalars in the end
        ("0e", {}, [("0e+1o+2e+3o", "0e+1o+2e"), ("0e+1o+2e+3o", "0e")]),
        ("0e", {"hidden_lmax": 0}, [("0e+1o+2e+3o", "0e"), ("0e+1o+2e+3o", "0e")]),
        ("0e", {"layers": 1}, [("0e+1o+2e+3o", "0e")]),
        ("1o", {"layers": 1}, [("0e+1o+2e+3o", "0e+1o")]),
        ("0e", {"correlation": 1}, [("0e+1o+2e", "0e+1o+2e"), ("0e", "0e")]),
        # 1e comes in with the second product with the spherical harmonics, and 0o is 1o times 1e
        (
            "0e+0o",
            {"lmax": 1, "hidden_lmax": 1, "parity": True, "layers": 2},
            [("0e+1o", "0e+1o"), ("0e+1o+1e", "0e+0o")],
        ),
        (
            "0o",
            {"lmax": 2, "hidden_lmax": 1, "parity": True, "correlation": 2},
            [("0e+1o+2e", "0e+1o"), ("1o+1e+2e+2o", "0o")],
        ),
    ],
)
def test_features_are_those_reached_and_needed(irreps_out, settings, expected):
    usual = {"layers": 2, "lmax": 3, "hidden_lmax": 2, "correlation": 3, "parity": False}
    found = MACE(irreps_out, channels=4, **usual | settings).basis_and_feature_irreps()
    assert found == [tuple((4 * e3nn.Irreps(i)).regroup() for i in layer) for layer in expected]


@pytest.mark.parametrize(
    ("irreps_out", "settings", "expected"),
    [
        ("0e", {"layers": 1}, ["4x0e"]),
        ("0e", {"layers": 3}, ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x2e", "4x0e"]),
        (
            "0e",
            {"layers": 4},
            ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x1e+4x2e+4x2o", "4x0e+4x1o+4x2e", "4x0e"],
        ),
        (
            "0e",
            {"layers": 4, "parity": False},
            ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x2e", "4x0e+4x1o+4x2e", "4x0e"],
        ),
        ("0o + 7x0e", {"layers": 3}, ["4x0e+4x1o+4x2e", "4x0e+4x1o+4x1e+4x2e+4x2o", "4x0e+4x0o"]),
        ("0e", {"layers": 2, "lmax": 0}, ["4x0e", "4x0e"]),
        ("0e", {"layers": 2, "hidden": "8x0e+2x1o+3x1e"}, ["8x0e+2x1o", "8x0e"]),
        ("0e", {"layers": 2, "hidden": "8x0e+2x1o,6x0e+5x1o"}, ["8x0e+2x1o", "6x0e"]),
        ("0e", {"layers": 2, "hidden": "2x2o+3x1e+4x0e", "so3": True}, ["4x0e+3x1e", "4x0e"]),
        (
            "0e",
            {"layers": 3, "hidden": "8x0e+3x1o+2x1e", "keep_irreps": True},
            ["8x0e+3x1o", "8x0e+3x1o+2x1e", "8x0e"],
        ),
    ],
)
def test_hidden_irreps_are_those_reached_and_needed(irreps_out, settings, expected):
    _, *hidden, _ = NequIP(irreps_out, channels=4, **settings).layer_irreps()
    assert hidden == [e3nn.Irreps(i) for i in expected]


def test_xplor_is_one_at_its_onset_and_smooth_at_both_ends():
    onset, cutoff = 4.5, 5.0
    d = jnp.array([1.0, 4.4999999, 4.5000001, 4.75, 4.9999999, 5.5])
    u = xplor_cutoff(d, onset, cutoff)
    middle = (25 - 4.75**2) ** 2 * (25 + 2 * 4.75**2 - 3 * 4.5**2) / (25 - 4.5**2) ** 3
    np.testing.assert_allclose(u, [1, 1, 1, middle, 0, 0], atol=1e-6)
    slopes = jax.vmap(jax.grad(lambda d: xplor_cutoff(d, onset, cutoff)))(d)
    np.testing.assert_allclose(slopes[jnp.array([0, 1, 2, 4, 5])], 0, atol=1e-5)
    assert slopes[3] < -1


def test_frequencies_begin_as_those_that_are_fixed(graph):
    fixed, trained = (network("nequip, pairs", layers=1, trainable_bessel=t) for t in (False, True))
    variables = variables_of(trained, graph)
    params = {k: v for k, v in variables["params"].items() if k != "frequencies"}
    arguments = graph.vectors, graph.species, graph.edges
    out = jax.jit(trained.apply)(variables, *arguments).array
    expected = jax.jit(fixed.apply)({"params": params}, *arguments).array
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("name", VARIANTS[NequIP])
def test_the_gate_is_fused_unless_a_norm_comes_before_it(graph, name):
    arguments = graph.vectors, graph.species, graph.edges
    model = network(f"nequip, {name}", backend="llvm")
    variables = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    with ops.recorded() as calls:
        jax.eval_shape(lambda v: model.apply(v, *arguments), variables)
    kinds = [op.kind for op in calls if op.kind.startswith("tensor_product_linear")]
    normed = VARIANTS[NequIP][name].get("layer_norm")
    expected = "tensor_product_linear" if normed else "tensor_product_linear_gate"
    assert kinds == [expected] * model.layers


MODELS = {
    "nequip": {"parity": False, "radial_layers": 1},
    "mace": {"correlation": 2},
    "allegro": {"parity": False, "latent_dim": 8},
}
"""Settings with which irreps are the same from the second layer to the last but one."""


def triton_kernels(name, layers) -> set:
    """Return the distinct Triton kernels of a training step, none of them compiled."""
    graph, settings = random_graph(60), {"channels": 4, "lmax": 1, **MODELS[name]}
    problem = step_on(graph, name, layers=layers, **settings)
    traced = jax.jit(problem.function("triton")).trace(*problem.args).jaxpr.jaxpr
    used, _ = pe.dce_jaxpr(traced, [True] * len(traced.outvars))
    return set(lowering._specs(used))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_nine_and_twelve_layers_have_the_same_triton_kernels(name):
    """The radial networks of three layers are one kernel: of the first to the third, and so on.

    Widths differ in the first and in the last layers, so that from nine on no kernel is new.
    """
    few, many = (triton_kernels(name, layers) for layers in (9, 12))
    assert len(few) > 10
    assert few == many
