"""`tensor_product`, beside what test_products.py asks of all products."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import only

natively = pytest.mark.parametrize("backend", tiers.NATIVELY)


def product(backend):
    """Return the op, compiled anew, so that its backend is seen to run."""
    return jax.jit(lambda x, y: ops.tensor_product(x, y, backend=backend))


@natively
@pytest.mark.parametrize(
    ("dtype1", "dtype2"),
    [
        ("int32", "int32"),
        ("int32", "float32"),
        ("bfloat16", "float32"),
        ("bfloat16", "float16"),
        ("bfloat16", "int32"),
        ("float64", "float32"),
    ],
)
@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_are_promoted_as_by_e3nn(dtype1, dtype2, x64, backend):
    """Whole numbers, so that values agree exactly where coefficients are one."""
    with jax.enable_x64(x64):
        x = e3nn.IrrepsArray("2x0e", np.array([3, 1], dtype1))
        y = e3nn.IrrepsArray("0e", np.array([2], dtype2))
        expected = e3nn.tensor_product(x, y)
        with only(backend):
            found = product(backend)(x, y)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.array, expected.array)


@natively
def test_weak_types_count_as_for_e3nn(backend):
    x, weak = jnp.ones(1, jnp.bfloat16), jax.lax.full_like(1.0, 2.0, shape=(1,))
    found, expected = product(backend)(x, weak), e3nn.tensor_product(x, weak)
    assert found.dtype == expected.dtype == jnp.float32
    np.testing.assert_array_equal(found.array, expected.array)


@natively
def test_plain_arrays_are_scalars(backend):
    x, y = jnp.arange(6.0).reshape(2, 3), e3nn.IrrepsArray("1o", jnp.arange(3.0))
    with only(backend):
        found = product(backend)(x, y)
    assert found.irreps == e3nn.tensor_product(x, y).irreps == "3x1o"
    expected = x[:, :, None] * y.array
    np.testing.assert_allclose(found.array, expected.reshape(2, 9), rtol=2e-7)  # two roundings


@pytest.mark.parametrize(
    "keep", ["0e + 1o", "4x1o", e3nn.Irrep("1o"), [e3nn.Irrep("0e"), "1o"], (e3nn.Irrep("2e"),), []]
)
def test_filters_are_given_as_to_e3nn(keep):
    expected = e3nn.tensor_product("2x0e + 1o", "0e + 1o", filter_ir_out=keep)
    assert ops.tensor_product("2x0e + 1o", "0e + 1o", filter_ir_out=keep) == expected


def test_e3nns_configuration_is_followed():
    x, y = (e3nn.IrrepsArray("1o", jnp.array(a)) for a in ([1.0, 2.0, 3.0], [2.0, -1.0, 5.0]))
    before = e3nn.config("irrep_normalization")
    try:
        e3nn.config("irrep_normalization", "norm")
        expected = e3nn.tensor_product(x, y)
        found = ops.tensor_product(x, y, backend="xla")
    finally:
        e3nn.config("irrep_normalization", before)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5)
    different = ops.tensor_product(x, y, backend="xla").array
    assert abs(different - found.array).max() > 0.1


def test_the_matmuls_of_xla():
    """One channel has none; and no product is written to be summed over channels."""

    def text(function, *irreps):
        arrays = [jax.ShapeDtypeStruct((5, e3nn.Irreps(i).dim), "float32") for i in irreps]
        return jax.jit(function).lower(*arrays).as_text()

    def of(irreps_x, irreps_y):
        def product(x, y):
            x, y = e3nn.IrrepsArray(irreps_x, x), e3nn.IrrepsArray(irreps_y, y)
            return ops.tensor_product(x, y, backend="xla").array

        return product

    assert "dot_general" not in text(of("0e+1o", "0e+1o"), "0e+1o", "0e+1o")
    assert "dot_general" in text(of("2x0e+2x1o", "0e+1o"), "2x0e+2x1o", "0e+1o")
    gradient = jax.grad(lambda y, x: jnp.sum(of("7x0e", "0e")(x, y) ** 2))
    assert "tensor<7xf32>" not in text(gradient, "0e", "7x0e")  # ones, to sum products with


@pytest.mark.parametrize("backend", ["xla", "triton"])
def test_many_channels_on_both_sides_are_repeated_without_a_gather(backend):
    """Its gradient would be a scatter, ten times slower than the matmul with ones."""

    def product(x, y):
        operands = e3nn.IrrepsArray("9x0e+9x1o", x), e3nn.IrrepsArray("9x0e+10x1o", y)
        return ops.tensor_product(*operands, backend=backend).array

    x, y = jnp.ones((2, 36)), jnp.ones((2, 39))
    text = str(jax.make_jaxpr(lambda x, y: jax.vjp(product, x, y)[1](product(x, y)))(x, y))
    assert "eqfuse_form" in text
    assert "gather" not in text
    assert "scatter" not in text
