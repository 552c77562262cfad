"""`tensor_product`, beside what test_products.py asks of all products."""

import functools

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


@pytest.mark.parametrize(("backend", "mul"), [("xla", 5), ("triton", 5), ("llvm", 96)])
def test_many_channels_on_both_sides_are_a_product_of_e3nn(backend, mul):
    """So does each op that multiplies such operands; what follows is computed by kernels."""
    x, y = (e3nn.normal(f"{mul}x0e+{mul}x1o", jax.random.key(n), (2,)) for n in range(2))
    layer = functools.partial(ops.TensorProductLinear, "3x0e+2x1o")
    params = layer(backend="e3nn").init(jax.random.key(2), x, y)
    with ops.recorded() as found:
        product = ops.tensor_product(x, y, backend=backend)
        eqn = jax.make_jaxpr(layer(backend=backend).apply)(params, x, y).eqns[-1]
    assert (found[0].backend, found[0].why) == ("e3nn", "x and y both have several channels")
    np.testing.assert_array_equal(product.array, e3nn.tensor_product(x, y).array)
    assert (found[1].backend, eqn.primitive.name) == (backend, "eqfuse_linear_form")
    if backend == "triton":
        return
    edges = ops.Edges.from_arrays(np.array([0, 1]), np.array([1, 1]), 2)
    for more in ({}, {"edges": edges}, {"edges": edges, "weights": np.ones((2, 1))}):
        own, theirs = (
            layer(backend=b, filter_ir_out="0e+1o").apply(params, x, y, **more)
            for b in (backend, "e3nn")
        )
        np.testing.assert_allclose(
            own.array, theirs.array, rtol=0, atol=1e-5 * abs(theirs.array).max()
        )
