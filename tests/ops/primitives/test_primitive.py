"""Products under the transformations of JAX: each equals e3nn-jax under the same one."""

import dataclasses
import functools
import types

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from tests.ops import tiers
from tests.ops.cases import INTERPOLATE, SMALL, Case, Contraction, Graph, random_arrays
from tests.ops.layers import LAYERS
from tests.ops.parity import BACKENDS, UNOPTIMIZED, assert_close, only

pytestmark = pytest.mark.usefixtures("x64")

TINY = Case("graph_tensor_product", "2x0e+2x1o", "0e+1o", keep="0e+1o")
ROWS = Case("tensor_product", "3x0e+2x1o", "0e+1o", keep="0e+1o", shape_x=(2,), shape_y=(2,))
CASES = {
    "graph": TINY,
    "rows": ROWS,
    "graph-one-w": dataclasses.replace(TINY, shared="w"),
    "rows-one-y": dataclasses.replace(ROWS, shape_y=(1,)),
}


OTHER = {
    "contraction": Contraction("3x0e+3x1o", "3x0e", 2),
    "interpolate": INTERPOLATE["two-tables"],
    "layer of rows": ("rows-gate-skip", "always"),
    "layer": ("graph-gate-skip", None),
}
"""Also layers, each a product and a Linear as one op, and what `fused` is."""


def case_of(name: str):
    """Return a case; that of a layer is one of its operands, and its parameters are given."""
    case = (CASES | OTHER)[name]
    if not isinstance(case, tuple):
        return case
    case, fused = LAYERS[case[0]], case[1]
    count, operands = case.num_parameters, case.operands()

    def function(backend):
        own = None if backend in ("xla", "e3nn") else fused
        return functools.partial(case.function(backend, own), *operands[:count])

    return types.SimpleNamespace(
        names=case.names[count:],
        operands=lambda: operands[count:],
        shapes=lambda: case.shapes()[count:],
        function=function,
        reference=function("e3nn"),
    )


all_backends = pytest.mark.parametrize("backend", BACKENDS)
kernels_by_default = pytest.mark.parametrize("backend", tiers.KERNELS)


def assert_as_e3nn(transform, case: Case, backend: str, *arguments, launches=None):
    """`transform(product)(*arguments)` by a backend, and by e3nn-jax."""
    expected = jax.jit(transform(case.reference), compiler_options=UNOPTIMIZED)(*arguments)
    with only(backend, launches=launches):
        found = jax.block_until_ready(jax.jit(transform(case.function(backend)))(*arguments))
    assert_close(found, expected, 1e-12)


def curved(product):
    """Return a function of the operands with all derivatives, and one number."""

    def function(*operands):
        out = product(*operands)
        return jnp.sum(jnp.sin(out) * jnp.arange(1.0, out.size + 1).reshape(out.shape))

    return function


def third_derivative(product, tangents, _):
    gradient = jax.grad(curved(product), argnums=tuple(range(len(tangents))))
    return lambda *a: jax.vjp(lambda *a: jax.jvp(gradient, a, tangents)[1], *a)[1](tangents)


def reverse_over_forward(product, tangents, _):
    def total(*operands):
        return jnp.sum(jnp.sin(jax.jvp(product, operands, tangents)[1]))

    return jax.grad(total, argnums=tuple(range(len(tangents))))


def linearize_and_transpose(product, _, cotangent):
    """Transpose what is linear in x alone, which JAX may without differentiating it."""

    def function(x, *rest):
        out, linear = jax.linearize(lambda x: product(x, *rest), x)
        return out, linear(2 * x), jax.linear_transpose(linear, x)(cotangent)

    return function


def of_scan(product, tangents, cotangent):
    """Reverse over forward mode of it, which goes through a loop whose steps are known."""

    def looped(*operands):
        def step(total, turn):
            return total + product(*(turn * a for a in operands)), None

        return jax.lax.scan(step, 0 * cotangent, jnp.arange(1.0, 4))[0]

    return reverse_over_forward(looped, tangents, cotangent)


def of_while_loop(product, tangents, cotangent):
    """Forward mode of it, which alone goes through a loop whose steps are not known."""

    def looped(*operands):
        def step(state):
            turn, total = state
            return 1.5 * turn, total + product(*(turn * a for a in operands))

        return jax.lax.while_loop(lambda state: state[0] < 3, step, (1.0, 0 * cotangent))[1]

    return lambda *a: jax.jvp(looped, a, tangents)


TRANSFORMS = {
    "hessian": lambda f, *_: jax.hessian(curved(f), argnums=(1,)),
    "third derivative": third_derivative,
    "reverse over forward": reverse_over_forward,
    "checkpoint": lambda f, tangents, _: jax.grad(
        curved(jax.checkpoint(f)), tuple(range(len(tangents)))
    ),
    "linearize and transpose": linearize_and_transpose,
    "scan": of_scan,
    "while_loop": of_while_loop,
}


@kernels_by_default
@pytest.mark.parametrize("name", tiers.slow_unless(["graph"], *CASES, *OTHER))
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transformations(transform, name, backend):
    """Rules of the primitive, which are one for rows and graphs."""
    case = case_of(name)
    *tangents, cotangent = random_arrays(case.shapes(), 1)

    def transformed(product):
        return TRANSFORMS[transform](product, tuple(tangents), cotangent)

    assert_as_e3nn(transformed, case, backend, *case.operands())


VMAPPED = {
    "x": (0, None, None, None),
    "y": (None, 0, None, None),
    "all": (0, 0, 0, 0),
    "other axes": (1, -1, 2, 0),
}


@kernels_by_default
@pytest.mark.parametrize(
    "name", tiers.slow_unless(["graph", "rows", "interpolate"], *CASES, *OTHER)
)
@pytest.mark.parametrize("batched", tiers.slow_unless(["x", "all"], *VMAPPED))
def test_vmap(name, backend, batched):
    """A batch is one launch of a product, whichever operands have it."""
    case, launches = case_of(name), 1 if name in CASES else None
    axes = VMAPPED[batched][: len(case.names)]
    operands = [
        a if axis is None else np.stack([a, 2 * a, -a], axis)
        for a, axis in zip(case.operands(), axes, strict=True)
    ]
    assert_as_e3nn(lambda f: jax.vmap(f, axes, 1), case, backend, *operands, launches=launches)


@kernels_by_default
@pytest.mark.parametrize("batched", [0, 1])
def test_vmap_of_a_tangent_of_one_row(batched, backend):
    """What is not batched is one row for all members, but not all factors of a product are."""
    case = dataclasses.replace(ROWS, shape_x=(1,), shape_y=(1,))
    operands, tangents = case.operands(), [*random_arrays(case.shapes()[:-1], 1)]
    tangents[batched] = np.stack([tangents[batched], 2 * tangents[batched]])
    axes = (0, None) if batched == 0 else (None, 0)

    def transform(product):
        return lambda *tangents: jax.vmap(jax.linearize(product, *operands)[1], axes)(*tangents)

    assert_as_e3nn(transform, case, backend, *tangents)


@kernels_by_default
@pytest.mark.parametrize("name", tiers.slow_unless(["graph"], *CASES))
def test_vmap_of_vmap_of_gradients(name, backend):
    case = CASES[name]
    operands = case.operands()
    x = np.stack([operands[0], 2 * operands[0]])
    y = np.stack([operands[1], -operands[1], 3 * operands[1]])

    def transform(product):
        gradient = jax.grad(curved(product), argnums=(0, 1))
        outer = [None] * (len(operands) - 1)
        return jax.vmap(jax.vmap(gradient, (None, 0, *outer[1:])), (0, *outer))

    assert_as_e3nn(transform, case, backend, x, y, *operands[2:])


@all_backends
def test_vmap_over_graphs(backend):
    """Each graph of a batch has its own edges, ordered inside the computation."""
    other = Graph(SMALL.num_nodes, ((3, 3), (1, 0), (2, 0), (0, 2), (4, 4), (1, 0)))
    ends = [np.stack([getattr(g, n) for g in (SMALL, other)]) for n in ("senders", "receivers")]
    operands = [np.stack([a, 2 * a]) for a in TINY.operands()]

    def one(senders, receivers, x, y, w):
        edges = ops.Edges.from_arrays(senders, receivers, SMALL.num_nodes)
        x, y = e3nn.IrrepsArray(TINY.irreps_x, x), e3nn.IrrepsArray(TINY.irreps_y, y)
        return ops.graph_tensor_product(
            x, y, w, edges, filter_ir_out="0e+1o", backend=backend
        ).array

    expected = [
        dataclasses.replace(TINY, graph=g).reference(*(a[n] for a in operands))
        for n, g in enumerate((SMALL, other))
    ]
    with only(backend, launches=1):
        found = jax.jit(jax.vmap(one))(*ends, *operands)
    assert_close(found, jnp.stack(expected), 1e-12)


@kernels_by_default
def test_vmap_over_nothing_or_of_nothing(backend):
    x, y, w = TINY.operands()
    empty = np.zeros((0, *x.shape))
    out = jax.vmap(TINY.function(backend), (0, None, None))(empty, y, w)
    assert out.shape == (0, *TINY.shapes()[-1])
    nothing_left = dataclasses.replace(TINY, keep="4e", weighted=False)
    out = jax.vmap(nothing_left.function(backend), (0, None))(np.stack([x, x]), y)
    assert out.shape == (2, SMALL.num_nodes, 0)


@kernels_by_default
def test_inputs_without_a_path_have_zero_gradients(backend):
    """The 2e of x and the 1o of y are filtered out: exactly zero, and not the interpreter's NaN."""
    case = Case("graph_tensor_product", "4x0e+3x2e", "0e+1o", keep="0e")
    [cotangent] = random_arrays(case.shapes()[-1:], 2)
    with only(backend):
        dx, dy, dw = jax.jit(lambda *a: jax.vjp(case.function(backend), *a)[1](cotangent))(
            *case.operands()
        )
    assert (dx[:, 4:] == 0).all()
    assert (dy[:, 1:] == 0).all()
    for used in (dx[:2, :4], dy[:, :1], dw):
        assert (used != 0).all()


@kernels_by_default
@pytest.mark.parametrize("name", tiers.slow_unless(["graph", "layer"], *CASES, *OTHER))
def test_enable_x64_within_a_function(name, backend):
    """It has ended when JAX lowers what the function computes."""
    case = case_of(name)
    operands = case.operands()

    @jax.jit
    def function():
        with jax.enable_x64(True):
            return case.function(backend)(*operands)

    with only(backend), jax.enable_x64(False):
        found = function()
    assert_close(found, case.reference(*operands), 1e-12)
