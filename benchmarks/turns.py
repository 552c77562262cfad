"""Time functions in turns of single calls, as in a loop, and what a CPU can do."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from eqfuse.bench.record import Spread
from eqfuse.bench.timing import best_seconds

WARM_UP, LEAST = 2, 3
CALLS = 3
"""Calls of a turn, of which the last is timed: from the third on they take the same time."""
LARGE = 1.0
"""Seconds of a call that is timed without others before it."""


def interleaved(functions: dict, args, seconds: float = 6.0, most: int = 200) -> dict:
    """Run the functions in turn, so that a change of load meets all of them alike.

    XLA gives memory back to the system after the results are there, for up to a fifth of the time
    of a call, and threads and memory that another function has used are cold. So that each
    function meets what it has left itself, as in a loop, it is called `CALLS` times after a pause,
    and the last call is timed; for those that take more than `LARGE`, it is the only one.

    Args:
      functions: compiled, by name; the first is the one that others are compared with.
      args: their arguments.
      seconds, most: how long to go on, and how many turns at most; three at least.
    Returns:
      {"ms": {name: Spread}, "ratio": {name: Spread of first / name, turn by turn}}.
    """
    times = {
        name: [waited(function, args)[1] for _ in range(WARM_UP)]
        for name, function in functions.items()
    }
    end = time.perf_counter() + seconds
    for turn in range(most):
        if turn >= LEAST and time.perf_counter() > end:
            break
        for name, function in functions.items():
            for _ in range(CALLS - 1 if times[name][-1] < LARGE else 0):
                jax.block_until_ready(function(*args))
            times[name].append(waited(function, args)[1])
    first = np.array(next(iter(times.values())))
    return {
        "ms": {name: Spread.of(t, WARM_UP).scaled(1e3) for name, t in times.items()},
        "ratio": {name: Spread.of(first / np.array(t), WARM_UP) for name, t in times.items()},
    }


def waited(function, args) -> tuple[object, float]:
    """Return the results of a call and its seconds, once its scratch memory must be free again."""
    start = time.perf_counter()
    results = jax.block_until_ready(function(*args))
    seconds = time.perf_counter() - start
    time.sleep(seconds / 2)
    return results, seconds


def memory_bandwidth() -> float:
    """Return bytes per second, read and written, of adding one to 256 MB in place."""
    array = jnp.ones(1 << 26, jnp.float32)
    return 2 * array.nbytes / best_seconds(lambda a: a + 1.0, array)


def float32_rate() -> float:
    """Return operations per second of a 2048 x 2048 matmul, XLA's best rate."""
    n = 2048
    return 2 * n**3 / best_seconds(lambda a: a @ a, jnp.ones((n, n), jnp.float32) / n)
