"""Comparison of a product and its derivatives with e3nn-jax, and proof of what computed them."""

import contextlib
import functools
import importlib.util
from unittest import mock

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqfuse import ops
from eqfuse.ops import _reference
from eqfuse.ops._backend import has_gpu
from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.ir.form import Role
from eqfuse.ops.ir.program import Program
from eqfuse.ops.primitives import native as _native
from tests import interpreter
from tests.ops.cases import Case, Random, random_arrays

NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the interpreter is part of triton"
)
TRITON = pytest.param("triton", marks=NEEDS_TRITON)
"""The backend "triton", in the interpreter where there is no GPU."""
PRODUCTS = ("tensor_product", "elementwise_tensor_product")
BACKENDS = ["xla", "llvm", TRITON]
WAYS = {
    **{backend: (backend, None) for backend in ("xla", "llvm", "triton")},
    "llvm always": ("llvm", "always"),
    "triton always": ("triton", "always"),
    "triton blocks": ("triton", None),
}
"""Backends, and what `fused` is; in blocks, products count as large, and rows go three by three."""
UNOPTIMIZED = {"xla_backend_optimization_level": 0}
"""Options of `jax.jit` for what results are compared with, which compiles in half the time so."""


def initial(module, *args, key: int = 1):
    """Return the first parameters of a module, compiled as one computation."""
    return jax.jit(module.init, compiler_options=UNOPTIMIZED)(jax.random.key(key), *args)


def along_random_directions(function, *point, orders=("value", "vjp", "vjp of vjp"), options=None):
    """Return derivatives of a function of trees along directions that are the same for each caller.

    All of them are one compiled computation.

    Args:
      orders: of "value", "vjp", which nothing differentiates, "jvp" and "vjp of vjp".
      options: of the compiler.
    """
    rng = np.random.default_rng(1)

    def like(tree):
        return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype), tree)

    cotangent = like(jax.eval_shape(function, *point))
    directions = like((*point, point))

    @functools.partial(jax.jit, compiler_options=options)
    def everything(point, cotangent, directions):
        def vjp(*arguments):
            return jax.vjp(function, *arguments[:-1])[1](arguments[-1])

        found = {
            "value": lambda: function(*point),
            "vjp": lambda: vjp(*point, cotangent),
            "jvp": lambda: jax.jvp(function, point, directions[:-1])[1],
            "vjp of vjp": lambda: jax.vjp(vjp, *point, cotangent)[1](directions[-1]),
        }
        return {order: found[order]() for order in orders}

    return everything(point, cotangent, directions)


def derivatives(
    function, case: Random, dtype, held_by=np.float32, orders: int = 3
) -> dict[str, np.ndarray]:
    """Value, JVP, VJP and the VJP of the VJP along random directions, by name, in float64.

    All of them are one jitted computation in `dtype`, under x64 where that is float64, on numbers
    that `held_by` can hold. Of 2 `orders`, the JVP of the VJP is not one of them, and of 1, nor is
    its VJP.
    """

    def everything(operands, tangents, cotangent, directions):
        def gradients(*arguments):
            return jax.vjp(function, *arguments[:-1])[1](arguments[-1])

        arguments = (*operands, cotangent)
        value, tangent = jax.jvp(function, operands, tangents)
        if orders == 1:
            return value, tangent, gradients(*arguments), (), ()
        first, second = jax.vjp(gradients, *arguments)
        along = jax.jvp(gradients, arguments, directions)[1] if orders == 3 else ()
        return value, tangent, first, second(directions[:-1]), along

    shapes = case.shapes()
    tangents, [cotangent], directions = (
        random_arrays(of, seed, held_by)
        for seed, of in enumerate((shapes[:-1], shapes[-1:], shapes), 1)
    )
    given = case.operands(0, held_by), tangents, cotangent, directions
    with jax.enable_x64(dtype == np.float64):
        arguments = jax.tree.map(lambda a: jnp.asarray(a, dtype), given)
        options = UNOPTIMIZED if dtype == np.float64 else None
        value, tangent, *gradients = jax.jit(everything, compiler_options=options)(*arguments)
    found = {"value": value, "jvp": tangent}
    for label, arrays in zip(("vjp", "vjp of vjp", "jvp of vjp"), gradients, strict=True):
        names = (*case.names, "cotangent")
        found |= {f"{label}, {n}": a for n, a in zip(names, arrays, strict=False)}
    assert all(a.dtype == dtype for a in found.values())
    return {name: np.asarray(a).astype(np.float64) for name, a in found.items()}


@functools.lru_cache(maxsize=4)
def reference(case: Random, dtype, held_by=np.float32, orders: int = 3) -> dict[str, np.ndarray]:
    """Return what e3nn-jax computes in `dtype`."""
    return derivatives(case.reference, case, dtype, held_by, orders)


def assert_parity(case: Random, dtype, way: str, orders: int = 3):
    """Compare the value and all derivatives with those of e3nn-jax, computed in one of `WAYS`.

    In float64 to `case.tolerance` of the largest element of each array; in less no error is more
    than twice that of e3nn-jax in the same dtype. Where e3nn-jax happens to round less than once,
    the error of the shortest way to compute an element is allowed: roundings of a coefficient, a
    product for each factor of a term, and a sum, by half a unit in the last place of the largest
    element each; for the gradient of an operand that all rows share, which is a sum over
    `case.sums` of them, one more for each.
    """
    (backend, fused), held_by = WAYS[way], np.float32 if dtype.itemsize > 2 else dtype
    expected, e3nn_result = (reference(case, d, held_by, orders) for d in (np.dtype("d"), dtype))
    of_e3nn = case.by_e3nn and contextlib.nullcontext()
    forbidden = PRODUCTS[:1] if case.product_by_e3nn else PRODUCTS  # the first, if a gate is
    given = {"kinds": case.kinds(fused), "forbidden": forbidden}
    watched = of_e3nn or only(backend, runs=case.runs(backend), **given)
    with watched, ops.recorded() as calls:
        function = case.function(backend, *([fused] if fused else []))
        found = derivatives(function, case, dtype, held_by, orders)
    assert {call.backend for call in calls} <= {"e3nn" if case.by_e3nn else backend}
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        assert found[name].shape == exact.shape, name
        if dtype == np.float64:
            allowed = case.tolerance * largest(exact)
        else:
            roundings = 2 + case.factors + case.sums.get(name[-1], 0)
            rounded = roundings * float(jnp.finfo(dtype).eps) / 2 * largest(exact)
            allowed = max(2 * error(e3nn_result[name], exact), rounded)
        assert error(found[name], exact) <= allowed, name


def assert_one_rounding(case: Case, dtype, backend: str):
    """Half-precision results are those of float32, rounded once.

    Every element is within half a unit in its last place of what is exact for these operands, and
    twice e3nn-jax's error in float32 (`assert_parity`'s bound) before the rounding.
    """
    exact = reference(case, np.float64, dtype, orders=2)
    e3nn_float32 = reference(case, np.float32, dtype, orders=2)
    with only(backend):
        found = derivatives(case.function(backend), case, dtype, dtype, orders=2)
    unit, smallest = float(jnp.finfo(dtype).eps) / 2, float(jnp.finfo(dtype).smallest_subnormal)
    for name, values in exact.items():
        four_roundings = 4 * np.finfo(np.float32).eps / 2 * largest(values)
        before = max(2 * error(e3nn_float32[name], values), four_roundings)
        allowed = unit * (abs(values) + before) + before + smallest / 2
        assert (abs(found[name] - values) <= allowed).all(), name


def error(found, exact) -> float:
    """Largest difference, NaN if there is one."""
    return abs(found - exact).max(initial=0.0)


def largest(array) -> float:
    return abs(array).max(initial=0.0)


def assert_close(found, expected, tolerance: float, least: float = 0.0):
    """Assert that trees have the same dtypes, and differ by `tolerance` of the largest element.

    It is that of each array, or `least` if that is more.
    """
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * abs(b).max(initial=least))


@contextlib.contextmanager
def only(
    backend: str,
    runs: bool = True,
    launches: int | None = None,
    forbidden=PRODUCTS,
    kinds: set[str] | None = None,
):
    """Fail if another backend computes anything, or `backend` nothing where something `runs`.

    Inside, the `forbidden` products of e3nn-jax raise. `launches` is how many kernels are
    interpreted, exactly; `kinds` are those of what native kernels compute, see `kind_of`.
    """
    if backend == "llvm" and kinds is not None:
        jax.clear_caches()  # what was traced before is not computed again
    with pytest.MonkeyPatch.context() as patch:

        def replace(module, name, **how) -> mock.Mock:
            patch.setattr(module, name, found := mock.Mock(**how))
            return found

        others = [(e3nn, name) for name in forbidden]
        others += [(_reference, "graph_tensor_product"), (_reference, "symmetric_contraction")]
        for module, name in others:
            error = AssertionError(f"{name} ran in the place of the backend that was asked for")
            replace(module, name, side_effect=error)
        evaluate = xla.evaluate_form

        def evaluated_form(form, *arguments):
            is_product = any(o.role in (Role.LEFT, Role.RIGHT) for o in form.inputs)
            assert backend == "xla" or not is_product, "XLA computes a product; of others, gates"
            return evaluate(form, *arguments)

        evaluated = replace(xla, "evaluate_form", side_effect=evaluated_form)
        native = replace(machine, "register", wraps=machine.register)  # which a lowering asks for
        computed = record_native(patch)
        before = interpreter.interpret_count()
        yield
        launched = interpreter.interpret_count() - before
    if backend == "triton" and not has_gpu():
        assert launched == launches if launches is not None else (launched > 0) == runs
    else:
        assert launched == 0
    assert native.called == (runs and backend == "llvm")
    if backend == "xla":
        assert evaluated.called == runs
    if backend == "llvm" and kinds is not None:
        assert set(map(kind_of, computed)) == kinds


def kind_of(computed) -> str:
    """Return "product" or "matrices" of a form, or "program"."""
    if isinstance(computed, Program):
        return "program"
    return "matrices" if computed.has_matrices else "product"


def record_native(patch: pytest.MonkeyPatch) -> list:
    """Return what is computed by native kernels from now on: each Form and Program."""
    computed = []

    def recorded(name, function):
        def record(what, *arguments):
            results = function(what, *arguments)
            if results is not None and not (name == "run_linear" and is_wide(what)):
                computed.append(what)
            return results

        patch.setattr(_native, name, record)

    for name in ("run_form", "run_linear", "run_rows"):
        recorded(name, getattr(_native, name))
    return computed
