"""Time one computation on several sides in turns, after their results were compared."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.problems import ORDERS, PROBLEMS, Problem, derivative
from eqfuse import ops

OURS, REFERENCE, EXACT = "eqfuse", "e3nn-jax", "e3nn-jax in float32"
BATCH_S, MOST_CALLS, WARM_UP = 0.01, 64, 3
"""Seconds of a batch of calls, its most calls, and calls before the first batch."""
LEAST_TURNS, MOST_TURNS = 5, 100
LENGTH = 200  # characters of a message in a table


class ParityError(RuntimeError):
    """Two sides of a comparison do not compute the same; so neither is timed."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One side of a comparison."""

    function: Callable
    arguments: tuple
    results: Callable = lambda results: results  # arrays that all sides have alike


@contextlib.contextmanager
def precision(dtype: str, matmuls: str = "highest"):
    """Enter a context without TF32, unless it is asked for, and with float64 as it is."""
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision(matmuls):
        yield


def of_op(
    name: str, size: tuple[int, int], dtype: str, backend: str, seconds: float, peers: str = ""
) -> Iterator[dict]:
    """Time one op against e3nn-jax and others: one result for each order of derivative.

    `peers` is a module with more sides, such as `benchmarks.peers`.
    """
    problem = PROBLEMS[name](*size)
    with precision(dtype):
        arguments = random_arrays(problem.arguments("double", dtype))
        integers = jax.tree.map(jnp.asarray, problem.integers)
        for number, order in enumerate(ORDERS, 1):
            given, calls = arguments[:number], {}
            if dtype == "bfloat16":
                wide = jax.tree.map(lambda a: a.astype(jnp.float32), given)
                calls[EXACT] = Call(derivative(problem.function("e3nn"), order), (wide, integers))
            for side, which in ((REFERENCE, "e3nn"), (OURS, backend)):
                function = derivative(problem.function(which), order)
                calls[side] = Call(function, (given, integers))
            if peers:
                module = importlib.import_module(peers)
                calls |= module.calls(problem, dtype, order, given, integers)
            tolerance = _tolerance(problem, order, dtype)
            yield {"order": order, **compared(calls, tolerance, seconds)}


def _tolerance(problem: Problem, order: str, dtype: str) -> float:
    """Return the tolerance of two results, relative to the largest element.

    Rounding errors of a sum of n products are a random walk of n steps; eight times that for the
    difference of two. In bfloat16, of the roundings of results and of what lies between.
    """
    if dtype == "bfloat16":
        return (16 if problem.composed else 4) * float(jnp.finfo(jnp.bfloat16).eps) / 2
    return 8 * float(np.finfo(dtype).eps) * math.sqrt(max(problem.products(order)))


def compared(calls: dict[str, Call | Exception], tolerance: float, seconds: float) -> dict:
    """Compare the results of all sides with those of the first that runs, then time the sides.

    A side that fails or that is wrong has "error" in the place of times, and the others go on; an
    exception in the place of a call says why a side is missing. Where eqfuse is the one that
    differs from e3nn-jax, nothing is timed. In bfloat16 e3nn-jax in float32 comes first, and is not
    timed.
    """
    judge, expected, sides, ready = None, None, {}, {}
    for name, call in calls.items():
        try:
            if isinstance(call, Exception):
                raise call
            start, before = time.perf_counter(), _peak()
            if name == OURS and ops.availability()["triton"][0]:
                with contextlib.suppress(RuntimeError):  # what does not compile says so below
                    ops.compile_ahead(call.function, *call.arguments)
            function = jax.jit(call.function).lower(*call.arguments).compile()
            side = {"compile_s": time.perf_counter() - start}
            run = functools.partial(function, *call.arguments)
            results = call.results(jax.block_until_ready(run()))
            side["peak_bytes"] = _peak() if _peak() > before else None
            if (analysis := function.memory_analysis()) is not None:
                side["scratch_bytes"] = analysis.temp_size_in_bytes
            if judge is None:
                judge, expected = name, results
            elif (judge, name) != (EXACT, REFERENCE):  # the definition rounds as it does
                side["difference"] = largest_difference(expected, results)
                if not side["difference"] <= tolerance:
                    other = name if name == REFERENCE else judge
                    raise ParityError(f"results differ by {side['difference']:.1e} from {other}")
            sides[name], ready[name] = side, run
        except Exception as error:
            sides[name] = {"error": first_line(error)}
            reference_differs = isinstance(error, ParityError) and name == REFERENCE
            if name == OURS or reference_differs:
                return {"error": f"{OURS}: {first_line(error)}"}
    if ready.pop(EXACT, None):
        del sides[EXACT]
    timed = in_turns({OURS: ready.pop(OURS), **ready}, seconds)
    for name, times in timed.items():
        sides[name] |= times
    if judge == OURS:  # it ran first, or alone
        judge = REFERENCE if "difference" in sides.get(REFERENCE, {}) else None
    return {"checked_against": judge, "sides": sides}


def in_turns(calls: dict[str, Callable], seconds: float) -> dict[str, dict]:
    """Measure the milliseconds of each call in turns, so that a change of clocks meets all alike.

    In a turn each function is called so often, without waiting in between, that the calls take 10
    ms: what is timed is the device and not the host. Results have "ms" and, turn by turn, "ratio"
    to the first function, each with its median and quartiles ("low", "high").
    """
    repeats = {}
    for name, call in calls.items():
        for _ in range(WARM_UP - 1):
            jax.block_until_ready(call())
        repeats[name] = max(1, min(MOST_CALLS, math.ceil(BATCH_S / _seconds(call, 1))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for turn in range(MOST_TURNS):
        if turn >= LEAST_TURNS and time.perf_counter() > end:
            break
        for name, call in calls.items():
            times[name].append(_seconds(call, repeats[name]))
    first = np.array(next(iter(times.values())))

    def spread(numbers):
        low, median, high = np.percentile(numbers, (25, 50, 75))
        return {"median": float(median), "low": float(low), "high": float(high)}

    return {
        name: {
            "ms": spread(1e3 * np.array(t)),
            "ratio": spread(np.array(t) / first),
            "calls": repeats[name],
            "turns": len(t),
        }
        for name, t in times.items()
    }


def _seconds(call: Callable, repeats: int) -> float:
    start, result = time.perf_counter(), None
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def random_arrays(shapes):
    """Return normal random numbers of these shapes, made on the device."""
    leaves, tree = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    normal = jax.jit(jax.random.normal, static_argnums=(1, 2))
    arrays = [normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(tree, arrays)


def _peak() -> int:
    """Return most bytes in use on the device since the process began; 0 if JAX has no count."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


@jax.jit
def _differences(expected, actual):
    def one(a, b):
        wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
        a, b = a.astype(wide), b.astype(wide)
        return jnp.max(jnp.abs(a - b), initial=0), jnp.max(jnp.abs(a), initial=0)

    return jax.tree.map(one, expected, actual)


def largest_difference(expected, actual) -> float:
    """Return |actual - expected| by the largest |expected| of each array."""
    shapes = [[a.shape for a in jax.tree.leaves(side)] for side in (expected, actual)]
    if shapes[0] != shapes[1]:
        raise ParityError(f"results are not alike: {shapes[0]} and {shapes[1]}")
    pairs = _differences(jax.tree.leaves(expected), jax.tree.leaves(actual))
    errors = [float(d) / float(s) if float(s) else float(d) for d, s in pairs]
    return max((math.inf if math.isnan(e) else e for e in errors), default=0.0)


def first_line(error: BaseException) -> str:
    """Return the kind of an exception and its first line, or that memory ran out."""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, ParityError):
        return message[:LENGTH]
    if "RESOURCE_EXHAUSTED" in message or "Out of memory" in message:
        return f"out of memory: {message}"[:LENGTH]
    return f"{type(error).__name__}: {message}"[:LENGTH]
