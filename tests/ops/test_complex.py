"""Complex operands: computed as e3nn-jax computes them, by it alone."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import recorded

ROWS = 3


def normal(irreps, seed=0):
    real, imaginary = jax.random.normal(jax.random.key(seed), (2, ROWS, e3nn.Irreps(irreps).dim))
    return e3nn.IrrepsArray(irreps, real + 1j * imaginary)


X, Y = normal("2x0e+2x1o"), normal("0e+1o", 1)
REAL = e3nn.IrrepsArray("0e+1o", Y.array.real)
EDGES = ops.Edges.from_arrays([0, 1], [1, 2], ROWS)
KEY = jax.random.key(2)


def applied(module, *arguments):
    return module.apply(module.init(KEY, *arguments), *arguments)


def messages(weights):
    product = e3nn.tensor_product(X[EDGES.senders], Y[:2]) * weights
    return e3nn.scatter_sum(product, dst=EDGES.receivers, output_size=ROWS)


W = normal("12x0e").array[:2]
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
        lambda b: ops.graph_tensor_product(X, Y[:2], W, EDGES, backend=b),
        lambda: messages(W),
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
    for backend in (None, "e3nn"):
        with recorded() as calls:
            found = ours(backend)
        assert {call.backend for call in calls} == {"e3nn"}
        if backend is None:
            assert "complex operands are computed by backend 'e3nn' alone" in calls[0].why
        assert found.dtype == jnp.complex64
        found, exact = (getattr(a, "array", a) for a in (found, expected))
        np.testing.assert_allclose(found, exact, atol=1e-5)
    for backend in ("xla", "llvm"):
        with pytest.raises(ValueError, match=f"backend '{backend}' is for real numbers: complex"):
            ours(backend)


def test_complex_parameters(monkeypatch):
    monkeypatch.delenv("EQFUSE_BACKEND", raising=False)
    module, x = ops.Linear("3x0e+1o"), e3nn.IrrepsArray(X.irreps, X.array.real)
    params = jax.tree.map(lambda p: 1j * p, module.init(KEY, x))
    expected = e3nn.flax.Linear("3x0e+1o").apply(params, x)
    np.testing.assert_allclose(module.apply(params, x).array, expected.array, atol=1e-5)
