"""Which blocks of a result are known to be zero: those that e3nn knows, for all ops."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers

ROWS = 3
EDGES = ops.Edges.from_arrays(np.array([0, 1, 2, 2]), np.array([1, 0, 1, 0]), ROWS)
SEEDS = tiers.slow_unless((1, 4), *range(30))
BACKENDS = ("xla", "llvm")


def irreps(rng, largest=3):
    count = rng.integers(1, 5)
    irs = rng.choice(["0e", "0o", "1o", "1e", "2e"], count)
    return e3nn.Irreps([(int(rng.integers(1, largest + 1)), str(ir)) for ir in irs])


def with_zeros(rng, irreps, lead=(ROWS,)):
    """Return an array of which about every third block is known to be zero."""
    shapes = [(*lead, mul, ir.dim) for mul, ir in irreps]
    chunks = [None if rng.random() < 0.35 else rng.normal(size=shape) for shape in shapes]
    chunks = [None if c is None else jnp.asarray(c, jnp.float32) for c in chunks]
    return e3nn.from_chunks(irreps, chunks, lead, jnp.float32)


def assert_same(found, expected):
    """Values, of a few hundred products at most, are those of float32."""
    assert (found.irreps, found.zero_flags) == (expected.irreps, expected.zero_flags)
    scale = max(1.0, np.abs(expected.array).max(initial=0))
    np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("seed", SEEDS)
def test_products_have_those_of_e3nn(seed):
    rng = np.random.default_rng(seed)
    x, y = (with_zeros(rng, irreps(rng)) for _ in range(2))
    of_edges = with_zeros(rng, y.irreps, (EDGES.num_edges,))
    single = with_zeros(rng, e3nn.Irreps([(1, ir) for _, ir in y.irreps]))
    weights = jnp.ones((ROWS, 2 * len(single.irreps)))
    for backend in BACKENDS:
        for name in ("tensor_product", "elementwise_tensor_product"):
            second = y if name == "tensor_product" else x
            found = getattr(ops, name)(x, second, backend=backend)
            assert_same(found, getattr(e3nn, name)(x, second))
        found = ops.graph_tensor_product(x, of_edges, None, EDGES, backend=backend)
        messages = e3nn.tensor_product(x[EDGES.senders], of_edges)
        assert_same(found, e3nn.scatter_sum(messages, dst=EDGES.receivers, output_size=ROWS))
        found = ops.weighted_channels(single, weights, backend=backend)
        assert_same(found, ops.weighted_channels(single, weights, backend="e3nn"))


def options_of(rng):
    """Return options of a Linear, what comes before x, and leading axes of x."""
    kind = rng.integers(4)
    options = {"force_irreps_out": bool(rng.random() < 0.7), "biases": bool(rng.integers(2))}
    if kind == 1:
        return options | {"num_indexed_weights": 2}, (jnp.array([0, 1, 1]),), (ROWS,)
    if kind == 2:
        return options, (jnp.ones((ROWS, 2)),), (ROWS,)
    if kind == 3:
        return options | {"channel_out": 2}, (), (ROWS, 3)
    return options, (), (ROWS,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("simplify", [True, False])
def test_linears_have_those_of_e3nn(seed, simplify):
    rng = np.random.default_rng(seed)
    options, first, lead = options_of(rng)
    out, x = irreps(rng), with_zeros(rng, irreps(rng), lead)
    options["simplify_irreps_internally"] = simplify
    theirs = e3nn.flax.Linear(out, **options)
    params = theirs.init(jax.random.key(0), *first, x)
    for backend in BACKENDS:
        ours = ops.Linear(out, backend=backend, **options)
        assert_same(ours.apply(params, *first, x), theirs.apply(params, *first, x))


@pytest.mark.parametrize("seed", SEEDS)
def test_linears_of_haiku_have_those_of_e3nn(seed):
    hk = pytest.importorskip("haiku")
    rng = np.random.default_rng(seed)
    options, first, lead = options_of(rng)
    out, x = irreps(rng), with_zeros(rng, irreps(rng), lead)

    def transformed(linear, **more):
        def function(*operands):
            return linear(out, name="linear", **options, **more)(*operands)

        return hk.without_apply_rng(hk.transform(function))

    theirs = transformed(e3nn.haiku.Linear)
    params = theirs.init(jax.random.key(0), *first, x)
    found = transformed(ops.haiku.Linear, backend="llvm").apply(params, *first, x)
    assert_same(found, theirs.apply(params, *first, x))


@pytest.mark.parametrize("out", ["3x0e+2x0e+1x1o+2x2e", "0x1e+2x0o+1x1o"])
@pytest.mark.parametrize("biases", [True, False])
def test_linears_of_equinox_have_those_of_e3nn(out, biases):
    pytest.importorskip("equinox")
    x = e3nn.normal("2x1o+3x0o", jax.random.key(0), (ROWS,))
    options = {"irreps_out": out, "irreps_in": x.irreps, "biases": biases}
    options |= {"force_irreps_out": True, "key": jax.random.key(1)}
    found = ops.equinox.Linear(backend="llvm", **options)(x)
    assert_same(found, e3nn.equinox.Linear(**options)(x))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_of_linears_knows_zeros_of_all(seed):
    rng = np.random.default_rng(seed)
    out, inputs = irreps(rng), [with_zeros(rng, irreps(rng)) for _ in range(2)]
    theirs, ours = (ops.LinearSum(out, ("a", "b"), backend=b) for b in ("e3nn", "llvm"))
    params = theirs.init(jax.random.key(0), *inputs)
    assert_same(ours.apply(params, *inputs), theirs.apply(params, *inputs))


def test_biases_with_weights_of_an_input_that_is_zero():
    x, weights = e3nn.zeros("2x2e", (ROWS,)), jnp.ones((ROWS, 2))
    theirs, ours = (
        linear("2x0e+1x1e", force_irreps_out=True, biases=True)
        for linear in (e3nn.flax.Linear, ops.Linear)
    )
    params = jax.tree.map(jnp.ones_like, theirs.init(jax.random.key(0), weights, x))
    assert_same(ours.apply(params, weights, x), theirs.apply(params, weights, x))


def test_the_next_linear_has_the_parameters_of_e3nn():
    x = e3nn.normal("4x0e", jax.random.key(0), (ROWS,))
    params = []
    for linear in (e3nn.flax.Linear, ops.Linear):
        first, second = (linear(out, force_irreps_out=True) for out in ("4x0e+4x1o", "2x0e+2x1o"))
        h = first.apply(first.init(jax.random.key(1), x), x)
        params.append(second.init(jax.random.key(2), h)["params"])
    assert list(params[0]) == list(params[1])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_layers_have_those_of_e3nn(seed, graph, gated):
    rng = np.random.default_rng(seed)
    out = irreps(rng)
    if gated:
        out = e3nn.Irreps(f"{out.num_irreps}x0e") + out
    x = with_zeros(rng, irreps(rng))
    y = with_zeros(rng, irreps(rng, 1 + seed % 2), (EDGES.num_edges if graph else ROWS,))
    options = {"biases": bool(rng.integers(2)), "force_irreps_out": True}
    op = ops.TensorProductLinearGate if gated else ops.TensorProductLinear
    operands = (x, y, None, EDGES if graph else None)
    theirs = op(out, backend="e3nn", **options)
    params = theirs.init(jax.random.key(0), *operands)
    skip = None if gated else e3nn.zeros_like(theirs.apply(params, *operands))
    for given in (None, skip):
        expected = theirs.apply(params, *operands, skip=given)
        for backend in BACKENDS:
            found = op(out, backend=backend, **options).apply(params, *operands, skip=given)
            assert_same(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("irreps_y", ["1x0e", "2x0e"])
def test_where_no_path_leads_to_the_output_it_is_zero(backend, graph, irreps_y):
    x = e3nn.normal("3x0e+2x0e", jax.random.key(0), (ROWS,))
    y = e3nn.normal(irreps_y, jax.random.key(1), (EDGES.num_edges if graph else ROWS,))
    operands = (x, y, None, EDGES if graph else None)
    for op in (ops.TensorProductLinear, ops.TensorProductLinearGate):
        for force in (True, False):
            theirs = op("3x0o", force_irreps_out=force, backend="e3nn")
            params = theirs.init(jax.random.key(2), *operands)
            ours = op("3x0o", force_irreps_out=force, backend=backend, fused="always")
            assert_same(ours.apply(params, *operands), theirs.apply(params, *operands))
    biased = [
        ops.TensorProductLinear("3x0e+2x1o", biases=True, force_irreps_out=True, **o)
        for o in ({"backend": "e3nn"}, {"backend": backend, "fused": "always"})
    ]
    empty = e3nn.IrrepsArray("2x1e", jnp.ones((ROWS, 6))), e3nn.IrrepsArray("0e", y.array[:, :1])
    operands = (*empty, *operands[2:])
    params = jax.tree.map(jnp.ones_like, biased[0].init(jax.random.key(2), *operands))
    theirs, ours = (module.apply(params, *operands) for module in biased)
    assert_same(ours, theirs)
    assert (ours.array[:, :3] == 1).all()
