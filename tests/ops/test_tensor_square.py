"""`tensor_square` against e3nn-jax's."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.parity import PORTABLE, only

NORMALIZATIONS = ["component", "norm", "none"]
IRREPS = ["2x0e+2x0o+1o+1e", "3x1o+2x2e+0x0e+2x1o", "5x1o", ""]


@pytest.mark.parametrize("irreps", IRREPS)
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("normalization", tiers.slow_unless(["component"], *NORMALIZATIONS))
def test_values_irreps_and_zero_flags(irreps, normalized, normalization):
    """Float64 to 1e-13: sums of a dozen products."""
    with jax.enable_x64(True):
        x = e3nn.normal(irreps, jax.random.key(0), (3, 2)).astype(jnp.float64)
        for regroup in (False, True):
            options = {
                "irrep_normalization": normalization,
                "normalized_input": normalized,
                "regroup_output": regroup,
            }
            expected = e3nn.tensor_square(x, **options)
            found = ops.tensor_square(x, backend="xla", **options)
            assert repr(found.irreps) == repr(expected.irreps)
            assert found.zero_flags == expected.zero_flags
            np.testing.assert_allclose(found.array, expected.array, rtol=0, atol=1e-13)
            assert ops.tensor_square(irreps, **options) == e3nn.tensor_square(irreps, **options)


@pytest.mark.parametrize("backend", PORTABLE)
def test_gradients(backend):
    irreps = e3nn.Irreps("2x0e+2x1o+1x1o")
    with jax.enable_x64(True):
        x = e3nn.normal(irreps, jax.random.key(0), (3,)).array.astype(jnp.float64)

        def gradient(square):
            def loss(x):
                return jnp.sum(jnp.sin(square(e3nn.IrrepsArray(irreps, x)).array))

            return jax.jit(jax.value_and_grad(loss))(x)

        expected = gradient(e3nn.tensor_square)
        with only(backend, forbidden=("tensor_square",)):
            found = gradient(lambda x: ops.tensor_square(x, backend=backend))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_zeros_and_errors():
    x = e3nn.concatenate([e3nn.zeros("2x0e", (3,)), e3nn.normal("1o", jax.random.key(0), (3,))])
    expected, found = e3nn.tensor_square(x), ops.tensor_square(x, backend="xla")
    assert found.zero_flags == expected.zero_flags
    np.testing.assert_allclose(found.array, expected.array, atol=1e-6)
    with pytest.raises(ValueError, match="irrep_normalization='cg' is not supported"):
        ops.tensor_square(x, irrep_normalization="cg")
