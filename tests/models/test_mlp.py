import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.models import mlp
from eqfuse.ops.ir.linear import LinearForm
from tests.ops import tiers
from tests.ops.parity import only


@pytest.mark.parametrize("few_rows", [0, 100], ids=["many rows", "few rows"])
@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], "xla", "llvm"))
@pytest.mark.parametrize(
    ("widths", "act"),
    [((7,), None), ((4, 1), None), ((4, 6, 5), jax.nn.silu)],
    ids=["one", "linear", "silu"],
)
def test_the_layers_are_those_of_e3nn(few_rows, backend, widths, act, monkeypatch):
    monkeypatch.setattr(mlp, "FEW_ROWS", few_rows)
    x = np.random.default_rng(0).normal(size=(9, 3))
    ours = mlp.MLP(widths, act, backend)
    theirs = e3nn.flax.MultiLayerPerceptron(widths, act, output_activation=False)
    params = ours.init(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, params, theirs.init(jax.random.key(0), x))
    native = backend == "llvm" and few_rows > 0

    def computed():
        """By kernels of linear forms alone, for what is lowered inside."""
        return only(backend, runs=native, kinds={LinearForm} if native else set())

    with computed():
        found = jax.jit(lambda params: ours.apply(params, x))(params)
    np.testing.assert_allclose(found, theirs.apply(params, x), atol=1e-12)

    def of_slopes(module):
        def loss(params):
            slopes = jax.grad(lambda x: jnp.sum(jnp.sin(module.apply(params, x))))(x)
            return jnp.sum(slopes**2)

        return jax.jit(jax.grad(loss))(params)

    with computed():
        found = of_slopes(ours)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, of_slopes(theirs)
    )


@pytest.mark.parametrize(
    ("rows", "backend", "native"),
    [(16384, "llvm", 1), (16385, "llvm", 0), (9, "xla", 0), (9, "xla,grouped_dense=llvm", 1)],
)
def test_few_rows_are_multiplied_natively(rows, backend, native, monkeypatch):
    calls = []
    monkeypatch.setattr(ops, "grouped_dense", lambda x, kernels, **_: calls.append(len(x)))
    mlp.dense(jnp.ones((rows, 2)), jnp.ones((2, 3)), backend)
    assert len(calls) == native
