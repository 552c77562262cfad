"""What is computed, and what is not: forms and compilations. Launches: test_what_runs.py."""

import functools

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval as pe

from eqfuse import ops
from eqfuse.ops.ir.form import Role
from eqfuse.ops.primitives import forms as _forms
from tests.ops.cases import Case, random_arrays

TINY = Case("graph_tensor_product", "2x0e+2x1o", "0e+1o", keep="0e+1o")


def forms(function, *arguments):
    """Return the forms in a function's computation, after JAX has left out what nobody reads."""
    traced = jax.jit(function).trace(*arguments).jaxpr.jaxpr
    used, _ = pe.dce_jaxpr(traced, [True] * len(traced.outvars))
    return [e.params["form"] for e in used.eqns if e.primitive is _forms.form_p]


def names(operands):
    return [o.name for o in operands]


def test_gradients_that_nobody_wants_cost_nothing():
    """Neither computed nor their inputs read: asked for one by one, or left unused later."""
    function, operands = TINY.function("xla"), TINY.operands()
    [cotangent] = random_arrays(TINY.shapes()[-1:], 2)

    def pullback(*a):
        return jax.vjp(function, *a)[1](cotangent)

    [backward] = forms(pullback, *operands)
    assert names(backward.inputs) == ["x", "y", "w", "dout"]
    assert names(backward.outputs) == ["dx", "dy", "dw"]
    for n, (wanted, read) in enumerate([("dx", "yw"), ("dy", "xw"), ("dw", "xy")]):
        for only_one in (
            lambda *a, n=n: pullback(*a)[n],
            lambda *a, n=n: jax.vjp(functools.partial(_with, function, n, a), a[n])[1](cotangent),
        ):
            [form] = forms(only_one, *operands)
            assert names(form.outputs) == [wanted]
            assert names(form.inputs) == [*read, "dout"]


def test_gradients_that_are_zero_are_not_computed():
    """The gradient of x does not depend on x: its backward pass writes the others alone."""
    function, operands = TINY.function("xla"), TINY.operands()
    [cotangent] = random_arrays(TINY.shapes()[-1:], 2)

    def of_x(*a):
        return jax.vjp(function, *a[:-1])[1](a[-1])[0]

    def second(*a):
        return jax.vjp(of_x, *a)[1](operands[0])

    [form] = forms(second, *operands, cotangent)
    assert [o.role for o in form.outputs] == [Role.RIGHT, Role.OTHER, Role.OUTPUT]


def _with(function, n, operands, value):
    """Return the function of operand `n` alone."""
    return function(*operands[:n], value, *operands[n + 1 :])


def test_all_tangents_are_one_call():
    operands, tangents = TINY.operands(), random_arrays(TINY.shapes()[:-1], 1)
    function = TINY.function("xla")
    [form] = forms(lambda *a: jax.jvp(function, a, tangents)[1], *operands)
    assert names(form.inputs) == ["x", "y", "w", "t_x", "t_y", "t_w"]
    assert names(form.outputs) == ["out"]


def test_outside_jit_a_form_is_compiled_once():
    function, operands = TINY.function("xla"), TINY.operands()
    first = function(*operands)
    before = _forms.form_p.impl.__wrapped__._cache_size()
    again = function(*(2 * a for a in operands))
    assert _forms.form_p.impl.__wrapped__._cache_size() == before
    np.testing.assert_allclose(again, 8 * np.asarray(first), rtol=1e-5)


def test_the_matmuls_of_xla():
    """One channel has none; and no product is written to be summed over channels."""

    def text(function, *irreps):
        arrays = [jax.ShapeDtypeStruct((5, e3nn.Irreps(i).dim), "float32") for i in irreps]
        return jax.jit(function).lower(*arrays).as_text()

    def of(irreps_x, irreps_y):
        def product(x, y):
            x, y = e3nn.IrrepsArray(irreps_x, x), e3nn.IrrepsArray(irreps_y, y)
            return ops.tensor_product(x, y, backend="xla").array

        return product

    assert "dot_general" not in text(of("0e+1o", "0e+1o"), "0e+1o", "0e+1o")
    assert "dot_general" in text(of("2x0e+2x1o", "0e+1o"), "2x0e+2x1o", "0e+1o")
    gradient = jax.grad(lambda y, x: jnp.sum(of("7x0e", "0e")(x, y) ** 2))
    assert "tensor<7xf32>" not in text(gradient, "0e", "7x0e")  # ones, to sum products with


@pytest.mark.parametrize("backend", ["xla", "triton"])
def test_many_channels_on_both_sides_are_repeated_without_a_gather(backend):
    """Its gradient would be a scatter, ten times slower than the matmul with ones."""

    def product(x, y):
        operands = e3nn.IrrepsArray("9x0e+9x1o", x), e3nn.IrrepsArray("9x0e+10x1o", y)
        return ops.tensor_product(*operands, backend=backend).array

    x, y = jnp.ones((2, 36)), jnp.ones((2, 39))
    text = str(jax.make_jaxpr(lambda x, y: jax.vjp(product, x, y)[1](product(x, y)))(x, y))
    assert "eqfuse_form" in text
    assert "gather" not in text
    assert "scatter" not in text
