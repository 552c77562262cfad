"""Run by test_sharding.py in a process with four host devices."""

import sys
import warnings

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from eqfuse import ops

X, Y, ROWS = e3nn.Irreps("5x0e+5x1o"), e3nn.Irreps("0e+1o"), 8
BY_ROW, WHOLE = PartitionSpec("data"), PartitionSpec()


def product(x, y, backend):
    return ops.tensor_product(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), backend=backend).array


def gradients(x, y, backend):
    return jax.grad(lambda x, y: (product(x, y, backend) ** 2).sum(), argnums=(0, 1))(x, y)


def close(got, expected, roundings=84):
    """Float32: sums of fewer products than there are roundings."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        bound = roundings * 2**-24 * max(1, np.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=bound)


def ops_inside(backend, rows):
    """Return for each op that runs inside `shard_map`: parameters, a function of them, x and y."""
    x0, y0 = (e3nn.IrrepsArray(irreps, jnp.ones((rows, irreps.dim))) for irreps in (X, Y))
    edges = ops.Edges.from_arrays(np.arange(rows), (np.arange(rows) * 3 + 1) % rows, rows)
    on_graph = ops.TensorProductLinear("3x0e+2x1o", backend=backend)
    options = {"biases": True, "force_irreps_out": True}
    gated = ops.TensorProductLinearGate("4x0e+2x1o", backend=backend, **options)

    def layer(method, first, x, y):
        skip = e3nn.IrrepsArray("4x0e+2x1o", jnp.tile(x.array[..., :1], 10))
        return method(first, x, y, None, None, skip)

    return {
        "a row that all rows share": (
            np.ones((1, 4), np.float32),
            lambda p, x, y: ops.tensor_product(x, e3nn.IrrepsArray(Y, p), backend=backend).array,
        ),
        "with biases and a skip": (
            layer(gated.init, jax.random.key(0), x0, y0),
            lambda *arguments: layer(gated.apply, *arguments).array,
        ),
        "TensorProductLinear on a graph": (
            on_graph.init(jax.random.key(0), x0, y0, edges=edges),
            lambda p, x, y: on_graph.apply(p, x, y, edges=edges).array,
        ),
    }


def of_the_norm(function):
    """Return the gradients of the norm of all gradients of a function, or of those of x alone."""

    def norm(which, *operands):
        found = jax.grad(lambda *a: (function(*a) ** 2).sum(), which)(*operands)
        return sum((g**2).sum() for g in jax.tree.leaves(found))

    def gradients(*operands):
        return [
            jax.grad(lambda *a, which=which: norm(which, *a), (0, 1, 2))(*operands)
            for which in ((0, 1, 2), (1,))
        ]

    return gradients


def inside_shard_map(backend, mesh, x, y):
    """Values, gradients and gradients of those, of rows and of parameters that all share."""
    references = ops_inside("e3nn", ROWS // 4)
    for name, (parameters, function) in ops_inside(backend, ROWS // 4).items():

        def of_rows(p, x, y, function=function):
            return function(p, e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y))

        specs = {"in_specs": (WHOLE, BY_ROW, BY_ROW), "out_specs": BY_ROW}
        mapped = jax.shard_map(of_rows, mesh=mesh, **specs)

        def by_parts(parameters, x, y, function=references[name][1]):
            parts = zip(jnp.split(x, 4), jnp.split(y, 4), strict=True)
            arrays = [
                function(parameters, e3nn.IrrepsArray(X, a), e3nn.IrrepsArray(Y, b))
                for a, b in parts
            ]
            return jnp.concatenate(arrays)

        close(
            *(
                jax.jit(lambda *a, f=f: (f(*a), jax.jvp(f, a, a), of_the_norm(f)(*a)))(
                    parameters, x, y
                )
                for f in (mapped, by_parts)
            ),
            roundings=500,
        )
    jax.grad(lambda p: (mapped(p, x, y) ** 2).sum())(parameters)  # the last, without jit


def main(backend):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(ROWS, i.dim)).astype(np.float32) for i in (X, Y))
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,))
    sharded = jax.device_put((x, y), NamedSharding(mesh, BY_ROW))
    for operands in (sharded, (sharded[0], y[:1])):  # the last is a row that all devices read
        for function in (product, gradients):
            found = jax.jit(function, static_argnums=2)(*operands, backend)
            close(found, function(x, np.asarray(operands[1]), "e3nn"))
    value = jax.jit(product, static_argnums=2)(*sharded, backend)
    if backend == "xla":
        assert value.sharding.is_equivalent_to(sharded[0].sharding, 2), value.sharding

    def mapped(function, *specs):
        of_shard = lambda x, y: function(x, y, backend)  # noqa: E731
        return jax.jit(jax.shard_map(of_shard, mesh=mesh, in_specs=specs, out_specs=BY_ROW))

    for function in (product, gradients):
        close(mapped(function, BY_ROW, BY_ROW)(x, y), function(x, y, "e3nn"))
    # y is the same on all devices, x is not
    close(mapped(product, BY_ROW, WHOLE)(x, y[:2]), product(x, np.tile(y[:2], (4, 1)), "e3nn"))
    inside_shard_map(backend, mesh, x, y)
    print("sharded ok")


if __name__ == "__main__":
    if sys.argv[1] == "triton":
        from tests import interpreter  # noqa: F401  (runs its kernels)
    main(sys.argv[1])
