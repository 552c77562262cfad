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
natively = pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))


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


def assert_same(
    module, reference, x, y, weights=None, edges=None, wide=None, product=None, after=lambda z: z
):
    """Compare trees and outputs with those of e3nn's Linear of a product, and what is `after` it.

    Args:
      wide: the weights of the whole product.
      product: that of x and y by `module.filter_ir_out`, summed to nodes, unless it is given.
    """
    if edges is not None:
        edges = ops.Edges.from_arrays(*edges, NODES)
    if product is None:
        rows = x if edges is None else x[edges.senders]
        product = e3nn.tensor_product(rows, y, filter_ir_out=module.filter_ir_out)
        if edges is not None:
            given = weights if wide is None else wide
            messages = product if given is None else product * given
            product = e3nn.scatter_sum(messages, dst=edges.receivers, output_size=NODES)
    index = jnp.arange(NODES) % SETS if module.num_indexed_weights else None
    operands = (product,) if index is None else (index, product)
    expected = reference.init(jax.random.key(1), *operands)
    value = after(reference.apply(expected, *operands))
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


MANY = "6x0e+5x1o", "5x0e+6x1o", "3x1e+4x0e"  # what no one kernel computes is composed


@natively
@pytest.mark.parametrize(
    ("irreps", "columns"),
    [
        (("3x0e+2x1o", "0e+1o+2e", "4x2e+2x1o+3x2e+1x3e"), None),
        (("3x0e+2x1o", "0e+1o+2e", "4x2e+2x1o+3x2e+1x3e"), 1),
        (MANY, None),
        pytest.param(MANY, 0, marks=pytest.mark.slow),
    ],
)
def test_weights_of_the_kept_irreps(irreps, columns, backend):
    """Weights are of those irreps that `irreps_out` has; the others have none, and count.

    With one column, all irreps share it; with zero, there are no weights.
    """
    rng = np.random.default_rng(5)
    x, y, irreps_out = map(e3nn.Irreps, irreps)
    weights = wide = None
    if columns != 0:
        whole = e3nn.tensor_product(x, y)
        kept = np.concatenate([[ir in irreps_out] * mul for mul, ir in whole])
        wide = np.where(kept, rng.normal(size=(EDGES, columns or kept.size)), 0)
        wide = jnp.asarray(wide, jnp.float32)
        weights = wide[:, kept][:, :columns]
    arrays = random_array(rng, x, NODES, False), random_array(rng, y, EDGES, False)
    edges = tuple(rng.integers(0, NODES, (2, EDGES)))
    module = ops.TensorProductLinear(irreps_out, backend=backend)
    assert_same(module, e3nn.flax.Linear(irreps_out), *arrays, weights, edges, wide)


@natively
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


@natively
def test_gate_and_scalar_first(backend):
    x, y = (e3nn.normal(i, jax.random.key(0), (NODES,)) for i in ("4x0e+4x1o", "0e+1o+2e"))
    linear = e3nn.flax.Linear("8x0e+4x2e")
    gate = ops.TensorProductLinearGate("8x0e+4x2e", backend=backend)
    assert_same(gate, linear, x, y, after=e3nn.gate)
    first = ops.TensorProductLinear("8x0e+4x2e", scalar_first=True, backend=backend)
    assert_same(first, linear, x, y)


@natively
@pytest.mark.parametrize("graph", [False, True])
def test_channelwise(graph, backend):
    """Check the unfiltered `channelwise_tensor_product`."""
    rng = np.random.default_rng(7)
    ends = rng.integers(0, NODES, (2, EDGES)) if graph else None
    x = random_array(rng, e3nn.Irreps("3x0e+3x1o+3x1e"), EDGES if graph else NODES, True)
    y = random_array(rng, e3nn.Irreps("3x1o+3x2e"), NODES, False)
    edges = ops.Edges.from_arrays(*ends, NODES) if graph else None
    product = ops.channelwise_tensor_product(x, y, edges, backend="e3nn")
    module = ops.TensorProductLinear("2x2e+4x1o+1x0e", channelwise=True, backend=backend)
    linear = e3nn.flax.Linear("2x2e+4x1o+1x0e")
    assert_same(module, linear, x, y, edges=ends, product=product)


@natively
def test_scalar_first_with_multiplicities_on_a_graph(backend):
    rng = np.random.default_rng(9)
    x = random_array(rng, e3nn.Irreps("6x0e+5x1o"), NODES, False)
    y = random_array(rng, e3nn.Irreps("1x0e+6x1o"), EDGES, False)
    senders, receivers = ends = rng.integers(0, NODES, (2, EDGES))
    parts = [
        e3nn.tensor_product(x[senders], part) for part in (y.slice_by_mul[:1], y.slice_by_mul[1:])
    ]
    messages = e3nn.concatenate(parts).regroup()
    product = e3nn.scatter_sum(messages, dst=receivers, output_size=NODES)
    module = ops.TensorProductLinear("3x1e+4x0e+2x1o", scalar_first=True, backend=backend)
    linear = e3nn.flax.Linear("3x1e+4x0e+2x1o")
    assert_same(module, linear, x, y, edges=ends, product=product)
