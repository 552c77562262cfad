"""`elementwise_tensor_product` against e3nn-jax's."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import ELEMENTWISE
from tests.ops.parity import BACKENDS, assert_equivariant, assert_one_rounding, assert_parity

all_backends = pytest.mark.parametrize("backend", BACKENDS)
# see tiers.value_and_derivatives
CORE = {"l3-both-parities", "mul-33", "cut-blocks", "one-y", "no-rows"}


@tiers.value_and_derivatives(ELEMENTWISE, CORE, everywhere="mul-33")
def test_value_and_derivatives(name, dtype, backend):
    assert_parity(ELEMENTWISE[name], dtype, backend)


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *BACKENDS))
@pytest.mark.parametrize("name", ["l3-both-parities", "cut-blocks"])
def test_equivariance(name, backend):
    assert_equivariant(ELEMENTWISE[name], backend)


@all_backends
def test_bfloat16_is_rounded_once(backend):
    assert_one_rounding(ELEMENTWISE["mul-5"], jnp.bfloat16, backend)


@all_backends
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_irreps_and_zero_flags_are_those_of_e3nn(name, backend):
    """Irreps as they are printed, neither sorted nor merged, and blocks known to be zero."""
    case = ELEMENTWISE[name]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    expected = jax.eval_shape(lambda: e3nn.elementwise_tensor_product(x, y, **case.options))
    without_arrays = e3nn.elementwise_tensor_product(x.irreps, y.irreps, **case.options)
    found = jax.eval_shape(
        lambda: ops.elementwise_tensor_product(x, y, **case.options, backend=backend)
    )
    assert repr(found.irreps) == repr(expected.irreps)
    assert found.shape == expected.shape
    given = ops.elementwise_tensor_product(x.irreps, str(y.irreps), **case.options, backend=backend)
    assert repr(given) == repr(without_arrays)


@all_backends
def test_blocks_of_zeros_are_known(backend):
    case = ELEMENTWISE["zero-blocks"]
    x, y = case.irreps_arrays(*(a.astype(np.float32) for a in case.operands()))
    found = ops.elementwise_tensor_product(x, y, backend=backend)
    assert found.zero_flags == e3nn.elementwise_tensor_product(x, y).zero_flags
    assert any(found.zero_flags)


def test_the_backend_e3nn_is_e3nn(monkeypatch):
    monkeypatch.setattr(e3nn, "elementwise_tensor_product", lambda *a, **k: "the answer of e3nn")
    answer = ops.elementwise_tensor_product("1o", "1o", backend="e3nn")
    assert answer == "the answer of e3nn"


X = e3nn.IrrepsArray("2x1o", jnp.ones((4, 6)))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((X, X[:3]), {}, r"\(4,\).*\(3,\)"),
        ((X, X[:, :3]), {}, r"same number of irreps, got 2 \(2x1o\) and 1 \(1x1o\)"),
        (("2x1o", "1o"), {}, r"same number of irreps, got 2 \(2x1o\) and 1 \(1x1o\)"),
        ((X, X), {"irrep_normalization": "unit"}, "'unit' is not supported; choose 'component'"),
        ((X, X), {"backend": "cuda"}, "backend 'cuda' is unknown; choose one of triton"),
    ],
)
def test_errors_name_what_is_wrong(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        ops.elementwise_tensor_product(*arguments, **{"backend": "xla", **keywords})
