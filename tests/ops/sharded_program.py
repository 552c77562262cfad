"""Run by test_sharding.py in a process with four host devices."""

import sys
import warnings

import e3nn_jax as e3nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eqfuse import ops

X, Y, ROWS = e3nn.Irreps("5x0e+5x1o"), e3nn.Irreps("0e+1o"), 8


def product(x, y, backend):
    return ops.tensor_product(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), backend=backend).array


def gradients(x, y, backend):
    return jax.grad(lambda x, y: (product(x, y, backend) ** 2).sum(), argnums=(0, 1))(x, y)


def close(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def main(backend):
    warnings.simplefilter("error")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, X.dim)).astype(np.float32)
    y = rng.normal(size=(ROWS, Y.dim)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    assert mesh.size == 4
    by_row = PartitionSpec("data", None)
    sharded = jax.device_put((x, y), NamedSharding(mesh, by_row))

    value = jax.jit(product, static_argnums=2)(*sharded, backend)
    close(value, product(x, y, "e3nn"))
    close(jax.jit(gradients, static_argnums=2)(*sharded, backend), gradients(x, y, "e3nn"))
    one = sharded[0], y[:1]  # a row that all devices read
    close(jax.jit(product, static_argnums=2)(*one, backend), product(x, y[:1], "e3nn"))
    close(jax.jit(gradients, static_argnums=2)(*one, backend), gradients(x, y[:1], "e3nn"))
    if backend == "xla":
        assert value.sharding.spec == by_row, value.sharding

    def mapped(function, specs):
        return jax.jit(
            jax.shard_map(
                lambda x, y: function(x, y, backend), mesh=mesh, in_specs=specs, out_specs=by_row
            )
        )

    close(mapped(product, (by_row, by_row))(x, y), product(x, y, "e3nn"))
    close(mapped(gradients, (by_row, by_row))(x, y), gradients(x, y, "e3nn"))
    # y is the same on all devices, x is not
    alike = mapped(product, (by_row, PartitionSpec(None, None)))(x, y[:2])
    close(alike, product(x, np.tile(y[:2], (4, 1)), "e3nn"))
    print("sharded ok")


if __name__ == "__main__":
    main(sys.argv[1])
