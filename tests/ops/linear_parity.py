"""A fused op with a Linear against e3nn's definition: in every order, and in low precision."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.ops.ir.form import Form
from eqfuse.ops.ir.linear import LinearForm
from tests.ops.linear_cases import Case, Problem
from tests.ops.parity import UNOPTIMIZED, only


def assert_all_orders(case: Case, backend: str, run: Case | None = None):
    """Compare all `orders` with those of e3nn, in float64, to 1e-12.

    The sums have at most a few hundred products, each rounded to 1e-16.

    Args:
      run: the case that is run, where its options are others.
    """
    with jax.enable_x64(True):
        problem = Problem(case)  # its parameters are made by e3nn
        problem.case = case if run is None else run
        with only(backend, kinds={Form, LinearForm}):
            found = orders(problem, backend)
        names = "value", "jvp", "vjp", "vjp of vjp"
        for name, a, b in zip(names, found, orders_of_e3nn(case), strict=True):
            assert worst(a, b) < 1e-12, name


def assert_low_precision(case: Case, backend: str, dtype, run: Case | None = None):
    """Allow errors of twice those of e3nn-jax in the same dtype, or of eight roundings.

    Four of them are those of a product (`parity.assert_parity`), as many of Linear and activation.

    Args:
      run: see `assert_all_orders`.
    """
    low, theirs, exact = of_e3nn(case, dtype)
    low = copy.copy(low)
    low.case = case if run is None else run
    for a, b, c in zip(gradients(low, backend), theirs, exact, strict=True):
        eight_roundings = 8 * float(jnp.finfo(dtype).eps) / 2 * np.abs(c).max(initial=0)
        allowed = max(2 * np.abs(b - c).max(initial=0), eight_roundings)
        assert np.abs(a - c).max(initial=0) <= allowed


def launches_of_each_way(problem: Problem) -> list[int]:
    """Return how many kernels are launched forward, backward to operands, and to parameters too."""
    from eqfuse.ops.backends.triton.interpret import interpret_count

    def launches(function, *args):
        before = interpret_count()
        jax.block_until_ready(function(*args))
        return interpret_count() - before

    def apply(params, arrays):
        return problem.apply("triton-interpret", params, arrays).array

    value, pullback = jax.vjp(lambda a: apply(problem.params, a), problem.arrays)
    _, whole = jax.vjp(apply, problem.params, problem.arrays)
    forward = launches(apply, problem.params, problem.arrays)
    return [forward, launches(pullback, value), launches(whole, value)]


def orders(problem: Problem, backend: str):
    """Value, JVP, VJP and VJP of the VJP, along the same random directions for every backend."""

    def function(params, arrays):
        return problem.apply(backend, params, arrays).array

    point = (problem.params, problem.arrays)
    problem.rng = np.random.default_rng(1)
    cotangent = problem.normal(*jax.eval_shape(function, *point).shape)
    directions = problem.normal_like((*point, point))

    def everything(point, cotangent, directions):
        def vjp(params, arrays, cotangent):
            return jax.vjp(function, params, arrays)[1](cotangent)

        value, tangent = jax.jvp(function, point, directions[:2])
        first, pullback = jax.vjp(vjp, *point, cotangent)
        return value, tangent, first, pullback(directions[2])

    options = UNOPTIMIZED if backend == "e3nn" else None
    return jax.jit(everything, compiler_options=options)(point, cotangent, directions)


@functools.cache
def orders_of_e3nn(case):
    """`orders` of e3nn, in float64."""
    return orders(Problem(case), "e3nn")


def worst(got, expected) -> float:
    """Return the largest error relative to the largest element of its array."""
    errors = [0.0]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.isfinite(a).all()
        errors.append(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300)))
    return max(errors)


def in_dtype(problem: Problem, dtype) -> Problem:
    """Return the same problem in another dtype, on the same numbers as far as it can hold them."""
    other = Problem(problem.case, dtype)
    other.arrays, other.params = jax.tree.map(
        lambda a: jnp.asarray(a, dtype), (problem.arrays, problem.params)
    )
    return other


def gradients(problem: Problem, backend: str):
    """Value and VJP along a fixed cotangent, as float64."""

    def function(params, arrays):
        return problem.apply(backend, params, arrays).array

    point = (problem.params, problem.arrays)
    shape = jax.eval_shape(function, *point).shape
    cotangent = np.random.default_rng(1).integers(-4, 5, shape)

    def everything(point):
        value, pullback = jax.vjp(function, *point)
        return value, pullback(jnp.asarray(cotangent, value.dtype))

    found = jax.jit(everything)(point)
    assert all(a.dtype == problem.dtype for a in jax.tree.leaves(found))
    return [np.asarray(a).astype(np.float64) for a in jax.tree.leaves(found)]


@functools.cache
def of_e3nn(case, dtype):
    """Return a problem in a low precision, and its `gradients` by e3nn in that and in float64."""
    low = in_dtype(Problem(case, np.float32), dtype)
    with jax.enable_x64(True):
        exact = gradients(in_dtype(low, np.float64), "e3nn")
    return low, gradients(low, "e3nn"), exact
