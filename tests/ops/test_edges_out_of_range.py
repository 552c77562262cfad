"""What the kernels on a CPU say of edges that leave the graph, where only they can see it."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import pytest

from eqfuse import ops


def product(senders, receivers):
    edges = ops.Edges.from_arrays(senders, receivers, 2)
    x, y = (e3nn.normal("2x0e", jax.random.key(0), (rows,)) for rows in (2, 3))
    return ops.graph_tensor_product(x, y, None, edges, backend="numba").array


@pytest.mark.parametrize("out", [2, 5, -1])
def test_the_message_names_the_ends_and_their_range(out):
    inside, outside = jnp.array([0, 1, 1]), jnp.array([0, 1, out])
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"senders\[2\] is {out}, outside \[0, 2"):
        jax.block_until_ready(jax.jit(product)(outside, inside))
    text = r"receiver_ptr\[\d\] is \d, not in \[\d, \d\]: indices of edges must be in \[0, 2\)"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        jax.block_until_ready(jax.jit(product)(inside, outside))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"senders\[2\]"):
        jax.block_until_ready(jax.jit(product)(outside, outside))
