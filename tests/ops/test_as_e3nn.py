"""Modules have the parameters, irreps, blocks known to be zero, and results of e3nn's.

Irreps, options and the blocks that are zero are drawn at random.
"""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import UNOPTIMIZED, initial

ROWS, SETS = 3, 2
ENDS = np.array([0, 1, 2, 2]), np.array([1, 0, 1, 0])
EDGES = ops.Edges.from_arrays(*ENDS, ROWS)
SEEDS = pytest.mark.parametrize("seed", tiers.slow_unless((4,), *range(12)))
BACKENDS = ("xla", "llvm")
NATIVE = pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS, "e3nn"))


def random_irreps(rng, most: int = 4, largest: int = 3) -> e3nn.Irreps:
    """Unsorted, with repetitions."""
    irs = rng.choice(["0e", "0o", "1o", "1e", "2e"], rng.integers(1, most + 1))
    return e3nn.Irreps([(int(rng.integers(1, largest + 1)), str(ir)) for ir in irs])


def with_zeros(rng, irreps, lead=(ROWS,), zeros: float = 0.35):
    """Return an array of which about every third block is known to be zero."""
    shapes = [(*lead, mul, ir.dim) for mul, ir in e3nn.Irreps(irreps)]
    chunks = [None if rng.random() < zeros else rng.normal(size=shape) for shape in shapes]
    chunks = [None if c is None else jnp.asarray(c, jnp.float32) for c in chunks]
    return e3nn.from_chunks(e3nn.Irreps(irreps), chunks, lead, jnp.float32)


def result(function, *args):
    """Return a compiled function's result, and which of its blocks are known to be zero."""
    flags = []

    def traced(*args):
        out = function(*args)
        flags.append(out.zero_flags)
        return out

    return jax.jit(traced, compiler_options=UNOPTIMIZED)(*args), flags[0]


def assert_same(found, expected):
    """Values, of a few hundred products at most, are those of float32."""
    (found, zeros), (expected, expected_zeros) = found, expected
    assert (found.irreps, zeros) == (expected.irreps, expected_zeros)
    scale = max(1.0, np.abs(expected.array).max(initial=0))
    np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-5 * scale)


def assert_modules_agree(ours, theirs, operands, reference=None, after=lambda out: out):
    """Compare trees of parameters, their first values, and results.

    Args:
      reference: operands of `theirs`, if they are others.
      after: what follows `theirs`.
    """
    reference = operands if reference is None else reference
    params, found = initial(theirs, *reference), initial(ours, *operands)
    assert list(found.get("params", {})) == list(params.get("params", {}))
    jax.tree.map(np.testing.assert_array_equal, found, params)
    expected = result(lambda p: after(theirs.apply(p, *reference)), params)
    assert_same(result(lambda p: ours.apply(p, *operands), params), expected)


@SEEDS
def test_products(seed):
    rng = np.random.default_rng(seed)
    x, y = (with_zeros(rng, random_irreps(rng)) for _ in range(2))
    of_edges = with_zeros(rng, y.irreps, (EDGES.num_edges,))
    for ours, theirs in (
        (lambda **b: ops.tensor_product(x, y, **b), lambda: e3nn.tensor_product(x, y)),
        (
            lambda **b: ops.elementwise_tensor_product(x, x, **b),
            lambda: e3nn.elementwise_tensor_product(x, x),
        ),
        (
            lambda **b: ops.graph_tensor_product(x, of_edges, None, EDGES, **b),
            lambda: messages(x, of_edges),
        ),
    ):
        expected = result(theirs)
        for backend in BACKENDS:
            assert_same(result(functools.partial(ours, backend=backend)), expected)


@SEEDS
@pytest.mark.parametrize("indexed", [False, True])
def test_linears(seed, indexed):
    rng = np.random.default_rng(seed)
    options = {"force_irreps_out": bool(rng.random() < 0.7), "biases": bool(rng.integers(2))}
    options["num_indexed_weights"] = SETS if indexed else None
    before = (jnp.array([0, 1, 1]),) if indexed else ()
    out, x = random_irreps(rng), with_zeros(rng, random_irreps(rng))
    for backend in BACKENDS:
        modules = ops.Linear(out, backend=backend, **options), e3nn.flax.Linear(out, **options)
        assert_modules_agree(*modules, (*before, x))


def messages(x, y, weights=None, keep=None, graph=True):
    """Return e3nn's product of x and y, on a graph weighted and summed."""
    rows = x[EDGES.senders] if graph else x
    product = e3nn.tensor_product(rows, y, filter_ir_out=keep)
    product = product if weights is None else product * weights
    return e3nn.scatter_sum(product, dst=EDGES.receivers, output_size=ROWS) if graph else product


@NATIVE
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("graph", [False, True])
@SEEDS
def test_layers(seed, graph, gated, backend):
    """With dropped, repeated and unreachable irreps, and every option."""
    rng = np.random.default_rng(seed)
    out, *operands = (random_irreps(rng, most) for most in (5, 4, 1 + seed % 3))
    zeros = 0.35
    if gated:  # e3nn's gate fails where a part of the scalars is known to be zero
        out = e3nn.Irreps([(mul, ir) for mul, ir in out if ir != "0o"])
        out = e3nn.Irreps(f"{out.num_irreps + 1}x0e") + out + "1x1o"
        operands, zeros = [irreps + "1x0e" for irreps in operands], 0
    x = with_zeros(rng, operands[0], zeros=zeros)
    y = with_zeros(rng, operands[1], (EDGES.num_edges if graph else ROWS,), zeros)
    keep = None if gated or seed % 3 else [ir for _, ir in random_irreps(rng)]
    options = {
        "biases": bool(rng.integers(2)),
        "force_irreps_out": gated or bool(rng.integers(2)),
        "path_normalization": rng.choice(["element", "path"]),
        "gradient_normalization": rng.choice(["element", "path"]),
    }
    op = ops.TensorProductLinearGate if gated else ops.TensorProductLinear
    ours, theirs = op(out, backend=backend, filter_ir_out=keep, **options), e3nn.flax.Linear
    product = messages(x, y, keep=keep, graph=graph)
    assert_modules_agree(
        *(ours, theirs(out, **options), (x, y, None, EDGES if graph else None)),
        reference=(product,),
        after=e3nn.gate if gated else lambda z: z,
    )


def test_a_skip_of_zeros_is_zero():
    rng = np.random.default_rng(3)
    x, y = (with_zeros(rng, irreps, zeros=0.0) for irreps in ("2x0e+1o", "0e"))
    modules = [
        ops.TensorProductLinear("3x0e+2x2e", force_irreps_out=True, backend=b)
        for b in ("llvm", "e3nn")
    ]
    params, skip = modules[1].init(jax.random.key(0), x, y), e3nn.zeros("3x0e+2x2e", (ROWS,))
    found, expected = (result(lambda m=m: m.apply(params, x, y, skip=skip)) for m in modules)
    assert expected[1] == (False, True)
    assert_same(found, expected)


@pytest.mark.parametrize("irreps", ["3x0e+3x0e", "3x0e+3x0e+2x1o", "2x0o+2x0e+3x0e+1o+1x1o"])
@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
def test_gated_blocks_are_those_that_were_asked_for(irreps, backend):
    x, y = (
        e3nn.normal(i, jax.random.key(k), (ROWS,)) for k, i in enumerate(("4x0e+2x1o", "0e+1o"))
    )
    theirs, ours = (
        ops.TensorProductLinearGate(irreps, force_irreps_out=True, backend=b)
        for b in ("e3nn", backend)
    )
    assert_modules_agree(ours, theirs, (x, y))


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
@pytest.mark.parametrize(("graph", "irreps_y"), [(False, "1x0e"), (True, "2x0e")])
def test_output_without_a_path_is_zero(backend, graph, irreps_y):
    x = e3nn.normal("3x0e+2x0e", jax.random.key(0), (ROWS,))
    y = e3nn.normal(irreps_y, jax.random.key(1), (EDGES.num_edges if graph else ROWS,))
    operands = (x, y, None, EDGES if graph else None)
    for op in (ops.TensorProductLinear, ops.TensorProductLinearGate):
        for force in (True, False):
            theirs = op("3x0o", force_irreps_out=force, backend="e3nn")
            ours = op("3x0o", force_irreps_out=force, backend=backend, fused="always")
            assert_modules_agree(ours, theirs, operands)
    biased = [
        ops.TensorProductLinear("3x0e+2x1o", biases=True, force_irreps_out=True, **o)
        for o in ({"backend": "e3nn"}, {"backend": backend, "fused": "always"})
    ]
    empty = e3nn.IrrepsArray("2x1e", jnp.ones((ROWS, 6))), e3nn.IrrepsArray("0e", y.array[:, :1])
    operands = (*empty, *operands[2:])
    params = jax.tree.map(jnp.ones_like, biased[0].init(jax.random.key(2), *operands))
    theirs, ours = (result(lambda m=m: m.apply(params, *operands)) for m in biased)
    assert_same(ours, theirs)
    assert (ours[0].array[:, :3] == 1).all()


MANY = "6x0e+5x1o", "5x0e+6x1o", "3x1e+4x0e"  # what no one kernel computes is composed
FEW = "3x0e+2x1o", "0e+1o+2e", "4x2e+2x1o+3x2e+1x3e"


@NATIVE
@pytest.mark.parametrize(
    ("irreps", "columns"), [(FEW, None), (MANY, 1), pytest.param(MANY, 0, marks=pytest.mark.slow)]
)
def test_weights_of_the_kept_irreps(irreps, columns, backend):
    """Weights are of those irreps that `irreps_out` has; the others have none, and count.

    With one column, all irreps share it; with zero, there are no weights.
    """
    rng = np.random.default_rng(5)
    x, y, out = irreps
    weights = wide = None
    if columns != 0:
        kept = [ir in e3nn.Irreps(out) for mul, ir in e3nn.tensor_product(x, y) for _ in range(mul)]
        wide = np.where(kept, rng.normal(size=(EDGES.num_edges, columns or len(kept))), 0)
        wide = jnp.asarray(wide, jnp.float32)
        weights = wide[:, np.array(kept)][:, :columns]
    x, y = with_zeros(rng, x, zeros=0), with_zeros(rng, y, (EDGES.num_edges,), zeros=0)
    ours, theirs = ops.TensorProductLinear(out, backend=backend), e3nn.flax.Linear(out)
    assert_modules_agree(ours, theirs, (x, y, weights, EDGES), (messages(x, y, wide),))
