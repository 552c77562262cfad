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

from eqfuse.ops import _reference
from eqfuse.ops._backend import has_gpu
from eqfuse.ops.backends import xla
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.linear import is_wide
from eqfuse.ops.ir.form import Role
from eqfuse.ops.ir.program import Program
from eqfuse.ops.primitives import native as _native
from tests import interpreter
from tests.ops.cases import Case, random_arrays

NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the interpreter is part of triton"
)
TRITON = pytest.param("triton", marks=NEEDS_TRITON)
"""The backend "triton", in the interpreter where there is no GPU."""
PRODUCTS = ("tensor_product", "elementwise_tensor_product")
BACKENDS = ["xla", "llvm", TRITON]
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


def arguments_of(case: Case, held_by=np.float32):
    """Return operands, tangents, a cotangent, and directions of all of them but the tangents."""
    shapes = case.shapes()
    tangents, [cotangent], directions = (
        random_arrays(of, seed, held_by)
        for seed, of in enumerate((shapes[:-1], shapes[-1:], shapes), 1)
    )
    return case.operands(0, held_by), tangents, cotangent, directions


def named(case: Case, value, tangent, *gradients) -> dict[str, np.ndarray]:
    """Return results by name, in float64; gradients are those of `derivatives`."""
    found = {"value": value, "jvp": tangent}
    labels = ("vjp", "vjp of vjp", "jvp of vjp")
    for label, arrays in zip(labels, gradients, strict=True):
        names = (*case.names, "cotangent")
        found |= {f"{label}, {n}": a for n, a in zip(names, arrays, strict=False)}
    return {name: np.asarray(a).astype(np.float64) for name, a in found.items()}


def derivatives(
    function, case: Case, dtype, held_by=np.float32, mixed: bool = True
) -> dict[str, np.ndarray]:
    """Value, JVP, VJP and the VJP of the VJP along random directions, in float64.

    All of them are one jitted computation in `dtype`, under x64 where that is float64, on numbers
    that `held_by` can hold; with `mixed`, the JVP of the VJP is one of them.
    """

    def everything(operands, tangents, cotangent, directions):
        def gradients(*arguments):
            return jax.vjp(function, *arguments[:-1])[1](arguments[-1])

        arguments = (*operands, cotangent)
        value, tangent = jax.jvp(function, operands, tangents)
        first, second = jax.vjp(gradients, *arguments)
        along = jax.jvp(gradients, arguments, directions)[1] if mixed else ()
        return value, tangent, first, second(directions[:-1]), along

    with jax.enable_x64(dtype == np.float64):
        arguments = jax.tree.map(lambda a: jnp.asarray(a, dtype), arguments_of(case, held_by))
        options = UNOPTIMIZED if dtype == np.float64 else None
        results = jax.jit(everything, compiler_options=options)(*arguments)
        assert all(a.dtype == dtype for a in jax.tree.leaves(results))
        return named(case, *results)


def derivatives_of_multilinear(
    function, case: Case, held_by=np.float32, mixed: bool = True
) -> dict[str, np.ndarray]:
    """Return `derivatives`, in float64, of a function that is linear in each of its operands.

    Each is a sum of values and VJPs with directions in the place of operands, of which the compiled
    function is one, and small.
    """
    operands, tangents, cotangent, directions = arguments_of(case, held_by)

    @functools.partial(jax.jit, compiler_options=UNOPTIMIZED)
    def compiled(cotangent, *operands):
        value, pullback = jax.vjp(function, *operands)
        return value, pullback(cotangent)

    def both(*arguments):
        return jax.device_get(compiled(*arguments))

    def along(directions):
        """Return a value and gradients for each operand, which its direction replaces."""
        for n, direction in enumerate(directions):
            yield both(cotangent, *operands[:n], direction, *operands[n + 1 :])

    with jax.enable_x64(True):
        value, first = both(cotangent, *operands)
        values, gradients = zip(*along(directions[:-1]), strict=True)
        second = [
            sum((of[n] for k, of in enumerate(gradients) if k != n), 0.0 * first[n])
            for n in range(len(operands))
        ]
        _, last = both(directions[-1], *operands)
        mixing = [a + b for a, b in zip(second, last, strict=True)] if mixed else ()
        tangent = sum(value for value, _ in along(tangents))
        return named(case, value, tangent, first, [*second, sum(values)], mixing)


@functools.lru_cache(maxsize=4)
def reference(case: Case, dtype, held_by=np.float32, mixed: bool = True) -> dict[str, np.ndarray]:
    """Return what e3nn-jax computes in `dtype`."""
    if dtype == np.float64 and isinstance(case, Case):
        return derivatives_of_multilinear(case.reference, case, held_by, mixed)
    return derivatives(case.reference, case, dtype, held_by, mixed)


def assert_parity(case: Case, dtype, backend: str, mixed: bool = True):
    """Compare the value and all derivatives with those of e3nn-jax.

    In float64 to 1e-12 of the largest element of each array; in float32 no error is more than twice
    that of e3nn-jax in float32. Where e3nn-jax happens to round less than once, the error of the
    shortest way to compute an element is allowed: roundings of a coefficient, a product for each
    factor of a term, and a sum, by half a unit in the last place of the largest element each; for
    the gradient of an operand that all rows share, which is a sum over `case.sums` of them, one
    more for each.
    """
    expected, e3nn_result = (reference(case, d, mixed=mixed) for d in (np.float64, dtype))
    with only(backend, runs=runs(case)):
        found = derivatives(case.function(backend), case, dtype, mixed=mixed)
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        assert found[name].shape == exact.shape, name
        if dtype == np.float64:
            allowed = 1e-12 * largest(exact)
        else:
            factors = getattr(case, "factors", len(case.names))
            roundings = 2 + factors + getattr(case, "sums", {}).get(name[-1], 0)
            rounded = roundings * np.finfo(np.float32).eps / 2 * largest(exact)
            allowed = max(2 * error(e3nn_result[name], exact), rounded)
        assert error(found[name], exact) <= allowed, name


def assert_one_rounding(case: Case, dtype, backend: str):
    """Half-precision results are those of float32, rounded once.

    Every element is within half a unit in its last place of what is exact for these operands, and
    twice e3nn-jax's error in float32 (`assert_parity`'s bound) before the rounding.
    """
    exact = reference(case, np.float64, dtype, mixed=False)
    e3nn_float32 = reference(case, np.float32, dtype, mixed=False)
    with only(backend):
        found = derivatives(case.function(backend), case, dtype, dtype, mixed=False)
    unit, smallest = float(jnp.finfo(dtype).eps) / 2, float(jnp.finfo(dtype).smallest_subnormal)
    for name, values in exact.items():
        four_roundings = 4 * np.finfo(np.float32).eps / 2 * largest(values)
        before = max(2 * error(e3nn_float32[name], values), four_roundings)
        allowed = unit * (abs(values) + before) + before + smallest / 2
        assert (abs(found[name] - values) <= allowed).all(), name


def runs(case: Case) -> bool:
    """Return whether there is anything to compute."""
    return all(0 not in shape for shape in case.shapes())


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
            if results is not None and not (name == "linear" and is_wide(what)):
                computed.append(what)
            return results

        patch.setattr(_native, name, record)

    for name in ("run", "linear", "by_rows"):
        recorded(name, getattr(_native, name))
    return computed
