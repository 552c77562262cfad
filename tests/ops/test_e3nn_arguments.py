"""Arguments of ops that e3nn and jax.numpy take, and what they make of them."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops

BACKENDS = ["xla", "numba", "e3nn"]
ROWS = 4


def normal(irreps, dtype=jnp.float32, seed=0, rows=ROWS):
    irreps = e3nn.Irreps(irreps)
    return e3nn.normal(irreps, jax.random.key(seed), (rows,)).astype(dtype)


def assert_close(a, b):
    """The same but for the order of float32 sums of fewer than 100 terms."""
    np.testing.assert_allclose(a, b, atol=100 * 2**-24 * np.abs(b).max(initial=0), rtol=0)


class TestNegativeIndex:
    """It counts from the last set of weights, as in numpy: in the value and in the gradient."""

    @staticmethod
    def value_and_gradient(function, parameters, index):
        def loss(parameters):
            return (function(parameters, index) ** 2).sum()

        return function(parameters, index), jax.grad(loss)(parameters)

    def assert_wraps(self, function, parameters, kind):
        wrapped = self.value_and_gradient(function, parameters, jnp.array([2, 0, 1, 2]))
        index = kind([-1, 0, 1, 2])
        for f in (function, jax.jit(function)):
            found = self.value_and_gradient(f, parameters, index)
            jax.tree.map(assert_close, found, wrapped)

    @pytest.mark.parametrize("kind", [np.array, jnp.array, lambda i: jnp.array(i, jnp.int8)])
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_linear(self, kind, backend):
        module = ops.Linear("3x0e+2x1o", num_indexed_weights=3, backend=backend)
        x = normal("2x0e+2x1o")
        parameters = module.init(jax.random.key(0), jnp.zeros(ROWS, int), x)
        self.assert_wraps(lambda p, i: module.apply(p, i, x).array, parameters, kind)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_fused(self, backend):
        options = {"num_indexed_weights": 3, "biases": True, "backend": backend}
        module = ops.TensorProductLinearGate("4x0e+2x1o", **options)
        x, y = normal("2x0e+2x1o"), normal("0e+1o", seed=1)
        parameters = module.init(jax.random.key(0), x, y, index=jnp.zeros(ROWS, int))
        self.assert_wraps(lambda p, i: module.apply(p, x, y, index=i).array, parameters, np.array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_dense_promotes(backend):
    """Integers times floats, and kernels wider than x or of several types, as `x @ kernel`."""
    x, kernel = jnp.ones((1, 2), jnp.int32), jnp.full((2, 1), 0.3)
    out = ops.grouped_dense(x, [kernel], backend=backend)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[0.6]], rtol=2**-23)
    for dtypes in ((jnp.bfloat16, jnp.float32), (jnp.float32, jnp.bfloat16)):
        x, kernel = jnp.full((1, 2), 0.3, dtypes[0]), jnp.full((2, 1), 0.3, dtypes[1])
        out = ops.grouped_dense(x, [kernel, kernel.astype(jnp.bfloat16)], backend=backend)
        assert out.dtype == jnp.float32
        expected = x.astype(jnp.float32) @ kernel.astype(jnp.float32)
        np.testing.assert_allclose(out[:, :1], expected, rtol=2**-22)
    integers = ops.grouped_dense(jnp.ones((1, 2), int), [jnp.ones((2, 1), int)], backend=backend)
    assert integers.dtype == jnp.float32


@pytest.mark.parametrize("backend", ["xla", "numba"])
def test_without_jit(backend):
    """`jax.disable_jit` is for JAX's own functions; the ops compile theirs."""
    x, y = normal("2x0e+2x1o"), normal("0e+1o", seed=1)
    linear = ops.Linear("2x0e+1o", backend=backend)
    gate = ops.TensorProductLinearGate("4x0e+2x1o", backend=backend)
    split = ops.TensorProductLinear("2x0e+1o", backend=backend)

    def results(key):
        parameters = linear.init(key, x), gate.init(key, x, y), split.init(key, x, y)

        def loss(parameters, x):
            p, q, r = parameters
            out = gate.apply(q, x, y), split.apply(r, x, y)
            return (linear.apply(p, x).array ** 2).sum() + sum((z.array**2).sum() for z in out)

        product = ops.tensor_product(x, y, backend=backend)
        return product, parameters, jax.grad(loss, (0, 1))(parameters, x)

    expected = results(jax.random.key(0))
    with jax.disable_jit():
        found = results(jax.random.key(0))
    jax.tree.map(assert_close, found, expected)
