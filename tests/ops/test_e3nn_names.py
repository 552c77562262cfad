"""Parameters have the names, shapes, order and first values of the e3nn modules they replace."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers

NODES, EDGES, SETS = 4, 6, 3
BACKENDS = ["xla", "llvm", "e3nn"]


def random_irreps(rng, blocks: int, lmax: int) -> e3nn.Irreps:
    """Unsorted, with repetitions."""
    irs = [(int(l), int(rng.choice([-1, 1]))) for l in rng.integers(0, lmax + 1, blocks)]
    return e3nn.Irreps([(int(rng.integers(1, 4)), ir) for ir in irs])


def random_array(rng, irreps, rows: int, zeros: bool) -> e3nn.IrrepsArray:
    """Return normal numbers; with `zeros`, the first block is zero by structure."""
    chunks = [
        None if zeros and n == 0 else jnp.asarray(rng.normal(size=(rows, mul, ir.dim)), jnp.float32)
        for n, (mul, ir) in enumerate(irreps)
    ]
    return e3nn.from_chunks(irreps, chunks, (rows,), jnp.float32)


def composed(linear, x, y, weights, edges, keep):
    """Return what e3nn's modules give in its place: (first parameters, output)."""

    def product(keep, weights):
        if edges is None:
            return e3nn.tensor_product(x, y, filter_ir_out=keep)
        messages = e3nn.tensor_product(x[edges.senders], y, filter_ir_out=keep)
        messages = messages if weights is None else messages * weights
        return e3nn.scatter_sum(messages, dst=edges.receivers, output_size=edges.num_nodes)

    def arguments(index, weights):
        return (product(keep, weights),) if index is None else (index, product(keep, weights))

    index = jnp.arange(NODES) % SETS if linear.num_indexed_weights else None
    parameters = linear.init(jax.random.key(1), *arguments(index, weights))
    return parameters, linear.apply(parameters, *arguments(index, weights))


def assert_same(module, reference, x, y, weights=None, edges=None, wide=None):
    """Trees and outputs; `wide` are the weights of the whole product."""
    if edges is not None:
        edges = ops.Edges.from_arrays(*edges, NODES)
    keep = module.filter_ir_out
    expected, value = composed(reference, x, y, weights if wide is None else wide, edges, keep)
    index = jnp.arange(NODES) % SETS if module.num_indexed_weights else None
    arguments = (x, y, weights, edges, index)
    found = module.init(jax.random.key(1), *arguments)
    assert list(found.get("params", {})) == list(expected.get("params", {}))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    out = module.apply(expected, *arguments)
    assert out.irreps == value.irreps
    # float32: sums of fewer than 200 products of normal numbers
    scale = np.abs(value.array).max(initial=1.0)
    np.testing.assert_allclose(out.array, value.array, atol=200 * 2**-24 * scale)


@pytest.mark.slow
def test_irreps_of_the_product_that_nobody_reads_are_counted():
    x, y = (e3nn.normal(i, jax.random.key(0), (NODES,)) for i in ("8x0e+8x1o", "0e+1o+2e"))
    for backend in BACKENDS:
        module = ops.TensorProductLinear("8x0e+4x2e", backend=backend)
        names = list(module.init(jax.random.key(0), x, y)["params"])
        assert names == ["w[0,0] 16x0e,8x0e", "w[3,1] 16x2e,4x2e"]
        assert_same(module, e3nn.flax.Linear("8x0e+4x2e"), x, y)


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm", "e3nn"], *BACKENDS))
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seed", tiers.slow_unless(range(2), *range(10)))
def test_random_irreps(seed, graph, backend):
    """With dropped, repeated and unreachable irreps, blocks that are zero, and every option."""
    rng = np.random.default_rng(seed)
    x, y = random_irreps(rng, rng.integers(1, 5), 2), random_irreps(rng, rng.integers(1, 4), 2)
    irreps_out = random_irreps(rng, rng.integers(1, 6), 3)
    options = {
        "biases": bool(rng.integers(2)),
        "force_irreps_out": bool(rng.integers(2)),
        "num_indexed_weights": SETS if rng.integers(2) else None,
        "path_normalization": rng.choice(["element", "path"]),
        "gradient_normalization": rng.choice(["element", "path"]),
    }
    keep = None if seed % 3 else [ir for _, ir in random_irreps(rng, 3, 3)]
    edges = tuple(rng.integers(0, NODES, (2, EDGES))) if graph else None
    arrays = [
        random_array(rng, irreps, rows, bool(rng.integers(2)))
        for irreps, rows in ((x, NODES), (y, EDGES if graph else NODES))
    ]
    module = ops.TensorProductLinear(irreps_out, filter_ir_out=keep, backend=backend, **options)
    assert_same(module, e3nn.flax.Linear(irreps_out, **options), *arrays, edges=edges)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("columns", [None, 1])
def test_weights_of_the_kept_irreps(backend, columns):
    """Weights are of those irreps that `irreps_out` has; the others have none, and count."""
    rng = np.random.default_rng(5)
    x, y = e3nn.Irreps("3x0e+2x1o"), e3nn.Irreps("0e+1o+2e")
    irreps_out = e3nn.Irreps("4x2e+2x1o+3x2e+1x3e")
    whole = e3nn.tensor_product(x, y)
    kept = np.concatenate([[ir in irreps_out] * mul for mul, ir in whole])
    wide = np.where(kept, rng.normal(size=(EDGES, columns or kept.size)), 0).astype(np.float32)
    weights = wide[:, kept][:, :columns]
    arrays = random_array(rng, x, NODES, False), random_array(rng, y, EDGES, False)
    edges = tuple(rng.integers(0, NODES, (2, EDGES)))
    module = ops.TensorProductLinear(irreps_out, backend=backend)
    reference = e3nn.flax.Linear(irreps_out)
    assert_same(module, reference, *arrays, jnp.asarray(weights), edges, jnp.asarray(wide))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_zero_block_on_a_graph_has_parameters(backend):
    """A sum over edges is not known to be zero, so e3nn's Linear has parameters for it."""
    rng = np.random.default_rng(6)
    arrays = (
        random_array(rng, e3nn.Irreps("2x0e+2x1o"), NODES, True),
        random_array(rng, e3nn.Irreps("0e"), EDGES, False),
    )
    edges = tuple(rng.integers(0, NODES, (2, EDGES)))
    for biases in (False, True):
        module = ops.TensorProductLinear("3x0e+2x1o", biases=biases, backend=backend)
        reference = e3nn.flax.Linear("3x0e+2x1o", biases=biases)
        assert_same(module, reference, *arrays, edges=edges)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gate_and_scalar_first(backend):
    x, y = (e3nn.normal(i, jax.random.key(0), (NODES,)) for i in ("4x0e+4x1o", "0e+1o+2e"))
    product = e3nn.tensor_product(x, y)
    expected = e3nn.flax.Linear("8x0e+4x2e").init(jax.random.key(1), product)
    gated = e3nn.gate(e3nn.flax.Linear("8x0e+4x2e").apply(expected, product))
    module = ops.TensorProductLinearGate("8x0e+4x2e", backend=backend)
    found = module.init(jax.random.key(1), x, y)
    assert list(found["params"]) == list(expected["params"])
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    out = module.apply(expected, x, y)
    assert out.irreps == gated.irreps
    np.testing.assert_allclose(out.array, gated.array, atol=1e-5)
    first = ops.TensorProductLinear("8x0e+4x2e", scalar_first=True, backend=backend)
    assert list(first.init(jax.random.key(1), x, y)["params"]) == list(expected["params"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("graph", [False, True])
def test_channelwise(graph, backend):
    """Check the unfiltered `channelwise_tensor_product`."""
    rng = np.random.default_rng(7)
    x, y = e3nn.Irreps("3x0e+3x1o+3x1e"), e3nn.Irreps("3x1o+3x2e")
    edges = ops.Edges.from_arrays(*rng.integers(0, NODES, (2, EDGES)), NODES) if graph else None
    x = random_array(rng, x, EDGES if graph else NODES, True)
    y = random_array(rng, y, NODES, False)
    product = ops.channelwise_tensor_product(x, y, edges, backend="e3nn")
    linear = e3nn.flax.Linear("2x2e+4x1o+1x0e")
    expected = linear.init(jax.random.key(1), product)
    module = ops.TensorProductLinear("2x2e+4x1o+1x0e", channelwise=True, backend=backend)
    found = module.init(jax.random.key(1), x, y, edges=edges)
    assert list(found["params"]) == list(expected["params"])
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    value, out = linear.apply(expected, product), module.apply(expected, x, y, edges=edges)
    assert out.irreps == value.irreps
    np.testing.assert_allclose(out.array, value.array, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("weighted", tiers.slow_unless([True], False, True))
def test_multiplicities_of_both_operands_on_a_graph(weighted, backend):
    """What no one kernel computes is composed."""
    rng = np.random.default_rng(8)
    x, y = e3nn.Irreps("6x0e+5x1o"), e3nn.Irreps("5x0e+6x1o")
    whole = e3nn.tensor_product(x, y)
    kept = np.concatenate([[ir in e3nn.Irreps("0e+1e")] * mul for mul, ir in whole])
    wide = jnp.asarray(np.where(kept, rng.normal(size=(EDGES, kept.size)), 0), jnp.float32)
    weights, wide = (wide[:, kept], wide) if weighted else (None, None)
    arrays = random_array(rng, x, NODES, False), random_array(rng, y, EDGES, False)
    edges = tuple(rng.integers(0, NODES, (2, EDGES)))
    module = ops.TensorProductLinear("3x1e+4x0e", backend=backend)
    assert_same(module, e3nn.flax.Linear("3x1e+4x0e"), *arrays, weights, edges, wide)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scalar_first_with_multiplicities_on_a_graph(backend):
    rng = np.random.default_rng(9)
    x = random_array(rng, e3nn.Irreps("6x0e+5x1o"), NODES, False)
    y = random_array(rng, e3nn.Irreps("1x0e+6x1o"), EDGES, False)
    edges = ops.Edges.from_arrays(*rng.integers(0, NODES, (2, EDGES)), NODES)
    scalar, rest = y.slice_by_mul[:1], y.slice_by_mul[1:]
    parts = [e3nn.tensor_product(x[edges.senders], part) for part in (scalar, rest)]
    messages = e3nn.concatenate(parts).regroup()
    product = e3nn.scatter_sum(messages, dst=edges.receivers, output_size=NODES)
    linear = e3nn.flax.Linear("3x1e+4x0e+2x1o")
    parameters = linear.init(jax.random.key(1), product)
    module = ops.TensorProductLinear("3x1e+4x0e+2x1o", scalar_first=True, backend=backend)
    out = module.apply(parameters, x, y, edges=edges)
    expected = linear.apply(parameters, product).array
    np.testing.assert_allclose(out.array, expected, atol=200 * 2**-24 * np.abs(expected).max())
