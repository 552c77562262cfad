"""Run by test_sharding.py in a process with two host devices."""

import sys
import warnings

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from eqfuse import ops

ROWS = 4
SPLIT, WHOLE = PartitionSpec("data"), PartitionSpec()
MODULES = {
    "linear": (ops.TensorProductLinear, "2x0e+3x1o", {"biases": True}),
    "gate of scalars": (ops.TensorProductLinearGate, "2x0e", {}),
    "gate, indexed, skip": (
        ops.TensorProductLinearGate,
        "4x0e+2x1o",
        {"num_indexed_weights": 3, "force_irreps_out": True},
    ),
}


def arrays_of(irreps, rows, seed):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(rows, e3nn.Irreps(irreps).dim)), jnp.float32)


def case(name, backend, shared_y):
    """Return parameters, x, y, and the op as a function of (parameters, rows' numbers, x, y)."""
    cls, irreps_out, options = MODULES[name]
    irreps_x, irreps_y = "2x0e+2x1o", "0e+1o"
    x, y = arrays_of(irreps_x, ROWS, 0), arrays_of(irreps_y, 1 if shared_y else ROWS, 1)
    module = cls(irreps_out, backend=backend, **options)

    def apply(parameters, number, x, y, method=module.apply):
        index = number % 3 if module.num_indexed_weights else None
        skip = None
        if module.force_irreps_out:
            skip = e3nn.IrrepsArray(irreps_out, jnp.tile(x[:, :1], (1, 10)))
        x, y = e3nn.IrrepsArray(irreps_x, x), e3nn.IrrepsArray(irreps_y, y)
        out = method(parameters, x, y, None, None, index, skip)
        return getattr(out, "array", out)  # parameters or rows

    parameters = apply(jax.random.key(0), jnp.arange(ROWS), x, y, module.init)
    return parameters, x, y, apply


def graph_case(backend, shared_y):
    """Return a graph on each device, with edges of its own."""
    irreps_x, irreps_y = "2x0e+2x1o", "0e+1o"
    x, y = arrays_of(irreps_x, ROWS, 0), arrays_of(irreps_y, 1 if shared_y else 2 * ROWS, 1)
    module = ops.TensorProductLinearGate("4x0e+2x1o", backend=backend)

    def apply(parameters, number, x, y, method=module.apply):
        n = x.shape[0]
        senders = (jnp.repeat(number, 2) * 3 + jnp.arange(2 * n)) % 2
        edges = ops.Edges.from_arrays(senders, jnp.arange(2 * n) // 2, n)
        x, y = e3nn.IrrepsArray(irreps_x, x), e3nn.IrrepsArray(irreps_y, y)
        out = method(parameters, x, y, edges=edges)
        return getattr(out, "array", out)  # parameters or rows

    return apply(jax.random.key(0), jnp.arange(ROWS), x, y, module.init), x, y, apply


def orders(function, parameters, x, y):
    """Value, tangent, gradients, and the gradients of the norm of those of all operands or one."""

    def loss(*arguments):
        return (function(*arguments) ** 2).sum()

    def norm(which):
        def value(*arguments):
            found = jax.grad(loss, which)(*arguments)
            return sum((g**2).sum() for g in jax.tree.leaves(found))

        return value

    def everything():
        arguments = (parameters, x, y)
        tangent = jax.jvp(function, arguments, arguments)
        gradient = jax.grad(loss, (0, 1, 2))(*arguments)
        second = [jax.grad(norm(which), (0, 1, 2))(*arguments) for which in ((0, 1, 2), (1,))]
        return *tangent, gradient, *second

    return jax.jit(everything)()


def check(name, mesh, backend, shared_y):
    graph = name == "graph"
    make = graph_case if graph else lambda *a: case(name, *a)
    parameters, x, y, function = make(backend, shared_y)
    *_, reference = make("e3nn", shared_y)
    number = jnp.arange(ROWS)

    def mapped(parameters, x, y):
        specs = (WHOLE, SPLIT, SPLIT, WHOLE if shared_y else SPLIT)
        f = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=SPLIT)
        return f(parameters, number, x, y)

    def by_definition(parameters, x, y):
        """Return each half as one device has it."""
        ys = [y, y] if shared_y else jnp.split(y, 2)
        parts = zip(jnp.split(number, 2), jnp.split(x, 2), ys, strict=True)
        return jnp.concatenate([reference(parameters, *part) for part in parts])

    expected = orders(by_definition, parameters, x, y)
    found = orders(mapped, parameters, x, y)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        # float32: sums of fewer than 500 products, at both orders
        bound = 500 * 2**-24 * max(1, np.abs(b).max())
        np.testing.assert_allclose(a, b, atol=bound, err_msg=name)
    if name == "linear":
        jax.grad(lambda p: (mapped(p, x, y) ** 2).sum())(parameters)  # without jit


def main(backend):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Error reading persistent compilation cache entry")
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,))
    for number, name in enumerate([*MODULES, "graph"]):
        check(name, mesh, backend, shared_y=number % 2 == 0)
    print("gradients ok")


if __name__ == "__main__":
    main(sys.argv[1])
