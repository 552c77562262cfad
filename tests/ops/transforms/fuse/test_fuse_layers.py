"""`ops.fuse` with Linears behind products, inside JAX's transformations, and in frameworks."""

import e3nn_jax as e3nn
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from eqfuse.ops.primitives import choice
from tests.ops import tiers
from tests.ops.transforms.fuse.test_fuse import (
    BESIDE,
    MASK,
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
    where,
)

OUT = e3nn.Irreps("5x0e+2x1o")


def mixed(m, parameters, irreps_out=OUT, **options):
    return ops.linear(m, parameters, irreps_out, **options)


def parameters_of(irreps_in, irreps_out=OUT, **options):
    x = e3nn.zeros(irreps_in, (1,))
    index = [jnp.zeros((1,), int)] if "num_indexed_weights" in options else []
    shapes = jax.eval_shape(ops.Linear(irreps_out, **options).init, jax.random.key(0), *index, x)
    rng = np.random.default_rng(1)
    return {n: rng.normal(size=s.shape) for n, s in shapes["params"].items()}


def graph_layer(x, y, w, parameters):
    return mixed(to_nodes(weighted(x, y, w)) / 1.5, parameters)


def beside_layer(x, y, w, parameters):
    rows, m = product(x, y)
    m = where(e3nn.concatenate([rows, m]).regroup() * w, MASK)
    return mixed(to_nodes(m), parameters)


def row_layer(x, y, w, parameters):
    return mixed(product(x, y)[1], parameters)


def plain_rows_layer(x, y, w, parameters):
    rows = e3nn.IrrepsArray(X, jnp.concatenate([x, x])[: len(y)])
    return mixed(ops.tensor_product(rows, e3nn.IrrepsArray(Y, y)) * 0.5, parameters)


def indexed_layer(x, y, w, parameters):
    index, options = jnp.arange(NODES) % 2, {"num_indexed_weights": 2}
    return mixed(to_nodes(weighted(x, y, w)), parameters, index=index, **options)


LAYERS = {
    "graph": (graph_layer, PRODUCT, {}),
    "beside": (beside_layer, BESIDE, {}),
    "rows": (row_layer, PRODUCT, {}),
    "rows and a constant": (plain_rows_layer, PRODUCT, {}),
    "indexed": (indexed_layer, PRODUCT, {"num_indexed_weights": 2}),
}


def primitives(function, *operands) -> str:
    return str(jax.make_jaxpr(function)(*operands))


COUNTED = {
    "fused": "= eqfuse_fused[",
    "linear": "= eqfuse_linear_form[",
    "form": "= eqfuse_form[",
    "gate": "Gate(tiles",
    "skip": "skip=True",
}


def assert_fused(function, operands, parameters, second=True, **counts):
    """Compare results in float64, and count what is in the jaxpr of the fused function."""
    with jax.enable_x64(True):
        operands = jax.tree.map(jnp.asarray, [*operands, parameters])
        after = primitives(ops.fuse(function), *operands)
        assert {name: after.count(COUNTED[name]) for name in counts} == counts
        found, expected = (derivatives(f, operands, second) for f in (ops.fuse(function), function))
        assert_close(found, expected)
    return after


pytestmark = pytest.mark.usefixtures("one_op")


@pytest.mark.parametrize("name", LAYERS)
def test_a_linear_of_a_product(name, monkeypatch):
    function, irreps, options = LAYERS[name]
    indexed = len(options)
    if indexed:  # native kernels of whole ops have one set of weights
        monkeypatch.setenv("EQFUSE_FUSED", "auto")
    operands, parameters = arrays(irreps), parameters_of(irreps, **options)
    before = primitives(function, *operands, parameters)
    assert before.count("= eqfuse_fused[") == 0
    assert before.count("= eqfuse_linear_form[") == 1
    counts = {"fused": 1 - indexed, "linear": indexed, "form": indexed}
    assert_fused(function, operands, parameters, name in ("beside", "rows"), **counts)


APART = {"fused": 0, "linear": 1}


def of_both(x, y, w, parameters):
    """Match sums and features that themselves go into one Linear."""
    summed = to_nodes(weighted(x, y, w))
    return mixed(e3nn.concatenate([summed, e3nn.IrrepsArray(X, x)]).regroup(), parameters)


def activated(x, y, w, parameters):
    return mixed(e3nn.scalar_activation(to_nodes(weighted(x, y, w))), parameters)


def weighted_rows(x, y, w, parameters):
    return mixed(weighted(x, y, w), parameters)


GATES = {
    "gate": e3nn.gate,
    "other acts": lambda z: e3nn.gate(
        z, even_act=jax.nn.silu, even_gate_act=jax.nn.silu, odd_act=jnp.tanh
    ),
    "not normalised": lambda z: e3nn.gate(z, normalize_act=False),
    "scalars": e3nn.scalar_activation,
    "skip": None,
    "skip of fewer irreps": None,
}
Z = e3nn.Irreps("5x0e+3x0o+2x1o+1x1e")


def gated_layer(name):
    """Match a layer on a graph with a gate behind it."""

    def function(x, y, w, parameters):
        own = {n: p for n, p in parameters.items() if n.startswith("w")}
        z = mixed(to_nodes(weighted(x, y, w)) / 1.5, own, Z, force_irreps_out=True)
        z = e3nn.IrrepsArray(Z, z.array)  # e3nn's gate leaves out 0o, which is known to be zero
        if name == "skip":
            return e3nn.gate(z + e3nn.IrrepsArray(Z, x[:, :1] * parameters["skip"]))
        if name == "skip of fewer irreps":
            some = {"w[0,0] 3x0e,5x0e": parameters["skips"]}
            rows = e3nn.IrrepsArray("3x0e", x[:, :3])
            return e3nn.gate(z + mixed(rows, some, Z, force_irreps_out=True))
        return GATES[name](z)

    return function


@pytest.mark.parametrize("name", tiers.slow_unless(["skip"], *GATES))
def test_a_gate_behind_it(name):
    parameters = parameters_of(PRODUCT, Z, force_irreps_out=True)
    parameters |= {"skip": np.linspace(-1, 1, Z.dim), "skips": np.ones((3, 5))}
    skip = int(name.startswith("skip"))
    counts = {"fused": 1, "gate": 1, "skip": skip}
    after = assert_fused(gated_layer(name), arrays(), parameters, name == "skip", **counts)
    for left in ("= tanh ", "= logistic ", "= exp "):
        assert after.count(left) == 0


def sine(z):
    return e3nn.gate(z, even_act=jnp.sin, normalize_act=False)


def own_gate(z):
    """Each vector is gated by a scalar that is activated as well."""
    scalars = jax.nn.sigmoid(z.filter("0e").array)
    vectors = z.filter("1o").array.reshape(-1, 2, 3) * scalars[:, :2, None]
    return jnp.concatenate([scalars, vectors.reshape(-1, 6), z.filter(["0o", "1e"]).array], axis=1)


def gated_by(gate):
    def function(x, y, w, parameters):
        return gate(mixed(to_nodes(weighted(x, y, w)), parameters, Z, force_irreps_out=True))

    return function, parameters_of(PRODUCT, Z, force_irreps_out=True), {"fused": 1, "gate": 0}


OTHERS = {
    "sine": gated_by(sine),
    "own gate": gated_by(own_gate),
    "scaled skip": gated_by(lambda z: e3nn.gate(2.0 * z)),
    "sums and features": (of_both, parameters_of((X + PRODUCT).regroup()), APART),
    "activation between": (activated, parameters_of(e3nn.scalar_activation(PRODUCT)), APART),
    "weights of rows": (weighted_rows, parameters_of(PRODUCT), APART),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_gates_and_linears_stay(name):
    function, parameters, counts = OTHERS[name]
    assert_fused(function, arrays(), parameters, **counts)


@pytest.mark.parametrize(
    ("layer", "rows", "fused"),
    [
        (plain_rows_layer, choice.FEWEST_ROWS, True),
        (plain_rows_layer, choice.FEWEST_ROWS - 1, False),
        (graph_layer, len(SENDERS), False),
    ],
)
def test_a_layer_is_one_op_where_the_table_of_auto_says_so(layer, rows, fused, monkeypatch):
    monkeypatch.delenv("EQFUSE_FUSED")
    nodes = NODES if layer is graph_layer else rows
    operands = [*arrays(edges=rows, nodes=nodes), parameters_of(PRODUCT)]
    operands = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), operands)
    lowered = jax.jit(ops.fuse(lambda *a: layer(*a).array)).lower(*operands).as_text()
    assert lowered.count("custom_call @eqfuse") == (1 if fused else 2)
    found, expected = (f(*operands).array for f in (ops.fuse(layer), layer))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


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


def test_forces_and_the_gradient_of_a_loss_on_them():
    """The energy is fused, and differentiated twice."""

    def energy(vectors, x, w):
        y = e3nn.spherical_harmonics(Y, e3nn.IrrepsArray("1o", vectors), True).array
        return jnp.sum(summed(x, y, w) ** 2)

    def gradient(energy, vectors, x, w):
        def loss(w):
            value, forces = jax.value_and_grad(energy)(vectors, x, w)
            return value + jnp.sum(forces**2)

        return jax.jit(jax.grad(loss))(w)

    with jax.enable_x64(True):
        x, _, w = (jnp.asarray(a) for a in arrays())
        vectors = jnp.asarray(np.random.default_rng(3).normal(size=(len(SENDERS), 3)))
        expected = gradient(energy, vectors, x, w)
        assert_close(gradient(ops.fuse(energy), vectors, x, w), expected)


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
    jaxpr = primitives(lambda params, x, y: apply(params, x, y, options)["out"], params, x, y)
    assert jaxpr.count("= eqfuse_fused[") == 1


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
