"""Linear, LinearSum and grouped_dense against e3nn.flax.Linear and jax.numpy."""

import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.ir.linear import LinearForm
from tests.ops.parity import PORTABLE, interpreted, only

IRREPS, OUT, OTHER = "5x0e+3x1o+2x0o+4x0e", "6x0e+2x1o+3x1e+4x0o+2x0e", "4x0e+2x1o"
ROWS = 7
OPTIONS = {
    "plain": {},
    "forced": {"force_irreps_out": True, "path_normalization": "path"},
    "biased": {"biases": True, "gradient_normalization": 0.5},
    "indexed": {"num_indexed_weights": 3, "biases": True},
}


@pytest.fixture(params=PORTABLE)
def backend(request):
    return request.param


def computed_by(backend):
    """Return kernels of a linear form, of which XLA has none; for what is lowered inside."""
    return only(backend, runs=backend != "xla", kinds={LinearForm})


def arguments(options, rows=ROWS, dtype=jnp.float64):
    x = e3nn.normal(IRREPS, jax.random.key(0), (rows,)).astype(dtype)
    return (jnp.arange(rows) % 3, x) if "num_indexed_weights" in options else (x,)


def derivatives(module, params, args):
    """Value, VJP and VJP of the VJP along fixed directions."""
    *index, x = args

    def function(params, array):
        return module.apply(params, *index, e3nn.IrrepsArray(x.irreps, array)).array

    def vjp(params, array, cotangent):
        return jax.vjp(function, params, array)[1](cotangent)

    def everything(params, array):
        value = function(params, array)
        cotangent = jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
        first, pullback = jax.vjp(vjp, params, array, cotangent)
        return value, first, pullback(jax.tree.map(jnp.sin, first))

    return jax.jit(everything)(params, x.array)


def assert_close(got, expected, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.abs(a - b).max() <= tolerance * np.abs(b).max()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_linear_is_e3nns(options, backend):
    """Float64 to 1e-13: a few dozen products each; the parameters are the same from one key."""
    with jax.enable_x64(True):
        args = arguments(options)
        ours, theirs = ops.Linear(OUT, backend=backend, **options), e3nn.flax.Linear(OUT, **options)
        params = theirs.init(jax.random.key(1), *args)
        jax.tree.map(np.testing.assert_array_equal, ours.init(jax.random.key(1), *args), params)
        assert ours.apply(params, *args).irreps == theirs.apply(params, *args).irreps
        with computed_by(backend):
            got = derivatives(ours, params, args)
        assert_close(got, derivatives(theirs, params, args), 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2, 8])
def test_gradients_of_many_rows_are_sums_of_parts(at_once, monkeypatch):
    """Three parts, in two turns and in one."""
    pytest.importorskip("triton", reason="the interpreter is part of triton")
    from eqfuse.ops.backends.triton import linear
    from eqfuse.ops.backends.triton import primitive as linear_kernels

    monkeypatch.setattr(linear, "AT_ONCE", at_once)
    monkeypatch.setattr(linear_kernels, "reduction", linear.reduction)  # not cached
    monkeypatch.setattr(linear_kernels, "ROWS_OF_A_PART", 8)
    for options in OPTIONS.values():
        args = arguments(options, rows=29, dtype=jnp.float32)
        theirs = e3nn.flax.Linear(OUT, **options)
        params = theirs.init(jax.random.key(1), *args)
        ours = ops.Linear(OUT, backend="triton-interpret", **options)
        assert_close(*(derivatives(m, params, args) for m in (ours, theirs)), 2e-6)


MANY_CHANNELS = {"wide": ({}, 1, 71), "narrow": ({}, math.inf, 71)}
MANY_CHANNELS |= {"indexed": (OPTIONS["indexed"], math.inf, 17)}


@pytest.mark.parametrize(("options", "programs", "rows"), MANY_CHANNELS.values(), ids=MANY_CHANNELS)
def test_many_channels(options, programs, rows, monkeypatch):
    """Compare Linears of more channels and rows than a tile has.

    Transposed matrices are then read several slices at once, or are transposed
    beforehand for the wide tiles of many rows.
    """
    pytest.importorskip("triton", reason="the interpreter is part of triton")
    from eqfuse.ops.backends.triton import linear

    monkeypatch.setattr(linear, "MANY_PROGRAMS", programs)
    irreps, out = e3nn.Irreps("70x0e+3x1o"), e3nn.Irreps("67x0e+30x1o")
    x = e3nn.normal(irreps, jax.random.key(0), (rows,))
    index = [jnp.arange(rows) % 3] if options else []
    modules = [ops.Linear(out, backend=name, **options) for name in ("triton-interpret", "e3nn")]
    params = modules[1].init(jax.random.key(1), *index, x)
    # sums of up to 213 products on both sides: 15 roundings of 6e-8 each, and those of a second sum
    assert_close(*(derivatives(m, params, [*index, x]) for m in modules), 4e-6)


def test_one_launch_each_way():
    """Both gradients come from one kernel; with many rows a second one adds up parts."""
    pytest.importorskip("triton", reason="the interpreter is part of triton")
    module = ops.Linear(OUT, backend="triton-interpret")
    [x] = arguments({}, dtype=jnp.float32)
    params = module.init(jax.random.key(1), x)
    before = interpreted()
    value, pullback = jax.vjp(lambda p, x: module.apply(p, x).array, params, x)
    jax.block_until_ready(value)
    assert interpreted() - before == 1
    jax.block_until_ready(pullback(value))
    assert interpreted() - before == 2


def test_linear_sum_is_a_sum(backend):
    with jax.enable_x64(True):
        x = e3nn.normal(IRREPS, jax.random.key(0), (ROWS,)).astype(jnp.float64)
        y = e3nn.normal(OTHER, jax.random.key(1), (ROWS,)).astype(jnp.float64)
        ours, theirs = (ops.LinearSum(OUT, ("a", "b"), backend=b) for b in (backend, "e3nn"))
        params = theirs.init(jax.random.key(2), x, y)
        jax.tree.map(np.testing.assert_array_equal, ours.init(jax.random.key(2), x, y), params)

        def gradient(module):
            return jax.value_and_grad(lambda p: jnp.sum(jnp.sin(module.apply(p, x, y).array)))(
                params
            )

        with computed_by(backend):
            got = gradient(ours)
        assert_close(got, gradient(theirs), 1e-13)
        expected = sum(
            e3nn.flax.Linear(OUT, force_irreps_out=True).apply({"params": params["params"][n]}, a)
            for n, a in (("b", y),)
        ) + e3nn.flax.Linear(OUT, force_irreps_out=True).apply({"params": params["params"]["a"]}, x)
        assert_close(ours.apply(params, x, y).array, expected.array, 1e-13)


@pytest.mark.parametrize("split", [False, True], ids=["joined", "split"])
@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_dense_is_a_matrix_product_of_each(groups, split, backend):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(ROWS, 5 * groups))
        kernels = [rng.normal(size=(5, width)) for width in (4, 1, 7)]
        columns = np.split(x, 3, axis=1) if groups == 3 else [x] * 3
        expected = [0.5 * c @ k for c, k in zip(columns, kernels, strict=True)]
        with computed_by(backend):
            dense = functools.partial(ops.grouped_dense, scale=0.5, split=split, backend=backend)
            got = jax.jit(lambda *arrays: dense(*arrays))(jnp.asarray(x), kernels)
        assert isinstance(got, list) == split
        for a, b in zip(
            *((got, expected) if split else ([got], [np.hstack(expected)])), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-14)


def test_leading_axes_and_vmap(backend):
    x = e3nn.normal(IRREPS, jax.random.key(0), (2, 3))
    module, theirs = ops.Linear(OUT, backend=backend), e3nn.flax.Linear(OUT)
    params = theirs.init(jax.random.key(1), x)
    expected = theirs.apply(params, x).array
    with computed_by(backend):
        got = jax.jit(lambda x: module.apply(params, x).array)(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    with computed_by(backend):
        mapped = jax.jit(jax.vmap(lambda x: module.apply(params, x)))(x)
    np.testing.assert_allclose(mapped.array, expected, rtol=1e-5, atol=1e-6)
    of_each = jax.vmap(lambda p: module.apply(p, x))(
        jax.tree.map(lambda p: jnp.stack([p, -p]), params)
    )
    np.testing.assert_allclose(of_each.array[1], -expected, rtol=1e-5, atol=1e-6)


def test_errors():
    key, x = jax.random.key(0), e3nn.normal("2x0e", jax.random.key(0), (3,))
    with pytest.raises(ValueError, match="index is needed with num_indexed_weights"):
        ops.Linear("0e", num_indexed_weights=2).init(key, x)
    with pytest.raises(ValueError, match="index must be of integers"):
        ops.Linear("0e", num_indexed_weights=2).init(key, jnp.zeros(3), x)
    with pytest.raises(ValueError, match="input_precision 'half' is unknown"):
        ops.Linear("0e", input_precision="half", backend="xla").init(key, x)
    with pytest.raises(ValueError, match="one input for each of"):
        ops.LinearSum("0e", ("a", "b")).init(key, x)
    with pytest.raises(ValueError, match="cannot be added up"):
        ops.LinearSum("0e", ("a", "b")).init(key, x, x[:2])
    with pytest.raises(ValueError, match=r"of one n_in are needed, got \[\(3, 2\), \(2, 2\)\]"):
        ops.grouped_dense(jnp.zeros((2, 3)), [jnp.zeros((3, 2)), jnp.zeros((2, 2))])
    with pytest.raises(ValueError, match=r"x must be \[rows, 3\] or \[rows, 6\]"):
        ops.grouped_dense(jnp.zeros((2, 4)), [jnp.zeros((3, 2))] * 2)


@pytest.mark.parametrize("cls", [ops.Linear, ops.TensorProductLinear])
def test_triton_on_a_cpu_is_refused(cls):
    """As the ops promise: by a ValueError, where the computation is lowered."""
    pytest.importorskip("triton")
    if jax.default_backend() != "cpu":
        pytest.skip("a GPU is present")
    x = e3nn.normal("2x0e", jax.random.key(0), (3,))
    args = (x,) if cls is ops.Linear else (x, x)
    with pytest.raises(ValueError, match="'triton' runs on a GPU"):
        jax.jit(cls("2x0e", backend="triton").init_with_output)(jax.random.key(0), *args)
