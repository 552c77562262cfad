"""Each kind of step of `ops.sequence`, compared with JAX; nothing of it may be left to XLA."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from eqfuse.ops.ir.program import Array, Copy, Elementwise, ElementwiseLoop, Program
from eqfuse.ops.transforms.sequence.sequence import Sequence

# Triton's interpreter computes what is masked too
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")

ROWS = 50  # neither a multiple of a vector nor less than one
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
WIDE = np.concatenate(
    [RNG.normal(size=40) * 10.0 ** RNG.integers(-9, 3, 40), [0.0, -0.0, np.inf, -np.inf, np.nan]]
).astype(np.float32)
INDEX = RNG.integers(-1, 9, 20).astype(np.int32)  # some are below 0, some beyond 6 rows
TABLE = RNG.normal(size=(6, 3)).astype(np.float32)


BACKENDS = ["llvm"]
"""Where steps run: the fixture `on` changes it."""


@pytest.fixture(params=["llvm", "triton-interpret"], autouse=True)
def on(request, monkeypatch):
    if request.param != "llvm":
        pytest.importorskip("triton", reason="the interpreter is part of triton")
    monkeypatch.setattr(f"{__name__}.BACKENDS", [request.param])
    return request.param


def computed(function, *args, dtype=jnp.float32):
    """`function(*args)` by a sequence, of which nothing is XLA's.

    A Linear stands beside it: without one there is no kernel to be part of.
    """

    def beside(z, *args):
        return function(*args), ops.grouped_dense(z, [z], scale=1.0, backend=BACKENDS[0])

    z = jnp.eye(4, dtype=dtype)
    traced = Sequence(jax.make_jaxpr(beside)(z, *args), 1e9)
    assert set(traced.stages.reasons) == {""}, traced.stages.reasons
    assert len(traced.stages.native) == 1
    return ops.sequence(beside, most=1e9)(z, *args)[0]


def are_same(found, expected) -> bool:
    """Return whether they are equal, NaN where NaN is, with the dtypes and shapes of each."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True) for a, b in pairs)


FUNCTIONS = {
    "exp": np.exp,
    "expm1": np.expm1,
    "tanh": np.tanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_functions_are_those_of_float64_to_a_few_units_in_the_last_place(name):
    found = np.asarray(computed(getattr(lax, name), WIDE), np.float64)
    exact = FUNCTIONS[name](WIDE.astype(np.float64))
    exact32 = exact.astype(np.float32)
    finite = np.isfinite(exact32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact32))
    np.testing.assert_array_equal(found[np.isinf(exact32)], exact32[np.isinf(exact32)])
    # three roundings of a function of a few operations, each half a unit
    unit = np.spacing(np.abs(exact32[finite]))
    assert (np.abs(found - exact)[finite] <= 3 * unit).all()


ELEMENTWISE = {
    "arithmetic": lambda x: (x + 2) * x - x / (1 + x * x) - (-x),
    "powers": lambda x: (x**3, lax.integer_pow(x, -2), jnp.abs(x), jnp.sign(x), x * 0.5),
    "comparisons": lambda x: (x > 0, x >= x.T[0, 0], x < 0.3, x <= 1, x == x, x != x),
    "choices": lambda x: jnp.where((x > 0) & ~(x > 1) | (x < -1), x, -2.0),
    "extremes": lambda x: (jnp.maximum(x, 0.1), jnp.minimum(x, -x), jnp.clip(x, -0.5, 0.5)),
    "integers": lambda x: jnp.maximum(x.astype(jnp.int32) * 3 - 1, 0) == 2,
    "dtypes": lambda x: ((x > 0).astype(jnp.float32), (x * 9).astype(jnp.int32), x.astype(bool)),
    "finite": lambda x: jnp.isfinite(x),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("array", ["of numbers", "with NaN and inf"])
def test_elementwise(name, array):
    x = X if array == "of numbers" else np.resize(WIDE, (15, 3))
    found, expected = computed(ELEMENTWISE[name], x), jax.jit(ELEMENTWISE[name])(x)
    if name in ("arithmetic", "powers"):  # XLA joins and reorders some of it
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=3e-6, atol=1e-6)
    else:
        assert are_same(found, expected)


SHAPES = {
    "broadcast": lambda x: (jnp.broadcast_to(x[:, None], (ROWS, 4, 3)), x * x[:, :1], x + x[:1]),
    "transpose": lambda x: (x.T, jnp.transpose(x.reshape(5, 10, 3), (2, 0, 1)) + 0),
    "slice": lambda x: (x[3:40:4, 1:], x[:, 2], x[::-1], x[7]),
    "concatenate": lambda x: (jnp.concatenate([x, -x, x[:, :1]], 1), jnp.stack([x, x + 1], 1)),
    "split": lambda x: [part * 2 for part in jnp.split(x, [10, 10, 30])],
    "pad": lambda x: (lax.pad(x, 1.5, ((2, 1, 3), (0, 2, 0))), jnp.pad(x, ((0, 0), (1, 0)))),
    "pad that cuts off": lambda x: [
        lax.pad(x, 0.5, ((low, high, inner), (1, -2, 0)))
        for low in (-7, -1, 0, 2)
        for high in (-8, 3)
        for inner in (0, 1, 2)
    ],
    "reshape": lambda x: (x.reshape(3, ROWS) + 1, x.reshape(1, -1, 1), x.reshape(-1)),
    "an input": lambda x: (x, x.reshape(-1), jnp.zeros((4, 5)), x),
    "nothing": lambda x: (x[:0], jnp.concatenate([x[:0], x])),
}


@pytest.mark.parametrize("name", SHAPES)
def test_changes_of_shape(name):
    assert are_same(computed(SHAPES[name], X), jax.jit(SHAPES[name])(X))


MATMULS = {
    "matrices": lambda x: x[:7] @ x[7:20].T,
    "contracted rows": lambda x: jnp.einsum("zi,zj->ij", x, x[:, :2]),
    "batches": lambda x: jnp.einsum("zij,zkj->kzi", x.reshape(5, 10, 3), x[:20].reshape(5, 4, 3)),
    "two axes": lambda x: jnp.tensordot(x.reshape(5, 10, 3), x[:40].reshape(10, 3, 4), 2),
    "vectors": lambda x: x[0] @ x[1],
    "outer": lambda x: lax.dot_general(x[:, 0], x[0], (([], []), ([], []))),
    "by a number": lambda x: x @ jnp.full((3, 2), 0.5, x.dtype),
}


@pytest.mark.parametrize("name", MATMULS)
def test_small_matmuls(name):
    found = computed(MATMULS[name], X)
    with jax.enable_x64(True):
        exact = MATMULS[name](jnp.asarray(X, jnp.float64))
    assert (found.dtype, exact.dtype) == (jnp.float32, jnp.float64)
    # as many roundings as there are terms, of terms under ten
    np.testing.assert_allclose(found, exact, rtol=0, atol=ROWS * 10 * 2.0**-24)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (2,), (0, 2), (1, 2)])
def test_sums_and_extremes_over_axes(axes):
    x = RNG.integers(-9, 9, (7, 18, 20)).astype(np.float32)  # sums are exact

    def reduced(x):
        positive = x > 0
        return (
            x.sum(axes),
            x.max(axes),
            x.min(axes),
            positive.any(axes),
            positive.all(axes),
            x.astype(jnp.int32).sum(axes),
        )

    assert are_same(computed(reduced, x), jax.jit(reduced)(x))
    assert np.isnan(computed(lambda x: x.max(axes), x * np.nan)).all()


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_rows_are_gathered_and_added(mode):
    index = INDEX if mode != "promise_in_bounds" else np.abs(INDEX) % 6

    def function(table, index, updates):
        read = table.at[index].get(mode=mode)
        return read, table.at[index].add(updates, mode=mode.replace("fill", "drop"))

    updates = RNG.integers(-9, 9, (20, 3)).astype(np.float32)
    table = np.round(TABLE * 4)
    assert are_same(
        computed(function, table, index, updates), jax.jit(function)(table, index, updates)
    )


def test_float64():
    with jax.enable_x64(True):
        x = X.astype(np.float64)

        def function(x):
            return jnp.tanh(x) + jnp.exp(-x) * jax.nn.silu(x), x.astype(jnp.float32).sum(0)

        found = computed(function, x, dtype=jnp.float64)
        for a, b in zip(found, function(x), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-14 if a.dtype == np.float64 else 1e-5)


def random_program(seed: int) -> Program:
    """Element-wise functions and copies of arrays of two sizes, in a random order of use."""
    rng = np.random.default_rng(seed)
    arrays, steps = [Array(16, "float32"), Array(700, "float32")], []
    for n in range(2, 40):
        read = int(rng.integers(max(0, n - 8), n))
        arrays.append(Array(int(rng.choice([16, 700])), "float32"))
        same = arrays[read].size == arrays[n].size
        sizes = min(arrays[read].size, arrays[n].size), 1, 1
        copy = Copy((read,), n, *((size,) for size in sizes))
        steps.append(Elementwise("sin", (read,), n) if same else copy)
    return Program(tuple(arrays), (0, 1), (39,), tuple(steps))


@pytest.mark.parametrize("seed", range(5))
def test_arrays_that_are_used_at_the_same_time_lie_apart(seed):
    program = random_program(seed).in_loops
    places, total = program.places()
    assert total < sum(program.arrays[n].bytes for n in places)  # memory is used again
    for a, b in itertools.combinations(places, 2):
        (first, last), (begin, end) = program.uses[a], program.uses[b]
        ends = places[a] + program.arrays[a].bytes, places[b] + program.arrays[b].bytes
        assert last < begin or end < first or ends[0] <= places[b] or ends[1] <= places[a]


@pytest.mark.parametrize("seed", range(5))
def test_functions_in_one_loop_come_after_what_they_read(seed):
    program = random_program(seed).in_loops
    assert len(program.steps) < len(random_program(seed).steps)
    known = set(program.inputs)
    for step in program.steps:
        for one in step.functions if isinstance(step, ElementwiseLoop) else (step,):
            assert known.issuperset(one.reads)
            known.add(one.write)
