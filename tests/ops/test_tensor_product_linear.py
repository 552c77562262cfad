"""TensorProductLinear and TensorProductLinearGate as modules. Results: test_products.py."""

import dataclasses
import pathlib
import re
import runpy

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse.ops import TensorProductLinear
from tests.ops import tiers
from tests.ops.layers import LAYERS


def test_no_rows_and_no_channels_in_common():
    """Zero rows give zero rows; what the Linear cannot reach is zero."""
    for backend in ("xla", "llvm", "triton"):
        module = TensorProductLinear("3x0e+2x2o", force_irreps_out=True, backend=backend)
        x, y = (
            e3nn.normal("2x0e", jax.random.key(0), (4,)),
            e3nn.normal("0e", jax.random.key(1), (4,)),
        )
        params = module.init(jax.random.key(2), x, y)
        out = module.apply(params, x, y)
        assert not out.filter(keep="2o").array.any()
        assert out.filter(keep="0e").array.any()
        assert module.apply(params, x[:0], y[:0]).shape == (0, 13)


@pytest.mark.parametrize("backend", tiers.KERNELS)
@pytest.mark.parametrize("normalization", tiers.slow_unless(["norm"], "component", "norm", "none"))
def test_normalizations_filters_and_broadcasting(backend, normalization):
    x = e3nn.normal("3x0e+2x1o", jax.random.key(0), (2, 1))
    y = e3nn.normal("0e+1o", jax.random.key(1), (3,))
    options = {"irrep_normalization": normalization, "filter_ir_out": ["0e", "1o", "1e"]}
    results = []
    for b in (backend, "e3nn"):
        module = TensorProductLinear("4x0e+2x1o", backend=b, **options)
        params = module.init(jax.random.key(2), x, y)
        results.append(module.apply(params, x, y).array)
    assert results[0].shape == (2, 3, 10)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_gradients_of_an_empty_output_are_zero():
    def total(x):
        module = TensorProductLinear("5x3e", backend="xla")
        y = e3nn.IrrepsArray("0e+1o", x[:, :4])
        return jnp.sum(module.apply({}, e3nn.IrrepsArray("4x0e+3x1o", x), y).array)

    np.testing.assert_array_equal(jax.grad(total)(jnp.ones((4, 13))), 0)


@pytest.mark.parametrize("backend", tiers.NATIVELY)
def test_without_edges_only_the_skip_is_left(backend):
    case = dataclasses.replace(LAYERS["graph-gate-skip"], num_edges=0)
    *operands, skip = (a.astype("float32") for a in case.operands())
    got = case.function(backend)(*operands, skip)
    skip = e3nn.IrrepsArray(case.out, skip)
    np.testing.assert_allclose(got, e3nn.gate(skip).array, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_example_of_a_fused_layer_runs(capsys):
    """With e3nn's parameters; its largest difference from e3nn is of float32."""
    example = pathlib.Path(__file__).parents[2] / "examples" / "fuse_a_layer.py"
    runpy.run_path(str(example))["main"]()
    said = capsys.readouterr().out
    found = re.search(r"32x0e\+16x1o, largest difference (\S+)", said)
    assert float(found[1]) < 1e-4, said
