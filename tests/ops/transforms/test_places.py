"""`ops.sequence` wherever a function may stand: e3nn-jax's results, and a report of what ran."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from tests.ops.parity import assert_close

X, Y, ROWS = e3nn.Irreps("4x0e+4x1o"), e3nn.Irreps("0e+1o"), 6
NATIVE = "one native call"
TRANSFORMED = "as written: differentiated, mapped, or part of another sequence"


def arrays(*leading: int, dtype=np.float32):
    """Return operands of `layer`."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(*leading, ROWS, d.dim)).astype(dtype) for d in (X, Y)]


def layer(backend: str):
    """Return a layer from X to X by products with Y and a Linear that mixes channels."""

    def function(x, y):
        product = ops.tensor_product(
            e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), filter_ir_out=("0e",), backend=backend
        ).array
        mixing = jnp.cos(jnp.arange(product.shape[-1] * X.dim, dtype=x.dtype))
        mixing = mixing.reshape(product.shape[-1], X.dim) / 4
        return jnp.tanh(ops.grouped_dense(product, [mixing], scale=1.0, backend=backend)) + x

    return function


def loss(backend: str):
    return lambda x, y: (layer(backend)(x, y) ** 2).sum()


def gradients(backend: str):
    return jax.value_and_grad(loss(backend), argnums=(0, 1))


def scanned(function):
    def run(x, y):
        return lax.scan(lambda x, y: (function(x, y), x.sum()), x[0], y)

    return run


def repeated(function):
    def run(x, y):
        return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, function(c[1], y)), (0, x))

    return run


def chosen(function):
    return lambda x, y: lax.cond(x[0, 0] > y[0, 0], function, lambda x, y: x, x, y)


# transformation, what of, leading axes of the arguments, what the report says last
PLACES = {
    "alone": (lambda f: f, gradients, (), NATIVE),
    "jit": (jax.jit, gradients, (), NATIVE),
    "vmap": (jax.vmap, gradients, (3,), TRANSFORMED),
    "scan": (scanned, layer, (4,), NATIVE),
    "while_loop": (repeated, layer, (), NATIVE),
    "cond": (chosen, layer, (), NATIVE),
    "checkpoint": (jax.checkpoint, gradients, (), NATIVE),
    "grad of checkpoint": (lambda f: jax.grad(jax.checkpoint(f)), loss, (), TRANSFORMED),
    "grad": (jax.grad, loss, (), TRANSFORMED),
    "forward derivative": (lambda f: lambda x, y: jax.jvp(f, (x, y), (y[:, :1] * x, y)), layer, (),
                           TRANSFORMED),
    "hessian": (jax.hessian, loss, (), TRANSFORMED),
    "within a sequence": (ops.sequence, loss, (), NATIVE),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_places(place):
    transform, what, leading, last = PLACES[place]
    reported = []
    found = transform(ops.sequence(what("llvm"), report=reported.append))(*arrays(*leading))
    assert_close(found, transform(what("e3nn"))(*arrays(*leading)), 1e-5)
    assert reported[0].startswith(NATIVE)
    assert reported[-1].startswith(last), reported


def test_float64():
    with jax.enable_x64(True):
        reported = []
        args = arrays(dtype=np.float64)
        found = ops.sequence(gradients("llvm"), report=reported.append)(*args)
        assert_close(found, gradients("e3nn")(*args), 1e-12)
    assert [line[: len(NATIVE)] for line in reported] == [NATIVE]


def test_donated_arguments():
    """Their memory is used again, and nothing is read from it after it was written."""
    x, y = arrays()
    expected = x
    given = jnp.asarray(x)
    step = ops.sequence(layer("llvm"), donate_argnums=0)
    for _ in range(3):
        last, given = given, step(given, y)
        expected = layer("e3nn")(expected, y)
    assert last.is_deleted()
    assert_close(given, expected, 1e-5)
