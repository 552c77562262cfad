"""Linear and grouped_dense, beside what test_products.py asks of all ops."""

import dataclasses
import functools
import math

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.layers import LINEARS, Linear
from tests.ops.parity import BACKENDS, UNOPTIMIZED, assert_close, derivatives, initial, only

ROWS, IRREPS, OUT = 7, Linear.irreps, Linear.out
KERNELS = ("plain", "forced", "indexed")
"""Those that differ in what kernels of Triton are given."""


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def computed_by(backend):
    """Return kernels of a linear form, of which XLA has none; for what is lowered inside."""
    return only(backend, runs=backend != "xla", kinds={"matrices"})


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
        case = dataclasses.replace(LINEARS[name], num_rows=29)
        assert_as_e3nn(case, 2e-6)


def assert_as_e3nn(case: Linear, tolerance: float):
    """Compare Triton's kernels in float32."""
    found, expected = (
        derivatives(function, case, np.dtype("float32"), orders=2)
        for function in (case.function("triton"), case.reference)
    )
    assert_close(found, expected, tolerance)


MANY_CHANNELS = {"wide": ("plain", 1, 71), "narrow": ("plain", math.inf, 71)}
MANY_CHANNELS |= {"indexed": ("indexed", math.inf, 17)}


@pytest.mark.parametrize("name", tiers.slow_unless(["wide", "narrow"], *MANY_CHANNELS))
def test_many_channels(name, monkeypatch):
    """Compare Linears of more channels and rows than a tile has.

    Transposed matrices are then read several slices at once, or are transposed
    beforehand for the wide tiles of many rows.
    """
    pytest.importorskip("triton", reason="the interpreter is part of triton")
    from eqfuse.ops.backends.triton import linear

    kind, programs, rows = MANY_CHANNELS[name]
    monkeypatch.setattr(linear, "MANY_PROGRAMS", programs)
    irreps = {"irreps": "70x0e+3x1o", "out": "67x0e+30x1o"}
    case = dataclasses.replace(LINEARS[kind], num_rows=rows, **irreps)
    # sums of up to 213 products on both sides: 15 roundings of 6e-8 each, and those of a second sum
    assert_as_e3nn(case, 4e-6)


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


def test_ours_in_the_place_of_e3nns_do_not_call_themselves(monkeypatch):
    x, weights = e3nn.normal("2x0e+1o", jax.random.key(0), (3,)), jnp.ones((3, 4))
    theirs = e3nn.flax.Linear("3x0e+1o")
    params = initial(theirs, weights, x)
    expected = theirs.apply(params, weights, x).array
    monkeypatch.setattr(e3nn.flax, "Linear", ops.Linear)
    found = e3nn.flax.Linear("3x0e+1o").apply(params, weights, x).array
    np.testing.assert_array_equal(found, expected)
