"""Time functions on one device, in turns, and measure what the device can do."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.parity import precision
from benchmarks.record import Spread

BATCH_S, MOST_CALLS = 0.01, 64
WARM_UP = 3


def interleaved(
    calls: dict[str, Callable], seconds: float, least: int = 5, most: int = 100
) -> dict[str, dict]:
    """Milliseconds of each call, measured in turns, so that a change of clocks meets all alike.

    In a turn each function is called so often, without waiting in between, that the calls take
    10 ms: what is timed is the device and not the host, as in a loop of training. Three calls
    before the first turn are warm-up.

    Args:
      calls: functions without arguments; the first is the one that the others are compared with.
      seconds, least, most: how long to go on, and how many turns at least and at most.
    Returns:
      For each name "ms" and, turn by turn, "ratio" to the first, as `Spread`s, and "calls" in a
      turn.
    """
    repeats = {}
    for name, call in calls.items():
        for _ in range(WARM_UP - 1):
            jax.block_until_ready(call())
        once = _seconds(call, 1)
        repeats[name] = max(1, min(MOST_CALLS, math.ceil(BATCH_S / once)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= least and time.perf_counter() > end:
            break
        for name, call in calls.items():
            times[name].append(_seconds(call, repeats[name]))
    first = np.array(next(iter(times.values())))
    return {
        name: {
            "ms": _spread(1e3 * np.array(t)),
            "ratio": _spread(np.array(t) / first),
            "calls": repeats[name],
        }
        for name, t in times.items()
    }


def _spread(numbers) -> Spread:
    return dataclasses.replace(Spread.of(numbers), warm_up=WARM_UP)


def _seconds(call: Callable, repeats: int) -> float:
    """Of one of several calls in a row."""
    start = time.perf_counter()
    result = None
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def compile_all(functions: dict, dtype: str) -> dict:
    """Compile functions at the same time, in threads.

    Args:
      functions: key -> (function, arguments).
      dtype: for `precision`.
    Returns:
      key -> (compiled, seconds that it took beside the others), or the exception.
    """

    def compiled(item):
        function, arguments = item
        try:
            with precision(dtype):  # contexts of JAX are those of a thread
                start = time.perf_counter()
                result = jax.jit(function).lower(*arguments).compile()
                return result, time.perf_counter() - start
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(max(1, len(functions))) as pool:
        return dict(zip(functions, pool.map(compiled, functions.values()), strict=True))


def machine(small: bool = False) -> dict:
    """Bytes per second of a copy, operations per second of matmuls of each dtype.

    Args:
      small: so little work that the numbers mean nothing, for a dry run.
    """
    size = 1 << (20 if small else 29)
    array = jnp.ones(size, jnp.float32)
    found = {"copy_bytes_per_s": 2 * array.nbytes / _best(lambda a: a + 1.0, array)}
    del array
    for dtype, n in (("float32", 8192), ("float64", 4096)):  # many GPUs are slow in float64
        n = 256 if small else n
        with precision(dtype):
            matrix = jnp.ones((n, n), dtype) / n
            found[f"{dtype}_per_s"] = 2 * n**3 / _best(lambda a: a @ a, matrix)
    return found


def _best(function, array) -> float:
    """The least seconds of a call, in its own place, of five batches of calls in a row."""
    step = jax.jit(function, donate_argnums=0)
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(10):
            array = step(array)
        jax.block_until_ready(array)
        times.append((time.perf_counter() - start) / 10)
    return min(times[1:])
