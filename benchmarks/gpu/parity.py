"""Check an op and its derivatives against e3nn-jax in float64 on the CPU."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.problems import ORDERS, PROBLEMS, Problem, derivative
from benchmarks.gpu.times import ParityError, precision
from eqfuse import ops

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def everything(function):
    """Return value, gradients and second order as one function of the arguments of the last."""

    def apply(arguments, integers):
        orders = enumerate(ORDERS, 1)
        return tuple(derivative(function, o)(arguments[:n], integers) for n, o in orders)

    return apply


def numbers(problem: Problem, held_by) -> tuple:
    """Return random arguments in float64 that `held_by` can hold."""
    rng = np.random.default_rng(0)
    shapes = problem.arguments("double", "float32")
    return jax.tree.map(
        lambda s: rng.normal(size=s.shape).astype(held_by).astype(np.float64), shapes
    )


@functools.cache
def _reference(name: str, size: tuple[int, int], dtype: str):
    """Return e3nn-jax's results of a problem on the CPU, as a function of `numbers`."""
    problem, cpu = PROBLEMS[name](*size), jax.devices("cpu")[0]
    function = jax.jit(everything(problem.function("e3nn")), compiler_options=QUICK)

    def evaluate(arguments):
        with precision(dtype):
            arrays = jax.tree.map(lambda a: jax.device_put(a.astype(dtype), cpu), arguments)
            return _wide(function(arrays, jax.device_put(problem.integers, cpu)))

    return evaluate


def _found(problem: Problem, dtype: str, backend: str, tf32x3: bool, arguments):
    """Return eqfuse's results, and for each order whether a second run is identical."""
    with precision(dtype, ops.TF32X3 if tf32x3 else "highest"):
        arrays = jax.tree.map(lambda a: jnp.asarray(a, dtype), arguments)
        function = everything(problem.function(backend))
        if backend == "triton":
            with contextlib.suppress(RuntimeError):  # what does not compile says so below
                ops.compile_ahead(function, arrays, problem.integers)
        function = jax.jit(function)
        found, again = (function(arrays, problem.integers) for _ in range(2))
        kinds = {a.dtype.name for a in jax.tree.leaves(found)}
        if kinds != {dtype}:
            raise ParityError(f"results are {', '.join(sorted(kinds))}, operands {dtype}")
        return _wide(found), [_bits(a) == _bits(b) for a, b in zip(found, again, strict=True)]


def _bits(results) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(results)]


def _wide(results):
    return jax.tree.map(lambda a: np.asarray(a).astype(np.float64), results)


def check(
    name: str, dtype: str, backend: str, size: tuple[int, int], tf32x3: bool = False
) -> Iterator[dict]:
    """Compare a problem and two orders of derivative with e3nn-jax; one result.

    float64: to 1e-12 of the largest element of each array; 1e-11 where kernels follow each other,
    whose activations are approximated in other ways. float32: no error is more than twice that of
    e3nn-jax in float32 or, for a sum of n products, than sqrt(n) roundings of the largest element
    (Higham and Mary 2019: rounding errors of a sum are a random walk; e3nn-jax on a CPU sums in
    pairs). bfloat16: the same, for operands in bfloat16, and one rounding of the result; or, where
    an array in bfloat16 lies between the kernels of an op, twice the error of e3nn-jax in bfloat16
    and four roundings of the largest element. Products of `tf32x3` leave out the smallest of four
    parts of a product, so that their rounding is four times that of float32.
    """
    problem = PROBLEMS[name](*size)
    arguments = numbers(problem, jnp.bfloat16 if dtype == "bfloat16" else np.float32)
    rounded_by = "float32" if dtype == "bfloat16" and not problem.composed else dtype
    sides = [
        _reference(name, size, "float64"),
        _reference(name, size, rounded_by),
        functools.partial(_found, problem, dtype, backend, tf32x3),
    ]
    with concurrent.futures.ThreadPoolExecutor(len(sides)) as pool:  # they take long to compile
        exact, rounded, (found, repeatable) = pool.map(lambda side: side(arguments), sides)
    result = {}
    for order, same, *sides in zip(ORDERS, repeatable, exact, rounded, found, strict=True):
        worst = {"share": 0.0, "error": 0.0}
        for e, r, f, n in zip(*map(jax.tree.leaves, sides), problem.products(order), strict=True):
            roundings = (4 if tf32x3 else 1) * math.sqrt(n)
            allowed = _allowed(dtype, problem.composed, roundings, e, r)
            one = _error(e, f, allowed)
            if not one["share"] <= 1:
                raise ParityError(
                    f"{order} in {dtype} differs by {one['error']:.1e} of the largest element, "
                    f"{one['share']:.1f} times what is allowed"
                )
            worst = {key: max(value, one[key]) for key, value in worst.items()}
        result[order] = worst | {"repeatable": same}
    yield {"orders": result}


def _allowed(dtype: str, composed: bool, roundings: float, exact, rounded):
    """Return the tolerance of each element; `rounded` is e3nn-jax's result in the dtype."""
    largest = np.abs(exact).max(initial=0.0)
    if dtype == "float64":
        return np.full_like(exact, (1e-11 if composed else 1e-12) * largest)
    twice = 2 * np.abs(rounded - exact).max(initial=0.0)
    unit = float(jnp.finfo(jnp.bfloat16).eps) / 2
    if composed and dtype == "bfloat16":
        return np.full_like(exact, max(twice, 4 * unit * largest))
    allowed = max(twice, roundings * np.finfo(np.float32).eps / 2 * largest)
    if dtype == "bfloat16":
        return unit * (np.abs(exact) + allowed) + allowed
    return np.full_like(exact, allowed)


def _error(exact, actual, allowed) -> dict:
    tiny = np.finfo(np.float64).tiny
    difference = np.abs(actual - exact)
    share = np.max(difference / np.maximum(allowed, tiny), initial=0.0)
    error = np.max(difference, initial=0.0) / max(np.abs(exact).max(initial=0.0), tiny)
    return {"share": float(share), "error": float(error)}
