"""Linear and grouped_dense against e3nn.flax.Linear and jax.numpy."""

import contextlib
import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import (
    BACKENDS,
    TRITON,
    UNOPTIMIZED,
    along_random_directions,
    assert_close,
    initial,
    only,
)

ROWS, CHANNELS, WEIGHTS = 7, 3, 4
IRREPS, OTHER = "2x0e+3x1o+2x0e+1x0o+0x1e", "4x0e+2x1o"
OUT = "3x0e+2x1o+3x2e+1x0o+2x0e"
UNSIMPLIFIED = {"simplify_irreps_internally": False}
PARTS = {"instructions": ((0, 0), (2, 4), (1, 1)), "irreps_in": e3nn.Irreps(IRREPS)}

# options, and the shape of the weights
CASES = {
    "plain": ({}, None),
    "forced": ({"force_irreps_out": True, "biases": True, "gradient_normalization": 0.5}, None),
    "indexed": ({"num_indexed_weights": 3, "biases": True}, None),
    "initializer": ({"parameter_initializer": lambda: jax.nn.initializers.uniform(0.1)}, None),
}
KERNELS = ("plain", "forced", "indexed")
"""Those that differ in what kernels of Triton are given."""
OF_E3NN = {
    "channels": ({"channel_out": 2, "biases": True}, None),
    "weights": ({"biases": True, "gradient_normalization": "path"}, (ROWS, WEIGHTS)),
    "per-channel": ({"weights_per_channel": True, "biases": True}, (ROWS, WEIGHTS)),
    "unsimplified-indexed": ({"num_indexed_weights": 3, **UNSIMPLIFIED}, None),
    "instructions": ({"force_irreps_out": True, "biases": True, **PARTS, **UNSIMPLIFIED}, None),
}
"""Those that e3nn's Linear itself computes."""
CASES |= OF_E3NN


def cases_and_backends():
    """Return a case and a backend of each test: by default the kernels, and XLA for one case."""
    by_default, found = {"indexed-xla"}, []
    slow = {"plain", *OF_E3NN} - {"weights", "instructions"}
    for name in CASES:
        backends = ["xla", "llvm"] if name not in OF_E3NN else ["llvm"]
        backends += [TRITON] if name in KERNELS else []
        for backend in tiers.slow_unless(["llvm", "triton"], *backends):
            label = f"{name}-{backend.values[0]}"
            marks = () if label in by_default else backend.marks
            marks = [*marks, pytest.mark.slow] if name in slow else marks
            found.append(pytest.param(name, *backend.values, marks=marks, id=label))
    return found


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def computed_by(backend):
    """Return kernels of a linear form, of which XLA has none; for what is lowered inside."""
    if backend == "e3nn":
        return contextlib.nullcontext()
    return only(backend, runs=backend != "xla", kinds={"matrices"})


def arguments(name, rows=ROWS, dtype=jnp.float64):
    """x, after the index or the weights, if there are any."""
    options, shape = CASES[name]
    channels = "channel_out" in options or "weights_per_channel" in options
    x = e3nn.normal(IRREPS, jax.random.key(0), (rows, CHANNELS) if channels else (rows,))
    x = x.astype(dtype)
    if "num_indexed_weights" in options:
        return jnp.arange(rows) % 3, x
    return (x,) if shape is None else (jax.random.normal(jax.random.key(5), shape, dtype), x)


def derivatives(module, params, args, options=None):
    """Value, VJP and VJP of the VJP by all but an index, along fixed directions."""
    index = [a for a in args if jnp.issubdtype(a.dtype, jnp.integer)]

    def function(params, *operands):
        return module.apply(params, *index, *operands).array

    return along_random_directions(function, params, *args[len(index) :], options=options)


@pytest.mark.parametrize(("name", "backend"), cases_and_backends())
def test_linear_is_e3nns(name, backend):
    """Float64 to 1e-13: a few dozen products each; the parameters are the same from one key."""
    options, _ = CASES[name]
    with jax.enable_x64(True):
        args = arguments(name)
        ours, theirs = ops.Linear(OUT, backend=backend, **options), e3nn.flax.Linear(OUT, **options)
        params, found = (initial(module, *args) for module in (theirs, ours))
        assert list(found["params"]) == list(params["params"])
        jax.tree.map(np.testing.assert_array_equal, found, params)
        with computed_by("e3nn" if name in OF_E3NN else backend), ops.recorded() as calls:
            got = derivatives(ours, params, args, UNOPTIMIZED)
        assert {c.backend for c in calls} == {"e3nn" if name in OF_E3NN else backend}
        outputs = (jax.eval_shape(module.apply, params, *args) for module in (ours, theirs))
        assert len({out.irreps for out in outputs}) == 1
        assert_close(got, derivatives(theirs, params, args, UNOPTIMIZED), 1e-13)


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
    for name in KERNELS:
        args, (options, _) = arguments(name, rows=29, dtype=jnp.float32), CASES[name]
        theirs = e3nn.flax.Linear(OUT, **options)
        params = theirs.init(jax.random.key(1), *args)
        ours = ops.Linear(OUT, backend="triton", **options)
        assert_close(*(derivatives(m, params, args) for m in (ours, theirs)), 2e-6)


MANY_CHANNELS = {"wide": ({}, 1, 71), "narrow": ({}, math.inf, 71)}
MANY_CHANNELS |= {"indexed": (CASES["indexed"][0], math.inf, 17)}


@pytest.mark.parametrize("name", tiers.slow_unless(["wide", "narrow"], *MANY_CHANNELS))
def test_many_channels(name, monkeypatch):
    """Compare Linears of more channels and rows than a tile has.

    Transposed matrices are then read several slices at once, or are transposed
    beforehand for the wide tiles of many rows.
    """
    pytest.importorskip("triton", reason="the interpreter is part of triton")
    from eqfuse.ops.backends.triton import linear

    options, programs, rows = MANY_CHANNELS[name]
    monkeypatch.setattr(linear, "MANY_PROGRAMS", programs)
    irreps, out = e3nn.Irreps("70x0e+3x1o"), e3nn.Irreps("67x0e+30x1o")
    x = e3nn.normal(irreps, jax.random.key(0), (rows,))
    index = [jnp.arange(rows) % 3] if options else []
    modules = [ops.Linear(out, backend=name, **options) for name in ("triton", "e3nn")]
    params = initial(modules[1], *index, x)
    # sums of up to 213 products on both sides: 15 roundings of 6e-8 each, and those of a second sum
    assert_close(*(derivatives(m, params, [*index, x]) for m in modules), 4e-6)


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
    params = initial(theirs, x)
    expected = jax.jit(theirs.apply, compiler_options=UNOPTIMIZED)(params, x).array
    for apply in (module.apply, jax.vmap(module.apply, (None, 0))):
        with computed_by(backend):
            got = jax.jit(apply)(params, x).array
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    both = jax.tree.map(lambda p: jnp.stack([p, -p]), params)
    of_each = jax.jit(jax.vmap(module.apply, (0, None)))(both, x)
    np.testing.assert_allclose(of_each.array[1], -expected, rtol=1e-5, atol=1e-6)


X = e3nn.IrrepsArray("2x0e+1o", jnp.ones((ROWS, 5)))


def test_the_configured_normalisation_holds():
    """That of now, and not of the first call with these irreps."""
    default = e3nn.config("path_normalization")
    params = e3nn.flax.Linear(OUT).init(jax.random.key(0), X)
    try:
        for name in ("element", "path"):
            e3nn.config("path_normalization", name)
            found = ops.Linear(OUT, backend="xla").init(jax.random.key(0), X)
            params = e3nn.flax.Linear(OUT).init(jax.random.key(0), X)
            assert jax.tree.all(jax.tree.map(np.array_equal, found, params))
    finally:
        e3nn.config("path_normalization", default)


def test_ours_in_the_place_of_e3nns_do_not_call_themselves(monkeypatch):
    x, weights = e3nn.normal("2x0e+1o", jax.random.key(0), (3,)), jnp.ones((3, 4))
    theirs = e3nn.flax.Linear("3x0e+1o")
    params = initial(theirs, weights, x)
    expected = theirs.apply(params, weights, x).array
    monkeypatch.setattr(e3nn.flax, "Linear", ops.Linear)
    found = e3nn.flax.Linear("3x0e+1o").apply(params, weights, x).array
    np.testing.assert_array_equal(found, expected)
