"""`weighted_channels` against e3nn-jax's elementwise product."""

import dataclasses
import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import Case
from tests.ops.parity import BACKENDS, assert_equivariant, assert_one_rounding, assert_parity


@dataclasses.dataclass(frozen=True)
class Weighted(Case):
    """Scalars `irreps_x`, a block of weights for each irrep of `irreps_y`."""

    @property
    def on_graph(self) -> bool:
        return False

    @functools.cached_property
    def irreps_out(self) -> e3nn.Irreps:
        weights, y = e3nn.Irreps(self.irreps_x), e3nn.Irreps(self.irreps_y)
        return e3nn.Irreps([(w.mul, one.ir) for w, one in zip(weights, y, strict=True)])

    def function(self, backend: str):
        def function(weights, y):
            y = e3nn.IrrepsArray(self.irreps_y, y)
            return ops.weighted_channels(y, weights, backend=backend).array

        return function

    def reference(self, weights, y):
        channels = e3nn.Irreps(self.irreps_x)[0].mul
        chunks = e3nn.IrrepsArray(self.irreps_y, y).chunks
        chunks = [jnp.repeat(chunk, channels, axis=-2) for chunk in chunks]
        repeated = e3nn.from_chunks(self.irreps_out, chunks, y.shape[:-1], y.dtype)
        weights = e3nn.IrrepsArray(self.irreps_x, weights)
        return e3nn.elementwise_tensor_product(weights, repeated).array


def weighted(*arguments, **keywords) -> Weighted:
    return Weighted("weighted_channels", *arguments, **keywords)


CASES = {
    "allegro": weighted("64x0e+64x0e+64x0e", "0e+1o+2e"),
    "not sorted": weighted("5x0e+5x0e", "3o+1e"),
    "one channel": weighted("0e+0e", "0e+1o"),
    "axes": weighted("3x0e", "1o", shape_x=(2, 3), shape_y=(2, 3)),
    "no rows": weighted("3x0e", "1o", shape_x=(0,), shape_y=(0,)),
}
all_backends = pytest.mark.parametrize("backend", BACKENDS)


CORE = {"not sorted", "no rows"}


@tiers.value_and_derivatives(CASES, CORE)
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(CASES[name], dtype, backend)


@pytest.mark.parametrize("name", CASES)
def test_the_backend_e3nn_is_the_same(name):
    case = CASES[name]
    arrays = [a.astype(np.float32) for a in case.operands()]
    found = case.function("e3nn")(*arrays)
    np.testing.assert_allclose(found, case.reference(*arrays), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", tiers.KERNELS)
def test_equivariance(backend):
    assert_equivariant(CASES["not sorted"], backend)


@all_backends
def test_bfloat16_is_rounded_once(backend):
    assert_one_rounding(CASES["not sorted"], jnp.bfloat16, backend)


@all_backends
def test_vmap(backend):
    case = CASES["one channel"]
    weights, y = (np.stack([a] * 3).astype(np.float32) for a in case.operands())
    found = jax.jit(jax.vmap(case.function(backend)))(weights, y)
    np.testing.assert_allclose(found, case.reference(weights, y), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        ("2x1o", (4, 2), "each irrep of y must have a multiplicity of 1, got 2x1o"),
        ("0e+1o", (4, 5), r"weights must be \[..., 2 irreps of .* x channels\].*\(4, 5\)"),
        ("0e+1o", (3, 6), r"the leading axes \(4,\) of y, got shape \(3, 6\)"),
    ],
)
def test_errors_name_what_is_wrong(y, weights, message):
    y = e3nn.IrrepsArray(y, jnp.ones((4, e3nn.Irreps(y).dim)))
    with pytest.raises(ValueError, match=message):
        ops.weighted_channels(y, jnp.ones(weights), backend="xla")
