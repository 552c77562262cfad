"""Native linear forms of channels, against their definition in JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.layout import Machine
from eqfuse.ops.ir.form import Form, Operand, Path, Segment, SegmentRef, derivatives
from eqfuse.ops.primitives import forms
from tests.ops.backends.llvm.test_llvm import assert_same_for_any_threads
from tests.ops.parity import along_random_directions, assert_close, only

SETS = 3


def random_rows(rng, name: str, count: int) -> Operand:
    """Blocks of all kinds of multiplicities and dimensions, with gaps."""
    blocks, stop = [], int(rng.integers(3))
    for _ in range(count):
        mul, dim = int(rng.choice([1, 2, 5, 17, 33])), int(rng.choice([1, 3, 5]))
        blocks.append(Segment.mul_ir(stop, mul, dim))
        stop += mul * dim + int(rng.integers(2))
    return Operand(name, stop, tuple(blocks), True)


def random_mixing(rng, num_sets: int) -> Form:
    """From two arrays of rows to one: several terms for a block, others with none, a bias."""
    x, y, z = (random_rows(rng, name, 2) for name in "xyz")
    inputs, pairs = [x, y], []
    for b, target in enumerate(z.segments):
        for i, operand in enumerate((x, y)):
            for a, source in enumerate(operand.segments):
                if source.dim == target.dim:
                    pairs.append((SegmentRef(i, a), b, (source.mul, target.mul)))
    inputs += [Operand.of_matrix(f"w{n}", shape) for n, (*_, shape) in enumerate(pairs)]
    scalars = [b for b, block in enumerate(z.segments) if block.dim == 1][:1]
    inputs += [Operand.of_matrix("b", (z.segments[b].mul,)) for b in scalars]
    terms = [
        Path.of_matrix(source, 2 + n, SegmentRef(0, b), float(rng.normal()), z.segments[b].dim)
        for n, (source, b, _) in enumerate(pairs)
    ]
    terms += [Path.of_matrix(None, len(inputs) - 1, SegmentRef(0, b), 1.5, 1) for b in scalars]
    if not terms:
        return random_mixing(rng, num_sets)
    return Form(tuple(inputs), (z,), tuple(terms), num_sets)


@pytest.mark.parametrize(
    ("rows", "num_sets", "vector_bytes"),
    [(1, 0, 64), (7, 0, 32), (7, 0, 16), (2, SETS, 16), (40, SETS, 64), (40, SETS, 32)],
)
def test_random_mixings_and_their_derivatives(rows, num_sets, vector_bytes, monkeypatch, x64):
    """Also sets that no row has chosen, and the vectors of smaller processors."""
    widest = machine.machine().vector_bytes
    if vector_bytes > widest:
        pytest.skip(f"this processor has vectors of {widest} bytes")
    monkeypatch.setattr(machine, "machine", lambda: Machine(vector_bytes, 16))
    jax.clear_caches()  # of kernels for this processor's own vectors
    rng = np.random.default_rng(rows + num_sets)
    linear_form = random_mixing(rng, num_sets)
    arrays = [jnp.asarray(rng.normal(size=linear_form.shape(o, rows))) for o in linear_form.inputs]
    index = jnp.asarray(rng.integers(0, SETS, rows), jnp.int32) if num_sets else None

    def results(backend):
        """Return the value, the gradients of all inputs, and those of these."""
        return along_random_directions(
            lambda *a: forms.evaluate_linear(linear_form, list(a), index, rows, backend)[0], *arrays
        )

    expected = results("xla")
    with only("llvm"):
        found = results("llvm")
    assert_close(found, expected, 1e-13, least=1.0)


def linear(mul: int, dim: int, num_sets: int = 0) -> Form:
    x, z = (Operand(name, mul * dim, (Segment.mul_ir(0, mul, dim),), True) for name in "xz")
    path = Path.of_matrix(SegmentRef(0, 0), 1, SegmentRef(0, 0), 1.0, dim)
    return Form((x, Operand.of_matrix("w", (mul, mul))), (z,), (path,), num_sets)


@pytest.mark.slow
def test_gradients_of_many_rows_are_as_exact_as_xla_computes_them():
    linear_form, rows = linear(16, 3), 60_000
    rng = np.random.default_rng(0)
    x, z = (rng.normal(size=(rows, 48)) + 1 for _ in range(2))
    exact = np.einsum("zui,zvi->uv", *(a.reshape(rows, 16, 3) for a in (x, z)))
    w = jnp.ones((16, 16), jnp.float32)

    def error(backend):
        x32, z32 = (jnp.asarray(a, jnp.float32) for a in (x, z))
        function = lambda w: forms.evaluate_linear(linear_form, [x32, w], None, rows, backend)[0]  # noqa: E731
        return np.abs(jax.jit(lambda w: jax.vjp(function, w)[1](z32)[0])(w) - exact).max()

    assert error("llvm") <= 2 * error("xla")


@pytest.mark.parametrize("num_sets", [0, SETS])
def test_results_depend_on_no_threads_and_no_other_calls(num_sets):
    linear_form, rows = linear(64, 3, num_sets), 2000
    rng = np.random.default_rng(0)
    index = jnp.asarray(rng.integers(0, SETS, rows), jnp.int32) if num_sets else None
    for form in derivatives(linear_form).values():
        arrays = [jnp.asarray(rng.normal(size=form.shape(o, rows)), "float32") for o in form.inputs]

        def function(*arrays, form=form):
            return forms.evaluate_linear(form, list(arrays), index, rows, "llvm")

        assert_same_for_any_threads(jax.jit(function), *arrays)


@pytest.mark.parametrize(
    ("mul", "dim", "num_sets", "native"),
    [
        (256, 1, 0, False),
        (255, 1, 0, True),
        (256, 3, 0, True),
        (512, 3, 0, False),
        (256, 1, 2, True),
    ],
)
def test_wide_matrices_are_left_to_xla(mul, dim, num_sets, native):
    linear_form = linear(mul, dim, num_sets)
    shapes = [jax.ShapeDtypeStruct(linear_form.shape(o, 3), "float32") for o in linear_form.inputs]
    index = jnp.zeros(3, jnp.int32) if num_sets else None
    lowered = jax.jit(
        lambda x, w: forms.evaluate_linear(linear_form, [x, w], index, 3, "llvm")
    ).lower(*shapes)
    assert ("eqfuse_" in lowered.as_text()) == native


@pytest.mark.parametrize("wrong", [-1, SETS, 2**31 - 1])
def test_a_set_out_of_range_is_an_error(wrong):
    linear_form = linear(4, 1, SETS)
    arrays = [jnp.ones(linear_form.shape(o, 5)) for o in linear_form.inputs]
    index = jnp.asarray([0, 1, wrong, 2, 0], jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"index\[2\] is {wrong}, outside"):
        jax.block_until_ready(forms.evaluate_linear(linear_form, arrays, index, 5, "llvm"))


def test_matrices_that_rows_choose_are_transposed_by_the_kernel(x64):
    """XLA transposes no array of all of them; one that no row has chosen may be NaN."""
    linear_form, index = linear(9, 3, SETS), jnp.asarray([2, 0], jnp.int32)
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(size=shape)) for shape in ((2, 27), (SETS, 9, 9)))

    @jax.jit
    def gradient(x, w):
        value = lambda x: forms.evaluate_linear(linear_form, [x, w], index, 2, "llvm")[0]  # noqa: E731
        return jax.vjp(value, x)[1](jnp.cos(x))[0]

    found = gradient(x, w.at[1].set(jnp.nan))
    expected = np.einsum("zuv,zvi->zui", w[index], np.cos(x).reshape(2, 9, 3)).reshape(2, 27)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14 * 9)
    assert "transpose" not in gradient.lower(x, w).as_text()
