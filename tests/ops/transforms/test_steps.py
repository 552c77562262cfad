"""Steps of `ops.sequence`: bit for bit what JAX computes, also at the corners, or refused.

Each of `CASES` runs on arrays of a shape drawn at random, in dtypes whose arithmetic is exact here.
"""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from eqfuse.ops.ir.program import Array, Copy, Elementwise, ElementwiseLoop, Number, Program
from eqfuse.ops.transforms.sequence import Sequence

INT = np.iinfo(np.int32)
CORNERS = {
    "float32": [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -3e38, 3e38, 2.5, -2.5, 1.0, -1.0],
    "float64": [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-300, -1e308, 1e308, 3e9, -2.5, 1.0, -1.0],
    "int32": [0, 1, -1, INT.max, INT.min, 46341, -46341, 7, 2**30, -(2**30)],
    "bool": [False, True],
}


def drawn(dtype: str, seed: int, dims: int = 3):
    """Return an array of a random shape, of the corners of its dtype."""
    rng = np.random.default_rng(seed)
    return rng.choice(np.asarray(CORNERS[dtype], dtype), tuple(rng.integers(1, 10, dims)))


def beside(function):
    """Return a function with a Linear beside it: without one there is no kernel to be part of."""
    return lambda z, *a: (function(*a), ops.grouped_dense(z, [z], scale=1.0, backend="llvm"))


def reasons_of(function, *args, dtype=np.float32) -> set[str]:
    """Return why parts of a function are XLA's, "" for those that are not."""
    closed = jax.make_jaxpr(beside(function))(np.eye(4, dtype=dtype), *args)
    return set(Sequence(closed, 1e9).reasons.values())


def traced(function, *args, dtype=np.float32):
    """Return `function(*args)` by a sequence, and why parts of it are XLA's."""
    found, _ = ops.sequence(beside(function), most=1e9)(np.eye(4, dtype=dtype), *args)
    return found, reasons_of(function, *args, dtype=dtype)


def computed(function, *args, **keywords):
    """Return `function(*args)` by a sequence, of which nothing is XLA's."""
    found, reasons = traced(function, *args, **keywords)
    assert reasons == {""}, reasons
    return found


def check(function, *args):
    """Compare the bits with JAX's, and find nothing left to XLA."""
    found, expected = computed(function, *args), jax.jit(function)(*args)
    pairs = zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True)
    for (path, a), b in pairs:
        assert (a.shape, a.dtype) == (b.shape, b.dtype), path
        np.testing.assert_array_equal(a, b, err_msg=str(path))
        if a.dtype.kind == "f":
            known = ~np.isnan(a)
            np.testing.assert_array_equal(np.signbit(a)[known], np.signbit(b)[known], str(path))


def pairs(x):
    """Return every element, of 40 at most, against every other one."""
    x = x.reshape(-1)[:40]
    return x[:, None], x[None, :]


def compared(x):
    a, b = pairs(x)
    return a == b, a != b, a < b, a <= b, a > b, a >= b


def extremes(x):
    a, b = pairs(x)
    return jnp.maximum(a, b), jnp.minimum(a, b), jnp.clip(x, x[:1], 1), x.max(0), x.min(-1), x.max()


def moved(x):
    rows = x.reshape(1, -1, x.shape[0])
    return (
        *(x[::-1, :, ::-1], x[:, ::-1].T, lax.rev(x, (0, 1, 2)), x[::-2] if len(x) > 1 else x),
        *(x[-1], x[:, 0], x[1:, ::3], jnp.transpose(x, (1, 2, 0)), rows, rows.T, x.reshape(-1), x),
        *(jnp.broadcast_to(x[:, None], (x.shape[0], 4, *x.shape[1:])), jnp.zeros((4, 5))),
    )


def padded(x):
    zero = np.zeros((), x.dtype)[()]
    return [
        lax.pad(x, zero, ((low, high, inner), (0, 1, 0), (2, -1, 1)))
        for low in (-2, 0, 3)
        for high in (-1, 2)
        for inner in (0, 2)
        if len(x) + low + high + inner * (len(x) - 1) >= 0
    ]


def joined(x):
    several = jnp.concatenate([x, x[:0], x, x, x], 0)
    return several, jnp.stack([x, x], 2), jnp.split(x, len(x)), jnp.split(several, [3, 3])


def converted(x):
    to = ("float32", "int32", "bool", "float64") if jax.config.jax_enable_x64 else ("float32",)
    return [x.astype(dtype) for dtype in ("int32", "bool", *to)]


def reduced(x):
    """Return sums that are exact, and whether any and all are, over every choice of axes."""
    small = jnp.where(jnp.isfinite(x), jnp.clip(x, -9, 9), 1).astype("int32")
    axes = [a for n in (1, 2, 3) for a in itertools.combinations(range(3), n)]
    return [f for a in axes for f in (small.sum(a), (x > 0).any(a), (x > 0).all(a), x.max(a))]


CASES = {
    "extremes": ("float32 float64 int32", extremes),
    "compared": ("float32 float64 int32 bool", compared),
    "clamp": (
        "float32 float64 int32",
        lambda x: [lax.clamp(x.ravel()[n], x, x.ravel()[n - 1]) for n in range(min(x.size, 8))],
    ),
    "clamp by arrays": ("float32 int32", lambda x: lax.clamp(x[::-1], x, x[:, ::-1])),
    "signs": ("float32 float64", lambda x: (jnp.sign(x), jnp.abs(x), -x, jnp.isfinite(x))),
    "roots": ("float32 float64", lambda x: (jnp.sqrt(x), lax.integer_pow(x, 0), x * x)),
    "powers": ("float32 float64", lambda x: [lax.integer_pow(x, n) for n in (2, 3, -1, -2)]),
    "integers": (
        "int32",
        lambda x: [-x] + [f(*pairs(x)) for f in (jnp.add, jnp.subtract, jnp.multiply)],
    ),
    "bits": (
        "int32 bool",
        lambda x: [~x] + [f(*pairs(x)) for f in (lax.bitwise_and, lax.bitwise_or)],
    ),
    "choices": ("float32 float64 int32 bool", lambda x: jnp.where(x != 0, x, x.ravel()[-1])),
    "converted": ("float32 float64 int32 bool", converted),
    "moved": ("float32 float64 int32 bool", moved),
    "padded": ("float32 float64 int32 bool", padded),
    "joined": ("float32 float64 int32 bool", joined),
    "barrier": ("float32 int32", lambda x: lax.optimization_barrier((x, x[::-1], -x))),
    "reduced": ("float32 int32", reduced),
    "any and all": ("bool", lambda x: (x.any(0), x.all(1), x.any((0, 2)), x.all())),
}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", CORNERS)
def test_steps_have_the_bits_of_jax(dtype, seed):
    cases = {name: case for name, (dtypes, case) in CASES.items() if dtype in dtypes.split()}
    with jax.enable_x64(dtype == "float64"):
        check(lambda x: {name: case(x) for name, case in cases.items()}, drawn(dtype, seed))


WIDE = np.random.default_rng(0).normal(size=40) * 10.0 ** np.random.default_rng(1).integers(
    -9, 3, 40
)
WIDE = np.array([*WIDE, 0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
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


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_functions_are_those_of_float64_to_a_few_units_in_the_last_place():
    results = computed(lambda x: {name: getattr(lax, name)(x) for name in FUNCTIONS}, WIDE)
    for name, function in FUNCTIONS.items():
        found, exact = np.asarray(results[name], float), function(WIDE.astype(float))
        exact32 = exact.astype(np.float32)
        finite, infinite = np.isfinite(exact32), np.isinf(exact32)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(exact32), name)
        np.testing.assert_array_equal(found[infinite], exact32[infinite], name)
        # three roundings of a function of a few operations, each half a unit
        unit = np.spacing(np.abs(exact32[finite]))
        assert (np.abs(found - exact)[finite] <= 3 * unit).all(), name


def test_functions_in_float64(x64):
    def function(x):
        return jnp.tanh(x) + jnp.exp(-x) * jax.nn.silu(x), x.astype(jnp.float32).sum(0)

    x = np.random.default_rng(0).normal(size=(50, 3))
    found = computed(function, x, dtype=np.float64)
    for a, b in zip(found, function(x), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-14 if a.dtype == np.float64 else 1e-5)


X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
MATMULS = {
    "matrices": lambda x: x[:7] @ x[7:20].T,
    "contracted rows": lambda x: jnp.einsum("zi,zj->ij", x, x[:, :2]),
    "batches": lambda x: jnp.einsum("zij,zkj->kzi", x.reshape(5, 10, 3), x[:20].reshape(5, 4, 3)),
    "two axes": lambda x: jnp.tensordot(x.reshape(5, 10, 3), x[:40].reshape(10, 3, 4), 2),
    "vectors": lambda x: x[0] @ x[1],
    "outer": lambda x: lax.dot_general(x[:, 0], x[0], (([], []), ([], []))),
    "by a number": lambda x: x @ jnp.full((3, 2), 0.5, x.dtype),
}


def test_small_matmuls():
    def all_of_them(x):
        return [matmul(x) for matmul in MATMULS.values()]

    found = computed(all_of_them, X)
    with jax.enable_x64(True):
        expected = all_of_them(jnp.asarray(X, jnp.float64))
    for name, a, exact in zip(MATMULS, found, expected, strict=True):
        assert (a.dtype, exact.dtype) == (jnp.float32, jnp.float64)
        # as many roundings as there are terms, of terms under ten
        np.testing.assert_allclose(a, exact, rtol=0, atol=50 * 10 * 2.0**-24, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arithmetic_of_nan_inf_and_zeros(dtype):
    # every pair lies in memory: by a number for many, XLA divides as by its reciprocal
    a, b = (np.array(x) for x in np.broadcast_arrays(*pairs(np.asarray(CORNERS[dtype], dtype))))
    with jax.enable_x64(dtype == "float64"):
        check(lambda a, b: (a + b, a - b, a * b, a / b), a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_not_in_memory(dtype):
    """A function of numbers alone, each the same everywhere; none of them an array."""
    with jax.enable_x64(dtype == "float64"):
        values = [jnp.full((), v, dtype) for v in CORNERS[dtype]]

    def function(x):
        found = []
        for value in CORNERS[dtype]:
            full = jnp.full((2, 3), value, dtype)
            found += [full > 1, full <= jnp.full((2, 3), 2, dtype), jnp.isfinite(full)]
            found += [full.astype("int32"), full.astype(bool), jnp.maximum(full, 0), full * x]
            found += [jnp.where(full > 0, full, 3), full.max(0), -full]
        return found

    with jax.enable_x64(dtype == "float64"):
        check(function, np.zeros((2, 3), dtype))
        check(lambda x: [x * v for v in values], -np.zeros((2, 3), dtype))


def test_parts_of_an_input_are_read_where_they_are():
    """Also parts of parts, and matrices; what is returned, or is not in order, is copied."""

    def function(x):
        rest = x[2:]
        matrix = rest[2:18].reshape(4, 4)
        rows = ops.grouped_dense(x[None, 3:7], [matrix], backend="llvm")
        return rest[4:8] * x[5:9], matrix.T, rest, rows

    x = np.random.default_rng(0).normal(size=20).astype(np.float32)
    check(function, x)
    [stage] = Sequence(jax.make_jaxpr(function)(x), 1e9).native
    assert {start for _, _, start in stage.program.views} == {2, 3, 4, 5, 6}
    assert sum(isinstance(step, Copy) for step in stage.program.steps) == 2


def test_zeros_of_both_signs():
    zeros = jnp.asarray([0.0, -0.0, 0.0])
    for constant in (zeros, zeros[::-1]):
        check(lambda x, constant=constant: x + constant, np.asarray([-0.0, -0.0, 0.0], "f"))
    assert Number(0.0) != Number(-0.0)
    for zero in (0.0, -0.0):  # not the same kernel
        x = np.asarray([-0.0, 0.0], np.float32)
        check(lambda x, zero=zero: (x * np.float32(zero), jnp.stack([x, jnp.full(2, zero)])), x)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("dims", [1, 3])
def test_rows_are_gathered_and_added(mode, dtype, dims):
    table = drawn(dtype, dims, dims)
    size = len(table)
    outside = [] if mode == "promise_in_bounds" else [size, INT.max, INT.min, -size - 1]
    index = np.asarray([[0, 0, size - 1, -1, -size, size // 2, *outside]], np.int32)
    fill = {} if mode != "fill" else {"fill_value": True if dtype == "bool" else -7}

    def gathered(table, index):
        read = table.at[index].get(mode=mode, **fill)
        return read, table.at[index].get(mode=mode, wrap_negative_indices=False)

    check(gathered, table, index)
    if dtype != "bool":
        rows = np.random.default_rng(0).choice(table.ravel(), (1, index.size, *table.shape[1:]))
        mode = mode.replace("fill", "drop")
        check(lambda t, i, r: t.at[i].add(r, mode=mode), table, index, rows)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_arrays_without_elements(dtype):
    def function(x):
        none = x[:0]
        joined = jnp.concatenate([none, x, none])
        zero = np.zeros((), dtype)[()]
        return (
            *(none, none[::-1], none.T, joined, x[:, :0].reshape(0), jnp.where(none, none, none)),
            *(lax.pad(none, zero, ((1, 1, 0), (0, 0, 1))), x[jnp.zeros(0, "int32")]),
        )

    check(function, np.asarray([[0, 1, 1], [1, 0, 1]], dtype))


REFUSED = {
    "integers divided": (lambda x: lax.div(x, x), "int32"),
    "powers of integers": (lambda x: lax.integer_pow(x, 3), "int32"),
    "clamped bool": (lambda x: lax.clamp(x, x, x), "bool"),
    "larger bool": (lambda x: lax.max(x, x), "bool"),
    "a sum of nothing": (lambda x: x[:0].sum(0), "float32"),
    "columns": (lambda x: x[:, np.asarray([0, 0])], "float32"),
    "the larger of rows": (lambda x: x.at[np.asarray([0, 0])].max(x[:1]), "float32"),
    "short integers": (lambda x: x.astype("int8") + 1, "int32"),
    "short constants": (lambda x: jnp.full(2, 7).astype("int8"), "int32"),
    "complex": (lambda x: lax.complex(x, x), "float32"),
    "choices of three": (lambda x: lax.select_n(x % 3, *[x * n for n in (1, 2, 3)]), "int32"),
}


@pytest.mark.parametrize("dtype", ["int32", "bool", "float32"])
def test_refused_steps_are_what_jax_computes(dtype):
    cases = {name: function for name, (function, of) in REFUSED.items() if of == dtype}
    x = np.resize(np.asarray(CORNERS[dtype], dtype), (2, 3, 2))
    for name, function in cases.items():
        assert reasons_of(function, x) - {""}, name
    if "fusion_emitters=false" in os.environ.get(
        "XLA_FLAGS", ""
    ):  # XLA's others have no such clamp
        cases.pop("clamped bool", None)

    def all_of_them(x):
        return {name: function(x) for name, function in cases.items()}

    found, expected = traced(all_of_them, x)[0], jax.jit(all_of_them)(x)
    for name, b in expected.items():
        assert found[name].dtype == b.dtype
        kind = np.complex64 if b.dtype.kind == "c" else np.float32  # of which NaN compare
        np.testing.assert_array_equal(*(np.asarray(a, kind) for a in (found[name], b)), name)


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
def test_arrays_and_functions_of_one_loop(seed):
    """Arrays that are used at the same time lie apart; functions come after what they read."""
    program = random_program(seed).in_loops
    places, total = program.places()
    assert total < sum(program.arrays[n].bytes for n in places)  # memory is used again
    for a, b in itertools.combinations(places, 2):
        (first, last), (begin, end) = program.uses[a], program.uses[b]
        ends = places[a] + program.arrays[a].bytes, places[b] + program.arrays[b].bytes
        assert last < begin or end < first or ends[0] <= places[b] or ends[1] <= places[a]
    assert len(program.steps) < len(random_program(seed).steps)
    known = set(program.inputs)
    for step in program.steps:
        for one in step.functions if isinstance(step, ElementwiseLoop) else (step,):
            assert known.issuperset(one.reads)
            known.add(one.write)
