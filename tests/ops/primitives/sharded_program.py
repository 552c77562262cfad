"""Run by test_sharding.py in a process with four host devices."""

import math
import sys
import warnings

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from eqfuse import ops

X, Y, ROWS = e3nn.Irreps("5x0e+5x1o"), e3nn.Irreps("0e+1o"), 8
INSIDE = (
    "a row that all rows share",
    "indexed, with biases and a skip",
    "TensorProductLinear on a graph",
)
"""Ops that run inside `shard_map` in every order."""


def product(x, y, backend):
    return ops.tensor_product(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), backend=backend).array


def gradients(x, y, backend):
    return jax.grad(lambda x, y: (product(x, y, backend) ** 2).sum(), argnums=(0, 1))(x, y)


def close(got, expected):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def ops_over_rows(backend, shape):
    """Return for each op, by name: parameters, and a function of (parameters, x, y).

    Args:
      shape: of the leading axes of x and y.
    """
    x0, y0 = (e3nn.IrrepsArray(irreps, jnp.ones((*shape, irreps.dim))) for irreps in (X, Y))
    rows = math.prod(shape)
    senders, receivers = np.arange(rows), (np.arange(rows) * 3 + 1) % rows
    edges = ops.Edges.from_arrays(senders, receivers, rows)
    species = np.arange(rows).reshape(shape) % 2

    def layer(module, *arrays, **kwargs):
        parameters = module.init(jax.random.key(0), *arrays, **kwargs)
        return parameters, lambda p, *a: module.apply(p, *a, **kwargs).array

    linear, apply_linear = layer(ops.Linear("3x0e+2x1o", backend=backend), x0)
    gate, apply_gate = layer(ops.TensorProductLinearGate("3x0e+2x1o", backend=backend), x0, y0)
    paths = ops.symmetric_contraction_paths(X, "5x0e+5x1o", 2)
    weights = np.full((2, sum(count for *_, count in paths), 5), 0.1, np.float32)
    on_graph = {}
    if len(shape) == 1:
        product, apply_product = layer(
            ops.TensorProductLinear("3x0e+2x1o", backend=backend), x0, y0, edges=edges
        )
        on_graph = {
            "TensorProductLinear on a graph": (product, apply_product),
            "graph_tensor_product": (
                np.float32(2.0),
                lambda p, x, y: (
                    ops.graph_tensor_product(x, y * p, None, edges, backend=backend).array
                ),
            ),
        }
    return on_graph | {
        "a row that all rows share": (
            np.ones((1, 4), np.float32),
            lambda p, x, y: ops.tensor_product(x, e3nn.IrrepsArray(Y, p), backend=backend).array,
        ),
        "Linear": (linear, lambda p, x, y: apply_linear(p, x)),
        "indexed, with biases and a skip": indexed_layer(backend, x0, y0, species),
        "TensorProductLinearGate": (gate, apply_gate),
        "weighted_channels": (
            np.float32(2.0),
            lambda p, x, y: ops.weighted_channels(y, p * x.array[..., :6], backend=backend).array,
        ),
        "symmetric_contraction": (
            weights,
            lambda p, x, y: (
                ops.symmetric_contraction(
                    # the index of each row, sharded as x is
                    x,
                    p,
                    (0 * x.array[..., 0]).astype(int) + species,
                    irreps_out="5x0e+5x1o",
                    correlation=2,
                    backend=backend,
                ).array
            ),
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


def value_and_gradients(function):
    """Return the value and gradients of a function that `ops_over_rows` gives, of arrays."""

    def both(parameters, x, y):
        def value(parameters, x, y):
            return function(parameters, e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y))

        gradient = jax.grad(lambda *a: (value(*a) ** 2).sum(), argnums=(0, 1, 2))
        return value(parameters, x, y), gradient(parameters, x, y)

    return both


def explicit_axes(backend, x, y):
    """Return values, gradients and types on a mesh of the kind that `jax.make_mesh` makes."""
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Explicit,))
    references = ops_over_rows("e3nn", (ROWS,))
    for name, (parameters, function) in ops_over_rows(backend, (ROWS,)).items():
        both = value_and_gradients(function)
        expected = jax.jit(value_and_gradients(references[name][1]))(parameters, x, y)
        with jax.set_mesh(mesh):
            by_row = NamedSharding(mesh, PartitionSpec("data"))
            sharded = jax.device_put((x, y), by_row)
            for run in (both, jax.jit(both)):
                got = run(parameters, *sharded)
                close(got, expected)
                for array in (got[0], got[1][1]):
                    assert array.sharding.spec[0] == "data", (name, array.sharding)


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
    mesh, here = jax.make_mesh((4,), ("data",), (AxisType.Auto,)), (ROWS // 4,)
    found_by, references = ops_over_rows(backend, here), ops_over_rows("e3nn", here)
    for name in INSIDE:
        parameters, function = found_by[name]

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


def other_axes_sharded(backend, x, y):
    """Return the second of two leading axes, and both in the order the mesh does not have."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), (AxisType.Explicit,) * 2)
    references = ops_over_rows("e3nn", (2, 4))
    x, y = x.reshape(2, 4, -1), y.reshape(2, 4, -1)
    for name, (parameters, function) in ops_over_rows(backend, (2, 4)).items():
        both = value_and_gradients(function)
        expected = jax.jit(value_and_gradients(references[name][1]))(parameters, x, y)
        for spec in (PartitionSpec(None, "data"), PartitionSpec("model", "data")):
            with jax.set_mesh(mesh):
                sharded = jax.device_put((x, y), NamedSharding(mesh, spec))
                got = jax.jit(both)(parameters, *sharded)
            close(got, expected)
            assert tuple(got[0].sharding.spec)[:2] == tuple(spec), (name, got[0].sharding)


def nothing_sharded(backend, x, y):
    """Return operands that no device shares with another, on a mesh all the same."""
    for kind in (AxisType.Explicit, AxisType.Auto):
        with jax.set_mesh(jax.make_mesh((4,), ("data",), (kind,))):
            value = jax.jit(product, static_argnums=2)(x, y, backend)
            found = jax.jit(gradients, static_argnums=2)(x, y, backend)
        close(value, product(x, y, "e3nn"))
        close(found, gradients(x, y, "e3nn"))


def explicit_axis_beside_a_mapped_one(backend, x, y):
    """`shard_map` over one axis of two."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), (AxisType.Explicit,) * 2)
    by_row = PartitionSpec("data")
    with jax.set_mesh(mesh):
        placed = jax.device_put((x, y), NamedSharding(mesh, by_row))
        mapped = jax.shard_map(
            lambda x, y: product(x, y, backend),
            in_specs=(by_row, by_row),
            out_specs=by_row,
            axis_names={"data"},
        )
        value = jax.jit(mapped)(*placed)
    close(value, product(x, y, "e3nn"))


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
    explicit_axes(backend, x, y)
    other_axes_sharded(backend, x, y)
    nothing_sharded(backend, x, y)
    if backend == "xla":
        explicit_axis_beside_a_mapped_one(backend, x, y)
    print("sharded ok")


if __name__ == "__main__":
    if sys.argv[1] == "triton":
        from eqfuse.ops.primitives import forms
        from tests import interpreter  # noqa: F401  (runs its kernels)

        def over_rows(form, _):  # JAX partitions no Python callback
            return lambda *a: forms.triton.run_form(form, a, {}, max(map(len, a)), 0)

        forms._over_rows = over_rows
    main(sys.argv[1])
