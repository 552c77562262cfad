"""The ops inside JAX's loops, against e3nn-jax in a loop of Python.

Reverse mode goes through `scan`, and through `fori_loop` where its bounds are static; forward mode
goes through `while_loop` too.
"""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import SMALL, random_arrays
from tests.ops.parity import PORTABLE, UNOPTIMIZED, error, largest, only

STEPS = 3
NODES, EDGES = SMALL.num_nodes, len(SMALL.pairs)
IRREPS, SH = "3x0e+3x1o", "0e+1o"


def of_rows(x, y, params, backend):
    x, y = e3nn.IrrepsArray(IRREPS, x), e3nn.IrrepsArray(SH, y)
    return ops.tensor_product(x, y, backend=backend)


def of_graph(x, y, params, backend):
    x, y = e3nn.IrrepsArray(IRREPS, x), e3nn.IrrepsArray(SH, y)
    return ops.graph_tensor_product(x, y, params, SMALL.edges(), backend=backend)


def linear(x, y, params, backend):
    x = e3nn.IrrepsArray(IRREPS, x + y)
    return _apply(ops.Linear("2x0e+4x1o", backend=backend), params, x)


def fused_rows(x, y, params, backend):
    x, y = e3nn.IrrepsArray(IRREPS, x), e3nn.IrrepsArray(SH, y)
    return _apply(ops.TensorProductLinear("2x0e+4x1o", backend=backend), params, x, y)


def fused_graph(x, y, params, backend):
    x, y = e3nn.IrrepsArray(IRREPS, x), e3nn.IrrepsArray(SH, y)
    module = ops.TensorProductLinearGate("6x0e+2x1o", backend=backend)
    return _apply(module, params, x, y, edges=SMALL.edges())


def contraction(x, y, params, backend):
    options = {"irreps_out": IRREPS, "correlation": 2, "backend": backend}
    species = np.arange(NODES) % 2
    return ops.symmetric_contraction(e3nn.IrrepsArray(IRREPS, x + y), params, species, **options)


def _apply(module, params, *arguments, **keywords):
    """Return the module, whose parameters are one array, in its order."""
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments, **keywords))
    leaves, tree = jax.tree.flatten(shapes)
    assert params.shape == (sum(leaf.size for leaf in leaves),)
    parts = jnp.split(params, np.cumsum([leaf.size for leaf in leaves])[:-1])
    parts = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    return module.apply(jax.tree.unflatten(tree, parts), *arguments, **keywords)


# each op, and the shapes of y and of the parameters
CASES = {
    "rows": (of_rows, (NODES, 4), (0,)),
    "graph": (of_graph, (EDGES, 4), (EDGES, 18)),
    "linear": (linear, (NODES, 12), (18,)),
    "fused-rows": (fused_rows, (NODES, 4), (36,)),
    "fused-graph": (fused_graph, (EDGES, 4), (48,)),
    "contraction": (contraction, (NODES, 12), (2, 5, 3)),
}


def arguments(name: str):
    """x, y of each step and parameters."""
    _, y, params = CASES[name]
    return random_arrays([(NODES, 12), (STEPS, *y), params], 0)


def step_of(name: str, backend: str):
    """Return x after a step, which the op changes by as much as it may."""
    op = CASES[name][0]

    def step(x, y, params):
        out = op(x, y, params, backend).array
        [mixed] = random_arrays([(out.shape[-1], x.shape[-1])], 3)
        return x + 0.1 * jnp.sin(out @ mixed)

    return step


def in_python(step, x, ys, params):
    for y in ys:
        x = step(x, y, params)
    return x


def in_scan(step, x, ys, params):
    return lax.scan(lambda x, y: (step(x, y, params), None), x, ys)[0]


def in_fori_loop(step, x, ys, params):
    return lax.fori_loop(0, STEPS, lambda i, x: step(x, ys[i], params), x)


def in_while_loop(step, x, ys, params):
    def body(state):
        i, x = state
        return i + 1, step(x, ys[i], params)

    return lax.while_loop(lambda state: state[0] < STEPS, body, (0, x))[1]


def computed(name: str, backend: str, loop, orders):
    """Value and derivatives of a loop along random directions, in float64.

    Args:
      orders: of "value", "jvp", "vjp" and "jvp of vjp".
    """
    point = arguments(name)
    directions = random_arrays([a.shape for a in point], 1)
    [cotangent] = random_arrays([point[0].shape], 2)

    def everything(point, directions, cotangent):
        function = functools.partial(loop, step_of(name, backend))

        def gradient(*point):
            return jax.vjp(function, *point)[1](cotangent)

        functions = {
            "value": lambda: function(*point),
            "jvp": lambda: jax.jvp(function, point, directions)[1],
            "vjp": lambda: gradient(*point),
            "jvp of vjp": lambda: jax.jvp(gradient, point, directions)[1],
        }
        return {order: functions[order]() for order in orders}

    with jax.enable_x64(True):
        run = jax.jit(everything, compiler_options=UNOPTIMIZED if backend == "e3nn" else None)
        return jax.device_get(run(point, directions, cotangent))


@functools.cache
def expected(name: str):
    return computed(name, "e3nn", in_python, ("value", "jvp", "vjp", "jvp of vjp"))


@pytest.mark.parametrize("backend", tiers.slow_unless(["llvm"], *PORTABLE))
@pytest.mark.parametrize(
    ("loop", "orders"),
    [
        (in_scan, ("value", "vjp", "jvp of vjp")),
        (in_fori_loop, ("value", "vjp")),
        (in_while_loop, ("value", "jvp")),
    ],
    ids=["scan", "fori_loop", "while_loop"],
)
@pytest.mark.parametrize("name", tiers.slow_unless(["graph"], *CASES))
def test_loops_are_those_of_python(name, loop, orders, backend):
    """Float64, to 1e-12 of the largest element: three steps of sums of at most 100 products."""
    exact = expected(name)
    # what XLA computes of a Linear is no form
    with only(backend, runs=(name, backend) != ("linear", "xla")):
        found = computed(name, backend, loop, orders)
    for order in orders:
        for a, b in zip(*map(jax.tree.leaves, (found[order], exact[order])), strict=True):
            assert a.shape == b.shape
            assert error(a, b) <= 1e-12 * largest(b), order
