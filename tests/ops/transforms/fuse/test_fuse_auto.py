"""What `ops.fuse` makes of a client's layer where nobody says `fused`: the table of "auto"."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops.primitives import choice

X, Y, OUT = "2x0e+2x1o", "0e+1o", "2x0e+3x1o"
NODES = 16


@pytest.fixture(autouse=True)
def auto(monkeypatch):
    monkeypatch.delenv("EQFUSE_FUSED", raising=False)


def problem(rows: int, graph: bool):
    """Return a layer as clients write it, product, sum and Linear, and its operands."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, NODES, (2, rows))
    linear = ops.Linear(OUT)

    def layer(params, x, y):
        x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
        m = ops.tensor_product(x[senders] if graph else x, y, backend="llvm")
        if graph:
            m = e3nn.scatter_sum(m, dst=receivers, output_size=NODES)
        return linear.apply(params, m).array

    shapes = (NODES if graph else rows, e3nn.Irreps(X).dim), (rows, e3nn.Irreps(Y).dim)
    x, y = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
    m = e3nn.zeros(ops.tensor_product(X, Y), (1,))
    sizes = jax.eval_shape(linear.init, jax.random.key(0), m)
    params = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), sizes)
    return layer, (params, x, y)


@pytest.mark.parametrize(
    ("rows", "graph", "fused"),
    [
        (choice.FEWEST_ROWS, False, True),
        (choice.FEWEST_ROWS - 1, False, False),
        (2 * choice.FEWEST_ROWS, True, False),
    ],
)
def test_a_layer_is_one_op_where_the_table_of_auto_says_so(rows, graph, fused):
    layer, operands = problem(rows, graph)
    jaxpr = str(jax.make_jaxpr(ops.fuse(layer))(*operands))
    assert jaxpr.count("= eqfuse_fused[") == fused
    assert jaxpr.count("= eqfuse_linear_form[") == jaxpr.count("= eqfuse_form[") == (not fused)
    assert jaxpr.count("scatter-add") == 0
    native = jax.jit(ops.fuse(layer)).lower(*operands).as_text().count("custom_call @eqfuse")
    assert native == (1 if fused else 2)
    np.testing.assert_allclose(ops.fuse(layer)(*operands), layer(*operands), rtol=0, atol=1e-4)
