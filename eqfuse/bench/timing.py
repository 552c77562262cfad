"""Time functions side by side, on CPUs and GPUs, and measure what the machine can do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import math
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.bench.record import Spread
from eqfuse.ops.backends.llvm import machine

BATCH_S, MOST_CALLS, BATCH_WARM_UP = 0.01, 64, 3
"""Seconds of a batch of `interleaved_batches`, its most calls, and calls before the first."""
MEMORY_SHARE = 0.7
"""Share of the free memory that the scratch of one call may take."""


def fits(scratch_bytes: int) -> bool:
    """Return whether a step with that scratch memory can run without taking all that is free."""
    return scratch_bytes < MEMORY_SHARE * available_bytes()


def available_bytes() -> int:
    """Return the memory that is free, or that the system can free."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return 1024 * int(kilobytes)


def compiled(function, args) -> tuple[object, float, int]:
    """Return the compiled function, the seconds to compile, and its scratch bytes."""
    start = time.perf_counter()
    result = jax.jit(function).lower(*args).compile()
    machine.finish()  # native kernels, which a thread compiles
    seconds = time.perf_counter() - start
    return result, seconds, result.memory_analysis().temp_size_in_bytes


def interleaved_batches(
    calls: dict[str, Callable], seconds: float, least: int = 5, most: int = 100
) -> dict[str, dict]:
    """Measure the milliseconds of each call in turns, so that a change of clocks meets all alike.

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
        for _ in range(BATCH_WARM_UP - 1):
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
    return dataclasses.replace(Spread.of(numbers), warm_up=BATCH_WARM_UP)


def _seconds(call: Callable, repeats: int) -> float:
    """Return the seconds of one of several calls in a row."""
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


@contextlib.contextmanager
def precision(dtype: str, matmuls: str = "highest"):
    """Return a context without TF32, unless it is asked for, and with float64 as it is."""
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision(matmuls):
        yield


def best_seconds(function, array, turns: int = 7, calls: int = 1) -> float:
    """Return the least seconds of a call, each on the result of the one before, in its place.

    Args:
      turns: how often it is measured, after a call that compiles it.
      calls: in a row, in a turn.
    """
    step = jax.jit(function, donate_argnums=0)
    array = jax.block_until_ready(step(array))
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        for _ in range(calls):
            array = step(array)
        jax.block_until_ready(array)
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def gpu_rates(small: bool = False) -> dict:
    """Measure bytes per second of a copy, and operations per second of a matmul of each dtype.

    Args:
      small: so little work that the numbers mean nothing, for a dry run.
    """
    size = 1 << (20 if small else 29)
    array = jnp.ones(size, jnp.float32)
    often = {"turns": 5, "calls": 10}
    rates = {"copy_bytes_per_s": 2 * array.nbytes / best_seconds(lambda a: a + 1.0, array, **often)}
    del array
    for dtype, n in (("float32", 8192), ("float64", 4096)):  # many GPUs are slow in float64
        n = 256 if small else n
        with precision(dtype):
            matrix = jnp.ones((n, n), dtype) / n
            seconds = best_seconds(lambda a: a @ a, matrix, **often)
        rates[f"{dtype}_per_s"] = 2 * n**3 / seconds
    return rates
