"""The example of fusing a layer: the same parameters, results and gradients."""

import pathlib
import runpy
from contextlib import nullcontext

import e3nn_jax as e3nn
import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear import LinearForm
from tests.ops import tiers
from tests.ops.parity import PORTABLE, only

EXAMPLE = pathlib.Path(__file__).parents[4] / "examples" / "fuse_a_layer.py"


def computed_by(backend):
    """e3nn's own backend has no kernels to prove."""
    return nullcontext() if backend == "e3nn" else only(backend, kinds={Form, LinearForm})


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *PORTABLE, "e3nn"))
def test_a_fused_layer_is_the_layer(backend):
    example = runpy.run_path(str(EXAMPLE))
    irreps = "4x0e + 3x0e + 3x1o"
    with jax.enable_x64(True):
        x = e3nn.normal("4x0e + 4x1o", jax.random.key(0), (5,)).astype(jnp.float64)
        y = e3nn.normal("0e + 1o + 2e", jax.random.key(1), (5,)).astype(jnp.float64)
        layer, fused = example["Layer"](irreps), example["FusedLayer"](irreps, backend)
        params = layer.init(jax.random.key(2), x, y)
        jax.tree.map(np.testing.assert_array_equal, fused.init(jax.random.key(2), x, y), params)
        assert layer.apply(params, x, y).irreps == fused.apply(params, x, y).irreps

        def results(module):
            def loss(params, x):
                out = module.apply(params, e3nn.IrrepsArray("4x0e + 4x1o", x), y).array
                return jnp.sum(jnp.sin(out)), out

            return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(params, x.array)

        with computed_by(backend):
            found = results(fused)
        for a, b in zip(*map(jax.tree.leaves, (found, results(layer))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLE))["main"]()
    assert "32x0e+16x1o, largest difference" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xla", "llvm"])
def test_functions_are_the_modules(backend):
    x, y = (
        e3nn.normal(irreps, jax.random.key(n), (5,))
        for n, irreps in enumerate(("4x0e + 4x1o", "0e + 1o"))
    )
    for function, module in (
        (ops.tensor_product_linear, ops.TensorProductLinear),
        (ops.tensor_product_linear_gate, ops.TensorProductLinearGate),
    ):
        expected = module("6x0e + 2x1o", backend="e3nn")
        params = expected.init(jax.random.key(2), x, y)
        with computed_by(backend):
            got = jax.jit(
                lambda p, f=function: f(x, y, p["params"], "6x0e + 2x1o", backend=backend)
            )(params)
        assert got.irreps == expected.apply(params, x, y).irreps
        np.testing.assert_allclose(
            got.array, expected.apply(params, x, y).array, rtol=1e-5, atol=1e-5
        )
    linear, index = e3nn.flax.Linear("3x0e", num_indexed_weights=2), jnp.arange(5) % 2
    params = linear.init(jax.random.key(2), index, x)
    with only(backend, runs=backend == "llvm", kinds={LinearForm}):  # XLA has no kernel for it
        got = ops.linear(
            x, params["params"], "3x0e", index=index, num_indexed_weights=2, backend=backend
        )
    np.testing.assert_allclose(got.array, linear.apply(params, index, x).array, rtol=1e-5)
    with pytest.raises(flax.errors.ScopeParamShapeError):
        ops.linear(x, {"w[0,0] 4x0e,3x0e": jnp.zeros((2, 3))}, "3x0e", backend=backend)
