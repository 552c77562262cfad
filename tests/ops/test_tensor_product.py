"""`tensor_product` against e3nn-jax's."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import TENSOR_PRODUCT, Case
from tests.ops.parity import (
    assert_equivariant,
    assert_one_rounding,
    assert_parity,
    only,
)

natively = pytest.mark.parametrize("backend", tiers.NATIVELY)
# see tiers.value_and_derivatives
CORE = {
    "l3-both-parities",
    "mul-33",
    "regroup",
    "broadcast",
    "one-y",
    "one-y-expanded",
    "no-rows",
    "uvuv-expanded",
    "zero-blocks",
    "nothing-left",
}
# sizes and layouts between those of others; coefficients of all normalisations: ir/test_form.py
SLOW = {
    "scalars",
    "mixed",
    "mul-1",
    "mul-5",
    "none",
    "no-axes",
    "broadcast-new-axis",
    "one-y-no-rows",
    "uvuv-expanded-regrouped",
    "uvuv-expanded-not-regrouped",
    "zero-mul-not-regrouped",
    "no-irreps",
}


def product(backend):
    """Return the op, compiled anew, so that its backend is seen to run."""
    return jax.jit(lambda x, y: ops.tensor_product(x, y, backend=backend))


@tiers.value_and_derivatives(TENSOR_PRODUCT, CORE, everywhere="mul-33", slow=SLOW)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(TENSOR_PRODUCT[name], dtype, backend)


@natively
@pytest.mark.parametrize("name", ["l3-both-parities", "uvuv-expanded"])
def test_equivariance(name, backend):
    assert_equivariant(TENSOR_PRODUCT[name], backend)


@pytest.mark.parametrize("backend", tiers.KERNELS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("mul-5", jnp.float16, marks=pytest.mark.slow),
        ("mul-5", jnp.bfloat16),
        pytest.param("norm", jnp.bfloat16, marks=pytest.mark.slow),
        pytest.param("one-y", jnp.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_half_precision_is_rounded_once(name, dtype, backend):
    assert_one_rounding(TENSOR_PRODUCT[name], dtype, backend)


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
    expected = e3nn.tensor_product(x, weak)
    with only(backend):
        found = product(backend)(x, weak)
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


@natively
@pytest.mark.parametrize("name", TENSOR_PRODUCT)
def test_irreps_and_zero_flags_are_those_of_e3nn(name, backend):
    """Irreps as they are printed, those without arrays, and the blocks known to be zero."""
    case = TENSOR_PRODUCT[name]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    expected = jax.eval_shape(lambda: e3nn.tensor_product(x, y, **case.options))
    without_arrays = e3nn.tensor_product(x.irreps, y.irreps, **case.options)
    found = jax.eval_shape(lambda: ops.tensor_product(x, y, **case.options, backend=backend))
    assert repr(found.irreps) == repr(expected.irreps)
    assert found.shape == expected.shape
    given = ops.tensor_product(str(x.irreps), y.irreps, **case.options, backend=backend)
    assert repr(given) == repr(without_arrays)


@natively
@pytest.mark.parametrize("name", ["zero-blocks", "zero-blocks-expanded", "mul-5"])
def test_blocks_of_zeros_are_known(name, backend):
    case = TENSOR_PRODUCT[name]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    expected = e3nn.tensor_product(x, y, **case.options)
    found = ops.tensor_product(x, y, **case.options, backend=backend)
    assert found.zero_flags == expected.zero_flags
    nothing = ops.tensor_product(e3nn.zeros(case.irreps_x, (6,)), e3nn.zeros(case.irreps_y, (6,)))
    assert all(nothing.zero_flags)
    assert not nothing.array.any()


@pytest.mark.parametrize(
    "keep",
    ["0e + 1o", "4x1o", e3nn.Irrep("1o"), [e3nn.Irrep("0e"), "1o"], (e3nn.Irrep("2e"),), []],
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


def test_the_backend_e3nn_is_e3nn(monkeypatch):
    calls = []

    def spy(*args, **keywords):
        calls.append(keywords)
        return "the answer of e3nn"

    monkeypatch.setattr(e3nn, "tensor_product", spy)
    answer = ops.tensor_product("1o", "1o", filter_ir_out="0e", backend="e3nn")
    assert answer == "the answer of e3nn"
    assert calls == [{"filter_ir_out": "0e", "irrep_normalization": None, "regroup_output": True}]


X = e3nn.IrrepsArray("1o", jnp.ones((4, 3)))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        ((X, X), {"irrep_normalization": "unit"}, "'unit' is not supported; choose 'component'"),
        ((X, X * 1j), {}, "backend 'xla' is for real numbers: complex operands are"),
        ((X, X), {"backend": "cuda"}, "backend 'cuda' is unknown; choose one of triton"),
    ],
)
def test_errors_name_what_is_wrong(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        ops.tensor_product(*arguments, **{"backend": "xla", **keywords})


def test_triton_on_a_cpu_is_refused():
    """Asked for by name, it fails where the computation is lowered; it never falls back."""
    if jax.default_backend() != "cpu":
        pytest.skip("a GPU is present")
    pytest.importorskip("triton")
    case = Case("tensor_product", "2x0e", "0e")
    with pytest.raises(ValueError, match="use backend='xla' there"):
        jax.jit(case.function("triton"))(*(a.astype(np.float32) for a in case.operands()))


@pytest.mark.parametrize("backend", ["xla", "triton-interpret"])
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


@pytest.mark.parametrize(
    ("irreps", "keep", "is_einsum"),
    [("8x0e", None, True), ("5x0e+5x1o", "0e", True), ("5x0e+5x1o", None, False)],
)
def test_xla_repeats_no_operand_beyond_the_size_of_the_product(irreps, keep, is_einsum):
    x, y = (e3nn.normal(irreps, jax.random.key(n), (3,)) for n in range(2))

    def product(x, y, backend="xla"):
        return ops.tensor_product(x, y, filter_ir_out=keep, backend=backend)

    assert ("eqfuse_form" not in str(jax.make_jaxpr(product)(x, y))) == is_einsum
    np.testing.assert_allclose(
        product(x, y).array, product(x, y, "triton-interpret").array, atol=1e-5
    )
