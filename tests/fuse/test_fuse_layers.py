"""`ops.fuse` with Linears and gates of products of rows, and inside JAX's transformations."""

import re

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from eqfuse.ops.primitives import choice
from tests.fuse.test_fuse import (
    NODES,
    PRODUCT,
    RECEIVERS,
    SENDERS,
    X,
    Y,
    arrays,
    assert_close,
    derivatives,
    on_graph,
    product,
    to_nodes,
    weighted,
)
from tests.ops import tiers

OUT, Z = e3nn.Irreps("5x0e+2x1o"), e3nn.Irreps("5x0e+3x0o+2x1o+1x1e")


def mixed(m, parameters, irreps_out=OUT, **options):
    return ops.linear(m, parameters, irreps_out, **options)


def parameters_of(irreps_in, irreps_out=OUT, **options):
    x = e3nn.zeros(irreps_in, (1,))
    index = [jnp.zeros((1,), int)] if "num_indexed_weights" in options else []
    shapes = jax.eval_shape(ops.Linear(irreps_out, **options).init, jax.random.key(0), *index, x)
    rng = np.random.default_rng(1)
    return {n: rng.normal(size=s.shape) for n, s in shapes["params"].items()}


def row_layer(x, y, w, parameters):
    return mixed(product(x, y)[1], parameters)


def indexed_layer(x, y, w, parameters):
    index = jnp.arange(len(y)) % 2
    return mixed(product(x, y)[1], parameters, index=index, num_indexed_weights=2)


def weighted_rows(x, y, w, parameters):
    return mixed(weighted(x, y, w), parameters)


def gated_by(gate):
    """Return a layer of rows with a gate behind it."""

    def function(x, y, w, parameters):
        z = mixed(product(x, y)[1], parameters, Z, force_irreps_out=True)
        return gate(e3nn.IrrepsArray(Z, z.array))  # e3nn's gate leaves out what is known to be zero

    return function, parameters_of(PRODUCT, Z, force_irreps_out=True)


def own_gate(z):
    """Each vector is gated by a scalar that is activated as well."""
    scalars = jax.nn.sigmoid(z.filter("0e").array)
    vectors = z.filter("1o").array.reshape(-1, 2, 3) * scalars[:, :2, None]
    return jnp.concatenate([scalars, vectors.reshape(-1, 6), z.filter(["0o", "1e"]).array], axis=1)


def graph_layer(x, y, w, parameters):
    """Gate the sum of what a Linear makes of sums over edges, and a skip."""
    own = {n: p for n, p in parameters.items() if n != "skip"}
    z = mixed(to_nodes(weighted(x, y, w)) / 1.5, own, Z, force_irreps_out=True)
    return e3nn.gate(e3nn.IrrepsArray(Z, z.array) + e3nn.IrrepsArray(Z, x @ parameters["skip"]))


def sum_read_elsewhere(x, y, w, parameters):
    nodes = to_nodes(weighted(x, y, w))
    return jnp.concatenate([mixed(nodes, parameters).array, nodes.array], axis=1)


SKIP = {"skip": np.linspace(-1, 1, X.dim * Z.dim).reshape(X.dim, Z.dim)}
ACTS = {"even_act": jax.nn.silu, "even_gate_act": jax.nn.silu, "odd_act": jnp.tanh}
SETS = {"num_indexed_weights": 2}
LAYERS = {  # the layer, its parameters, how many ops are fused, and of these with a gate
    "rows": (row_layer, parameters_of(PRODUCT), 1, 0),
    "indexed": (indexed_layer, parameters_of(PRODUCT, **SETS), 0, 0),
    "graph, skip": (
        graph_layer,
        parameters_of(PRODUCT, Z, force_irreps_out=True) | SKIP,
        *(1, 1),
    ),
    "sum read elsewhere": (sum_read_elsewhere, parameters_of(PRODUCT), 0, 0),
    "weights of rows": (weighted_rows, parameters_of(PRODUCT), 0, 0),
    "gate": (*gated_by(e3nn.gate), 1, 1),
    "other acts": (*gated_by(lambda z: e3nn.gate(z, **ACTS)), 1, 1),
    "not normalised": (*gated_by(lambda z: e3nn.gate(z, normalize_act=False)), 1, 1),
    "scalars": (*gated_by(e3nn.scalar_activation), 1, 1),
    "sine": (*gated_by(lambda z: e3nn.gate(z, even_act=jnp.sin, normalize_act=False)), 1, 1),
    "own gate": (*gated_by(own_gate), 1, 0),
    "scaled": (*gated_by(lambda z: e3nn.gate(2.0 * z)), 1, 0),
    "read elsewhere": (
        *gated_by(lambda z: jnp.concatenate([e3nn.gate(z).array, z.array], axis=1)),
        *(1, 0),
    ),
}
QUICK = (
    "rows",
    "graph, skip",
    "sum read elsewhere",
    "weights of rows",
    "gate",
    "own gate",
    "read elsewhere",
)


@pytest.mark.parametrize("name", tiers.slow_unless(QUICK, *LAYERS))
def test_a_linear_of_a_product_and_a_gate(name, request):
    function, parameters, fused, gates = LAYERS[name]
    if name != "indexed":  # native kernels of whole ops have one set of weights
        request.getfixturevalue("one_op")
    with jax.enable_x64(True):
        operands = jax.tree.map(jnp.asarray, [*arrays(), parameters])
        after = str(jax.make_jaxpr(ops.fuse(function))(*operands))
        assert after.count("= eqfuse_fused[") == fused
        assert after.count("= eqfuse_linear_form[") == after.count("= eqfuse_form[") == 1 - fused
        assert after.count("Gate(tiles") == gates
        assert not gates or not any(f"= {f} " in after for f in ("tanh", "logistic", "exp"))
        second = name in ("rows", "gate")
        found, expected = (derivatives(f, operands, second) for f in (ops.fuse(function), function))
        assert_close(found, expected)


@pytest.mark.parametrize("rows", [choice.FEWEST_ROWS, choice.FEWEST_ROWS - 1])
def test_a_layer_is_one_op_where_the_table_of_auto_says_so(rows, capsys):
    x, y, _ = arrays(edges=rows, nodes=rows)

    def layer(x, y, parameters):
        return mixed(ops.tensor_product(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)), parameters)

    operands = jax.tree.map(jnp.float32, [x, y, parameters_of(PRODUCT)])
    fused = ops.fuse(lambda *a: layer(*a).array, report=True)
    lowered = jax.jit(fused).lower(*operands).as_text()
    few = f"as written | fewer than {choice.FEWEST_ROWS} rows"
    said = re.sub(" +", " ", capsys.readouterr().out)
    assert (few if rows < choice.FEWEST_ROWS else "TensorProductLinear") in said
    assert lowered.count("custom_call @eqfuse") == 1 + (rows < choice.FEWEST_ROWS)


def summed(x, y, w):
    return to_nodes(weighted(x, y, w)).array


def step(x, y, w):
    return x + 0.1 * summed(x, y, w)[:, : X.dim]


def scanned(x, y, w):
    return lax.scan(lambda x, w: (step(x, y, w), x.sum()), x, jnp.stack([w, 2 * w]))[0]


def looped(x, y, w):
    return lax.fori_loop(0, 3, lambda _, x: step(x, y, w), x)


def chosen(x, y, w):
    return lax.cond(x[0, 0] > 0, step, lambda x, y, w: x, x, y, w)


def checkpointed(x, y, w):
    return jax.checkpoint(step)(x, y, w)


def nested(x, y, w):
    return jax.jit(jax.jit(step))(x, y, w)


@jax.custom_jvp
def own_derivative(x):
    return jnp.sin(x)


own_derivative.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 2.0 * tangents[0]))


def custom(x, y, w):
    return own_derivative(step(x, y, w))


CONTROL = [scanned, looped, chosen, checkpointed, nested, custom]


@pytest.mark.parametrize(
    "function", tiers.slow_unless([scanned, checkpointed, nested, custom], *CONTROL)
)
def test_inside_of_control_flow(function):
    with jax.enable_x64(True):
        operands = [jnp.asarray(a) for a in arrays()]
        assert on_graph(ops.fuse(function), *operands) == 1
        second = function in (scanned, custom)
        found, expected = (derivatives(f, operands, second) for f in (ops.fuse(function), function))
        assert_close(found, expected)


def test_vmap_and_scan_around_it():
    with jax.enable_x64(True):
        x, y, w = (jnp.stack([jnp.asarray(a), 2 * jnp.asarray(a)]) for a in arrays())

        def all_of(function):
            mapped = jax.vmap(function)(x, y, w)
            tangents = jax.jvp(jax.vmap(function, (0, None, 0)), (x, y[0], w), (x, y[1], w))
            scanned = lax.scan(lambda c, xw: (c, function(xw[0], y[0], xw[1])), 0.0, (x, w))
            return mapped, tangents, scanned

        assert on_graph(jax.vmap(ops.fuse(summed)), x, y, w) == 1
        assert_close(all_of(ops.fuse(summed)), all_of(summed))


class Layer(nn.Module):
    """A layer of existing code."""

    irreps: e3nn.Irreps

    @nn.compact
    def __call__(self, x: e3nn.IrrepsArray, y, options):
        m = ops.tensor_product(x[options["senders"]], y)
        m = m * self.param("weights", nn.initializers.normal(), (m.irreps.num_irreps,))
        nodes = e3nn.scatter_sum(m, dst=options["receivers"], output_size=x.shape[0])
        return {"out": ops.Linear(self.irreps)(nodes), "name": options["name"], "none": None}


def test_apply_of_flax_with_trees_and_other_arguments():
    x, y = e3nn.normal(X, jax.random.key(0), (NODES,)), e3nn.normal(Y, jax.random.key(1), (7,))
    options = {"senders": jnp.asarray(SENDERS), "receivers": RECEIVERS, "name": "mine"}
    module = Layer(OUT)
    params = module.init(jax.random.key(2), x, y, options)
    expected = module.apply(params, x, y, options)
    apply = ops.fuse(module.apply)
    found = apply(params, x, y, options=options)
    assert found["out"].irreps == expected["out"].irreps
    assert (found["name"], found["none"]) == ("mine", None)
    np.testing.assert_allclose(found["out"].array, expected["out"].array, atol=1e-5)
    assert on_graph(lambda *a: apply(*a, options)["out"], params, x, y) == 1


def test_as_a_decorator_and_with_arrays_of_a_closure():
    _, y, w = (jnp.asarray(a, jnp.float32) for a in arrays())

    def energy(scale, x):
        @ops.fuse()
        def function(x):
            return jnp.sum(to_nodes(weighted(x, scale * y, w)).array ** 2)

        return function(x)

    def plain(scale, x):
        return jnp.sum(to_nodes(weighted(x, scale * y, w)).array ** 2)

    x = jnp.asarray(arrays()[0], jnp.float32)
    assert on_graph(energy, 2.0, x) == 1
    found, expected = jax.grad(energy, (0, 1))(2.0, x), jax.grad(plain, (0, 1))(2.0, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), found, expected)
