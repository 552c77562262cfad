"""Run by test_sharding.py in a process with four host devices."""

import sys
import warnings

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from eqfuse import ops

X, Y, ROWS = e3nn.Irreps("5x0e+5x1o"), e3nn.Irreps("0e+1o"), 8


def product(x, y, backend):
    return ops.tensor_product(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), backend=backend).array


def gradients(x, y, backend):
    return jax.grad(lambda x, y: (product(x, y, backend) ** 2).sum(), argnums=(0, 1))(x, y)


def close(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def ops_inside(backend, rows):
    """Return for each op that runs inside `shard_map`: parameters, a function of them, x and y."""
    x0, y0 = (e3nn.IrrepsArray(irreps, jnp.ones((rows, irreps.dim))) for irreps in (X, Y))
    edges = ops.Edges.from_arrays(np.arange(rows), (np.arange(rows) * 3 + 1) % rows, rows)
    on_graph = ops.TensorProductLinear("3x0e+2x1o", backend=backend)
    return {
        "a row that all rows share": (
            np.ones((1, 4), np.float32),
            lambda p, x, y: ops.tensor_product(x, e3nn.IrrepsArray(Y, p), backend=backend).array,
        ),
        "indexed, with biases and a skip": indexed_layer(backend, x0, y0, np.arange(rows) % 2),
        "TensorProductLinear on a graph": (
            on_graph.init(jax.random.key(0), x0, y0, edges=edges),
            lambda p, x, y: on_graph.apply(p, x, y, edges=edges).array,
        ),
    }


def indexed_layer(backend, x0, y0, species):
    options = {"num_indexed_weights": 2, "biases": True, "force_irreps_out": True}
    module = ops.TensorProductLinearGate("4x0e+2x1o", backend=backend, **options)

    def apply(method, first, x, y):
        index = (0 * x.array[..., 0]).astype(int) + species  # sharded as x is
        skip = e3nn.IrrepsArray("4x0e+2x1o", jnp.tile(x.array[..., :1], 10))
        return method(first, x, y, None, None, index, skip)

    parameters = apply(module.init, jax.random.key(0), x0, y0)
    return parameters, lambda *arguments: apply(module.apply, *arguments).array


def of_the_norm(function):
    """Return the gradients of the norm of all gradients of a function, or of those of x alone."""

    def gradients(*operands):
        def norm(which):
            def of(*operands):
                found = jax.grad(lambda *a: (function(*a) ** 2).sum(), which)(*operands)
                return sum((g**2).sum() for g in jax.tree.leaves(found))

            return of

        return [jax.grad(norm(which), (0, 1, 2))(*operands) for which in ((0, 1, 2), (1,))]

    return gradients


def inside_shard_map(backend, x, y):
    """Values, gradients and gradients of those, of rows and of parameters that all share."""
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,))
    references = ops_inside("e3nn", ROWS // 4)
    for name, (parameters, function) in ops_inside(backend, ROWS // 4).items():

        def mapped(parameters, x, y, function=function):
            def of_rows(p, x, y):
                return function(p, e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y))

            by_row, whole = PartitionSpec("data"), PartitionSpec()
            specs = {"in_specs": (whole, by_row, by_row), "out_specs": by_row}
            return jax.shard_map(of_rows, mesh=mesh, **specs)(parameters, x, y)

        def by_parts(parameters, x, y, function=references[name][1]):
            parts = zip(jnp.split(x, 4), jnp.split(y, 4), strict=True)
            return jnp.concatenate(
                [
                    function(parameters, e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y))
                    for x, y in parts
                ]
            )

        found, expected = (
            jax.jit(lambda *a, f=f: (f(*a), jax.jvp(f, a, a), of_the_norm(f)(*a)))(parameters, x, y)
            for f in (mapped, by_parts)
        )
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            # float32: sums of fewer than 500 products, at both orders
            bound = 500 * 2**-24 * max(1, np.abs(b).max())
            np.testing.assert_allclose(a, b, rtol=0, atol=bound, err_msg=name)
        if name == "TensorProductLinear on a graph":
            jax.grad(lambda p: (mapped(p, x, y) ** 2).sum())(parameters)  # without jit


def main(backend):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
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
    inside_shard_map(backend, x, y)
    print("sharded ok")


if __name__ == "__main__":
    if sys.argv[1] == "triton":
        from eqfuse.ops.primitives import forms
        from tests import interpreter  # noqa: F401  (runs its kernels)

        def over_rows(form, _):  # JAX partitions no Python callback
            return lambda *a: forms.triton.run_form(form, a, {}, max(map(len, a)), 0)

        forms._over_rows = over_rows
    main(sys.argv[1])
