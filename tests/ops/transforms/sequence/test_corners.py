"""Steps of `ops.sequence` at the corners: bit for bit what JAX computes, or refused.

Each of `CASES` runs on arrays of a shape drawn at random, in dtypes whose arithmetic is exact here.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from eqfuse.ops.backends.llvm.machine import machine
from eqfuse.ops.backends.llvm.program import generate
from eqfuse.ops.ir.program import Number
from eqfuse.ops.transforms.sequence.sequence import Sequence

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
    shape = tuple(rng.integers(1, 10, dims))
    return rng.choice(np.asarray(CORNERS[dtype], dtype), shape)


def parts(function, *args):
    """Return a function with a Linear beside `function`, and its trace."""

    def beside(z, *args):
        return function(*args), ops.grouped_dense(z, [z], scale=1.0, backend="llvm")

    z = np.eye(4, dtype=np.float32)
    traced = Sequence(jax.make_jaxpr(beside)(z, *args), 1e9)
    return functools.partial(ops.sequence(beside), z), traced


def check(function, *args):
    """Compare the bits with JAX's, and find nothing left to XLA."""
    sequenced, traced = parts(function, *args)
    assert set(traced.stages.reasons) == {""}, traced.stages.reasons
    found, expected = sequenced(*args)[0], jax.jit(function)(*args)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)
        if a.dtype.kind == "f":
            known = ~np.isnan(a)
            np.testing.assert_array_equal(np.signbit(a)[known], np.signbit(b)[known])


def pairs(x):
    """Return every element against every other one."""
    x = x.reshape(-1)
    return x[:, None], x[None, :]


def extremes(x):
    a, b = pairs(x)
    return jnp.maximum(a, b), jnp.minimum(a, b), x.max(0), x.min(-1), x.max((0, 1, 2))


def compared(x):
    a, b = pairs(x)
    return a == b, a != b, a < b, a <= b, a > b, a >= b


def moved(x):
    return x[::-1, :, ::-1], x[:, ::-1].T, lax.rev(x, (0, 1, 2)), x[::-2] if len(x) > 1 else x


def padded(x):
    zero = np.zeros((), x.dtype)[()]
    return [
        lax.pad(x, zero, ((low, high, inner), (0, 1, 0), (2, -1, 1)))
        for low in (-2, 0, 3)
        for high in (-1, 2)
        for inner in (0, 2)
        if len(x) + low + high + inner * (len(x) - 1) >= 0
    ]


def converted(x):
    to = ("float32", "int32", "bool", "float64") if jax.config.jax_enable_x64 else ("float32",)
    return [x.astype(dtype) for dtype in ("int32", "bool", *to)]


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
    "powers": (
        "float32 float64",
        lambda x: [lax.integer_pow(x, n) for n in (2, 3, -1, -2)],
    ),
    "integers": (
        "int32",
        lambda x: [-x] + [f(*pairs(x)) for f in (jnp.add, jnp.subtract, jnp.multiply)],
    ),
    "bits": (
        "int32 bool",
        lambda x: [~x] + [f(*pairs(x)) for f in (lax.bitwise_and, lax.bitwise_or)],
    ),
    "choices": (
        "float32 float64 int32 bool",
        lambda x: jnp.where(x != 0, x, x.ravel()[-1]),
    ),
    "converted": ("float32 float64 int32 bool", converted),
    "moved": ("float32 float64 int32 bool", moved),
    "padded": ("float32 float64 int32 bool", padded),
    "joined": (
        "float32 float64 int32 bool",
        lambda x: (jnp.concatenate([x, x[:0], x], 0), jnp.stack([x, x], 2), jnp.split(x, len(x))),
    ),
    "barrier": ("float32 int32", lambda x: lax.optimization_barrier((x, x[::-1], -x))),
    "sums of integers": ("int32", lambda x: (x.sum(0), x.sum((1, 2)), x.sum())),
    "any and all": ("bool", lambda x: (x.any(0), x.all(1), x.any((0, 2)), x.all())),
}
OF_DTYPES = [(name, d) for name, (dtypes, _) in CASES.items() for d in dtypes.split()]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "dtype"), OF_DTYPES)
def test_corners(name, dtype, seed):
    with jax.enable_x64(dtype == "float64"):
        check(CASES[name][1], drawn(dtype, seed))


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


def test_constants_of_zeros_of_both_signs():
    zeros = jnp.asarray([0.0, -0.0, 0.0])
    check(lambda x: x + zeros, np.asarray([-0.0, -0.0, 0.0], np.float32))
    check(lambda x: x + zeros[::-1], np.asarray([-0.0, -0.0, 0.0], np.float32))


def test_steps_that_differ_in_the_sign_of_a_zero():
    assert Number(0.0) != Number(-0.0)
    x = np.asarray([-0.0, 0.0], np.float32)
    for zero in (0.0, -0.0):  # not the same kernel
        check(lambda x, zero=zero: x * np.float32(zero), x)
        check(lambda x, zero=zero: jnp.stack([x, jnp.full(2, zero)]), x)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("dims", [1, 3])
def test_gathered_rows(mode, dtype, dims):
    table = drawn(dtype, seed=dims, dims=dims)
    size = len(table)
    outside = [] if mode == "promise_in_bounds" else [size, INT.max, INT.min, -size - 1]
    index = np.asarray([[0, size - 1, -1, -size, size // 2, *outside]], np.int32)
    fill = {} if mode != "fill" else {"fill_value": True if dtype == "bool" else -7}
    check(lambda t, i: t.at[i].get(mode=mode, **fill), table, index)
    check(lambda t, i: t.at[i].get(mode=mode, wrap_negative_indices=False), table, index)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("mode", ["clip", "drop", "promise_in_bounds"])
@pytest.mark.parametrize("dims", [1, 3])
def test_rows_added(mode, dtype, dims):
    table = drawn(dtype, seed=dims + 4, dims=dims)
    size = len(table)
    outside = [] if mode == "promise_in_bounds" else [size, INT.max, INT.min, -size - 1]
    index = np.asarray([[0, 0, size - 1, -1, -size, 0, *outside]], np.int32)
    rows = np.random.default_rng(0).choice(table.ravel(), (1, index.size, *table.shape[1:]))
    check(lambda t, i, r: t.at[i].add(r, mode=mode), table, index, rows)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_arrays_without_elements(dtype):
    def function(x):
        none = x[:0]
        joined = jnp.concatenate([none, x, none])
        zero = np.zeros((), dtype)[()]
        return (
            none,
            none[::-1],
            none.T,
            joined,
            lax.pad(none, zero, ((1, 1, 0), (0, 0, 1))),
            x[:, :0].reshape(0),
            jnp.where(none, none, none),
            x[jnp.zeros(0, "int32")],
        )

    check(function, np.asarray([[0, 1, 1], [1, 0, 1]], dtype))


REFUSED = {
    "integers divided": (lambda x: lax.div(x, x), "int32"),
    "remainders": (lambda x: lax.rem(x, x), "float32"),
    "powers of integers": (lambda x: lax.integer_pow(x, 3), "int32"),
    "signs of integers": (lambda x: lax.sign(x), "int32"),
    "shifts": (lambda x: lax.shift_left(x, x), "int32"),
    "clamped bool": (lambda x: lax.clamp(x, x, x), "bool"),
    "larger bool": (lambda x: lax.max(x, x), "bool"),
    "a sum of nothing": (lambda x: x[:0].sum(0), "float32"),
    "a product": (lambda x: x.prod(0), "float32"),
    "columns": (lambda x: x[:, np.asarray([0, 0])], "float32"),
    "rows of part": (lambda x: lax.dynamic_slice(x, (1, 0, 0), (1, 1, 1)), "float32"),
    "the larger of rows": (lambda x: x.at[np.asarray([0, 0])].max(x[:1]), "float32"),
    "bits joined by a sum": (lambda x: lax.bitwise_xor(x, x), "int32"),
    "bits of all": (lambda x: lax.reduce_and(x, axes=(0,)), "int32"),
    "short integers": (lambda x: x.astype("int8") + 1, "int32"),
    "unsigned": (lambda x: x.astype("uint32") > 3, "int32"),
    "half": (lambda x: x.astype("bfloat16") * 2, "float32"),
    "complex": (lambda x: lax.complex(x, x), "float32"),
    "choices of three": (lambda x: lax.select_n(x, *[x * n for n in (1, 2, 3)]), "int32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_what_jax_computes(name):
    function, dtype = REFUSED[name]
    x = np.resize(np.asarray(CORNERS[dtype], dtype), (2, 3, 2))
    if name == "choices of three":
        x = x % 3
    sequenced, traced = parts(function, x)
    assert set(traced.stages.reasons) - {""}
    found, expected = sequenced(x)[0], jax.jit(function)(x)
    assert found.dtype == expected.dtype
    kind = np.complex64 if expected.dtype.kind == "c" else np.float32  # of which NaN compare
    np.testing.assert_array_equal(np.asarray(found, kind), np.asarray(expected, kind))


def calls(function) -> int:
    """Return how many calls of Python functions a function makes."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_of_compiling_grows_with_the_layers():
    def work(layers: int) -> np.ndarray:
        """Return calls to cut a chain of layers, to write its kernel, and to lay out its memory."""

        def function(x):
            kept = [x]
            for _ in range(layers):
                y = ops.grouped_dense(kept[-1], [kept[-1]], scale=0.5, backend="llvm")
                kept.append(jnp.sin(y).T)
            return sum(k.T.sum(0) for k in kept)  # all of them are used again, at the end

        traced = Sequence(jax.make_jaxpr(function)(np.eye(4, dtype=np.float32)), 1e9)
        cut = calls(lambda: traced.stages)
        [stage] = traced.stages.native
        written = calls(lambda: generate(stage.program, "float32", machine()))
        return np.array([cut, written, calls(stage.program.in_loops.places)])

    work(3)  # what is kept for the next time
    first, second, third = work(20), work(40), work(80)
    assert (third - second <= 2.2 * (second - first)).all()
