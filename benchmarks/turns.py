"""Compile functions, time them in turns of single calls, as in a loop, and what a CPU can do."""

import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import Spread

WARM_UP, LEAST = 2, 3
CALLS = 3
"""Calls of a turn, of which the last is timed: from the third on they take the same time."""
LARGE = 1.0
"""Seconds of a call that is timed without others before it."""
MEMORY_SHARE = 0.7
"""Share of the free memory that the scratch of one call may take."""


def interleaved(
    functions: dict, args, seconds: float = 6.0, most: int = 200, clock=time.perf_counter
) -> dict:
    """Run the functions in turn, so that a change of load meets all of them alike.

    XLA gives memory back to the system after the results are there, for up to a fifth of the time
    of a call, and threads and memory that another function has used are cold. So that each
    function meets what it has left itself, as in a loop, it is called `CALLS` times after a pause,
    and the last call is timed; for those that take more than `LARGE`, it is the only one.

    Args:
      functions: compiled, by name; the first is the one that others are compared with.
      args: their arguments.
      seconds, most: how long to go on, and how many turns at most; three at least.
      clock: what times a call; `time.process_time`, of all threads, where others use the machine.
    Returns:
      {"ms": {name: Spread}, "ratio": {name: Spread of first / name, turn by turn}}.
    """
    times = {
        name: [waited(function, args, clock)[1] for _ in range(WARM_UP)]
        for name, function in functions.items()
    }
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= LEAST and time.perf_counter() > end:
            break
        for name, function in functions.items():
            for _ in range(CALLS - 1 if times[name][-1] < LARGE else 0):
                jax.block_until_ready(function(*args))
            times[name].append(waited(function, args, clock)[1])
    first = np.array(next(iter(times.values())))
    return {
        "ms": {name: Spread.of(1e3 * np.array(t), WARM_UP) for name, t in times.items()},
        "ratio": {name: Spread.of(first / np.array(t), WARM_UP) for name, t in times.items()},
    }


def waited(function, args, clock=time.perf_counter) -> tuple[object, float]:
    """Return the results of a call and its seconds, once its scratch memory must be free again."""
    start = clock()
    results = jax.block_until_ready(function(*args))
    seconds = clock() - start
    time.sleep(seconds / 2)
    return results, seconds


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


def memory_bandwidth() -> float:
    """Return bytes per second, read and written, of adding one to 256 MB in place."""
    array = jnp.ones(1 << 26, jnp.float32)
    return 2 * array.nbytes / best_seconds(lambda a: a + 1.0, array)


def float32_rate() -> float:
    """Return operations per second of a 2048 x 2048 matmul, XLA's best rate."""
    n = 2048
    return 2 * n**3 / best_seconds(lambda a: a @ a, jnp.ones((n, n), jnp.float32) / n)


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
    seconds = time.perf_counter() - start
    return result, seconds, result.memory_analysis().temp_size_in_bytes
