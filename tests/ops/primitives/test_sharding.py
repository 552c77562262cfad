"""Products and sequences of batches that are spread over several devices, against e3nn-jax."""

import functools
import os

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from eqfuse import ops
from tests.child import ROOT, run_python
from tests.ops.parity import assert_close
from tests.ops.transforms.test_places import NATIVE, arrays, layer
from tests.ops.transforms.test_places import gradients as gradients_of_layer

X, Y, ROWS = e3nn.Irreps("5x0e+5x1o"), e3nn.Irreps("0e+1o"), 8
BY_ROW, WHOLE = PartitionSpec("data"), PartitionSpec()
CHECKS = {"check_products": ["xla", "llvm", "triton"], "check_sequences": ["llvm"]}
"""What processes with four host devices run, below, and on which backends."""


@pytest.mark.slow
@pytest.mark.parametrize(("check", "backend"), [(c, b) for c, of in CHECKS.items() for b in of])
def test_several_host_devices(check, backend):
    if backend == "triton":
        pytest.importorskip("triton", reason="the interpreter is part of triton")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    code = f"from {__name__} import {check}; {check}({backend!r}); print('checked')"
    done = run_python("-c", code, env=environment, cwd=ROOT, timeout=600)
    assert done.stdout == "checked\n"


def product(x, y, backend):
    return ops.tensor_product(e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y), backend=backend).array


def gradients(x, y, backend):
    return jax.grad(lambda x, y: (product(x, y, backend) ** 2).sum(), argnums=(0, 1))(x, y)


def close(found, expected, roundings=84):
    """Float32: sums of fewer products than there are roundings."""
    assert_close(found, expected, roundings * 2**-24, least=1.0)


def ops_inside(backend):
    """Return for each op that runs inside `shard_map`: parameters, a function of them, x and y."""
    rows = ROWS // 4
    x0, y0 = (e3nn.IrrepsArray(irreps, jnp.ones((rows, irreps.dim))) for irreps in (X, Y))
    edges = ops.Edges.from_arrays(np.arange(rows), (np.arange(rows) * 3 + 1) % rows, rows)
    on_graph = ops.TensorProductLinear("3x0e+2x1o", backend=backend)
    options = {"biases": True, "force_irreps_out": True}
    gated = ops.TensorProductLinearGate("4x0e+2x1o", backend=backend, **options)

    def with_skip(method, first, x, y):
        skip = e3nn.IrrepsArray("4x0e+2x1o", jnp.tile(x.array[..., :1], 10))
        return method(first, x, y, None, None, skip)

    return {
        "a row that all rows share": (
            np.ones((1, 4), np.float32),
            lambda p, x, y: ops.tensor_product(x, e3nn.IrrepsArray(Y, p), backend=backend),
        ),
        "with biases and a skip": (
            with_skip(gated.init, jax.random.key(0), x0, y0),
            functools.partial(with_skip, gated.apply),
        ),
        "TensorProductLinear on a graph": (
            on_graph.init(jax.random.key(0), x0, y0, edges=edges),
            functools.partial(on_graph.apply, edges=edges),
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


def check_inside_shard_map(backend, mesh, x, y):
    """Values, gradients and gradients of those, of rows and of parameters that all share."""

    def of_arrays(op):
        return lambda p, x, y: op(p, e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)).array

    references = ops_inside("e3nn")
    specs = {"mesh": mesh, "in_specs": (WHOLE, BY_ROW, BY_ROW), "out_specs": BY_ROW}
    for name, (params, op) in ops_inside(backend).items():
        mapped = jax.shard_map(of_arrays(op), **specs)
        of_part = jax.vmap(of_arrays(references[name][1]), (None, 0, 0))

        def by_parts(p, x, y, of_part=of_part):
            x, y = (a.reshape(4, ROWS // 4, -1) for a in (x, y))
            return of_part(p, x, y).reshape(ROWS, -1)

        found, expected = (
            jax.jit(lambda *a, f=f: (f(*a), jax.jvp(f, a, a), of_the_norm(f)(*a)))(params, x, y)
            for f in (mapped, by_parts)
        )
        close(found, expected, roundings=500)
    jax.grad(lambda p: (mapped(p, x, y) ** 2).sum())(params)  # the last, without jit


def check_products(backend):
    """Under jit with sharded operands, and inside `shard_map`."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(ROWS, i.dim)).astype(np.float32) for i in (X, Y))
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,))
    sharded = jax.device_put((x, y), NamedSharding(mesh, BY_ROW))

    def check(function, given, operands, *specs):
        compute = functools.partial(function, backend=backend)
        if specs:
            compute = jax.shard_map(compute, mesh=mesh, in_specs=specs, out_specs=BY_ROW)
        found = jax.jit(compute)(*given)
        close(found, function(*operands, "e3nn"))
        return found

    for function in (product, gradients):
        value = check(function, sharded, (x, y))
        if (backend, function) == ("xla", product):
            assert value.sharding.is_equivalent_to(sharded[0].sharding, 2), value.sharding
        check(function, (sharded[0], y[:1]), (x, y[:1]))  # a row that all devices read
        check(function, (x, y), (x, y), BY_ROW, BY_ROW)
    # y is the same on all devices, x is not
    check(product, (x, y[:2]), (x, np.tile(y[:2], (4, 1))), BY_ROW, WHOLE)
    check_inside_shard_map(backend, mesh, x, y)


def check_sequences(backend):
    """On a mesh, sharded, replicated, on explicit axes and inside `shard_map`."""
    assert jax.device_count() == 4
    args = [np.concatenate([a, 2 * a], 0)[:8] for a in arrays()]
    devices = np.array(jax.devices())
    mesh = Mesh(devices, ("data",))
    specs = {"mesh": mesh, "in_specs": BY_ROW, "out_specs": BY_ROW}

    def check(what, place=None, transform=lambda f: f):
        """Compare a sequence of arguments at a place, and return what its report says."""
        reported = []
        function = transform(ops.sequence(what(backend), report=reported.append))
        found = function(*jax.device_put(args, place))
        assert_close(found, what("e3nn")(*args), 1e-5)
        return reported

    def constrained(backend):
        by_row = NamedSharding(mesh, BY_ROW)
        return lambda x, y: layer(backend)(jax.lax.with_sharding_constraint(x, by_row), y)

    def mapped(backend):
        return lambda x, y: jax.shard_map(layer(backend), **specs)(layer(backend)(x, y), y)

    for spec in (BY_ROW, WHOLE):
        said = check(gradients_of_layer, NamedSharding(mesh, spec))
        assert said[-1] == "as written: on several devices"
    [said] = check(gradients_of_layer, devices[2])
    assert said.startswith(NATIVE)
    on_mesh = ["as written: inside shard_map, or on a mesh of explicit axes"]
    assert check(layer, transform=lambda f: jax.jit(jax.shard_map(f, **specs))) == on_mesh
    with jax.set_mesh(Mesh(devices, ("data",), axis_types=(AxisType.Explicit,))):
        assert check(layer) == on_mesh
    places = "as written: it decides where arrays lie"
    assert check(mapped) == [f"{places} (shard_map)"]
    assert check(constrained) == [f"{places} (sharding_constraint)"]


@pytest.mark.parametrize("backend", ["xla", "llvm"])
@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec(None, "data")])
def test_arrays_on_explicit_axes_are_refused(backend, spec):
    """Those of the kind of mesh that `jax.make_mesh` makes; what is not sharded runs there."""

    def product(x):
        x = e3nn.IrrepsArray("2x0e+2x1o", x)
        return ops.tensor_product(x, x, backend=backend).array

    x = jnp.ones((4, 3, 8), jnp.float32)
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Explicit,), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        assert jax.jit(product)(x).shape == (4, 3, 64)
        for run in (product, jax.jit(product)):
            with pytest.raises(ValueError, match=r"call it inside jax\.shard_map"):
                run(jax.device_put(x, NamedSharding(mesh, spec)))
