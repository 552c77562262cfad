"""Complex operands: computed as e3nn-jax computes them, by it alone."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops

ROWS = 3


def normal(irreps, seed=0):
    real, imaginary = jax.random.normal(jax.random.key(seed), (2, ROWS, e3nn.Irreps(irreps).dim))
    return e3nn.IrrepsArray(irreps, real + 1j * imaginary)


X, Y = normal("2x0e+2x1o"), normal("0e+1o", 1)
REAL, W = e3nn.IrrepsArray("0e+1o", Y.array.real), normal("12x0e").array[:2]
ENDS = np.array([0, 1]), np.array([1, 2])


def messages():
    product = e3nn.tensor_product(X[ENDS[0]], Y[:2]) * W
    return e3nn.scatter_sum(product, dst=ENDS[1], output_size=ROWS)


def applied(module, *arguments):
    return module.init_with_output(jax.random.key(2), *arguments)[0]


# what ours gives with a backend, and e3nn-jax
CALLS = {
    "product": (
        lambda b: ops.tensor_product(X, REAL, backend=b),
        lambda: e3nn.tensor_product(X, REAL),
    ),
    "elementwise": (
        lambda b: ops.elementwise_tensor_product(X, X, backend=b),
        lambda: e3nn.elementwise_tensor_product(X, X),
    ),
    "graph": (
        lambda b: ops.graph_tensor_product(
            X, Y[:2], W, ops.Edges.from_arrays(*ENDS, ROWS), backend=b
        ),
        messages,
    ),
    "linear": (
        lambda b: applied(ops.Linear("3x0e+1o", backend=b), X),
        lambda: applied(e3nn.flax.Linear("3x0e+1o"), X),
    ),
    "fused": (
        lambda b: applied(ops.TensorProductLinear("3x0e+1o", backend=b), X, Y),
        lambda: applied(e3nn.flax.Linear("3x0e+1o"), e3nn.tensor_product(X, Y)),
    ),
    "dense": (
        lambda b: ops.grouped_dense(X.array, [X.array.T], backend=b),
        lambda: X.array @ X.array.T,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_complex_operands(name, monkeypatch):
    """None runs e3nn's, and says why; a backend asked for by name is refused."""
    monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
    ours, theirs = CALLS[name]
    expected = theirs()
    with ops.recorded() as calls:
        results = [ours(backend) for backend in (None, "e3nn")]
    assert {call.backend for call in calls} == {"e3nn"}
    assert "complex operands are computed by backend 'e3nn' alone" in calls[0].why
    for found in results:
        assert found.dtype == jnp.complex64
        found, exact = (getattr(a, "array", a) for a in (found, expected))
        np.testing.assert_allclose(found, exact, atol=1e-5)
    for backend in ("xla", "llvm"):
        with pytest.raises(ValueError, match=f"backend '{backend}' is for real numbers: complex"):
            ours(backend)


def test_complex_parameters(monkeypatch):
    monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
    module, x = ops.Linear("3x0e+1o"), e3nn.IrrepsArray(X.irreps, X.array.real)
    params = jax.tree.map(lambda p: 1j * p, module.init(jax.random.key(2), x))
    expected = e3nn.flax.Linear("3x0e+1o").apply(params, x)
    np.testing.assert_allclose(module.apply(params, x).array, expected.array, atol=1e-5)
