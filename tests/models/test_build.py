import e3nn_jax as e3nn
import jax
import pytest

from eqfuse import models
from eqfuse.data.tetris import tetris


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("neqiup", "model 'neqiup' is unknown; did you mean nequip?"),
        ("xyz", "model 'xyz' is unknown; choose one of nequip, allegro, mace, tetris"),
    ],
)
def test_unknown_models_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        models.build(name)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("nequip", ["7 linear", "3 tensor_product_linear_gate"]),
        # two layers, and the readout of the pseudoscalar
        ("allegro", ["1 weighted_channels", "3 graph_tensor_product", "3 tensor_product_linear"]),
        ("mace", ["8 linear", "2 tensor_product_linear", "2 symmetric_contraction"]),
        ("tetris", ["3 tensor_product_linear_gate", "3 linear"]),
    ],
)
def test_ops_are_counted_and_told_what_runs_them(name, kinds):
    model, args, variables = built(name, backend="xla")
    why = "not llvm: backend 'xla' was asked for"
    apart = "; apart: backend 'xla' computes op by op, and has no fused kernels"
    expected = [f"  ops      {k} on xla, {why}{apart * ('_linear' in k)}" for k in kinds]
    if name != "tetris":
        few = f"{args[-1].num_edges} edges, fewer than 8 for each of 128 knots"
        expected.append(f"  radial   networks: {few}")
    for _ in range(2):  # also what has been traced before
        assert models.ops_summary(model, variables, tetris()[0]).splitlines() == expected


def built(name, **more):
    """Return a model for the Tetris shapes, its arguments, and the shapes of its variables."""
    settings = {"parity": True} if name == "mace" else {}
    model = models.build(name, irreps_out="0o + 7x0e", **settings, **more)
    graph, _ = tetris()
    args = (graph.vectors, graph.species, graph.edges)
    return model, args, jax.eval_shape(model.init, jax.random.key(0), *args)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match=r"no setting 'layer'; did you mean layers"):
        models.build("nequip", layer=3)


@pytest.mark.parametrize("name", models.MODELS)
def test_summary_tells_layers_and_parameters(name):
    model, args, variables = built(name)
    text = models.summary(model, variables)
    assert "output   1x0o+7x0e" in text
    counts = {"nequip": "119,584", "allegro": "181,888", "mace": "77,984", "tetris": "7,170"}
    assert f"{counts[name]} parameters" in text
    assert text.count("layer ") == len(model.layer_irreps()) - 2
    # What the summary says of the layers is what the modules give.
    _, state = jax.eval_shape(
        lambda v: model.apply(v, *args, capture_intermediates=True, mutable=True), variables
    )
    for k, irreps in enumerate(model.layer_irreps()[1:-1]):
        out = state["intermediates"][f"layer_{k}"]["__call__"][0]
        if name == "allegro":
            x, v = out
            assert e3nn.Irreps([(x.shape[-1], "0e")]) + v.irreps == irreps
        else:
            assert out.irreps == irreps
