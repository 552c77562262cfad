"""The trace of a few training steps, by the profiler of JAX."""

import contextlib
import statistics
import time
from pathlib import Path

import jax

WARM_UP, STEPS = 3, 5


def profile(step, args: tuple, folder: Path, writes: bool = True) -> str:
    """Trace a few calls of a jitted function; return their time, and where the trace is.

    Args:
      step: a jitted function that keeps its arguments.
      args: of the calls, all the same; what is returned is not used.
      folder: new, for the trace.
      writes: whether this process traces; others only take part.
    """
    compiled = step.lower(*args).compile()
    for _ in range(WARM_UP):
        jax.block_until_ready(compiled(*args))
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        seconds.append(time.perf_counter() - start)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow down what is measured
    traced = jax.profiler.trace(folder, profiler_options=options)
    with traced if writes else contextlib.nullcontext():
        for number in range(STEPS):
            with jax.profiler.StepTraceAnnotation("step", step_num=number):
                jax.block_until_ready(compiled(*args))
    return (
        f"profile    {1e3 * statistics.median(seconds):.2f} ms per step; the trace is in {folder}: "
        "open its .trace.json.gz in ui.perfetto.dev, or see times by layer with\n"
        f"  pip install tensorboard xprof; tensorboard --logdir {folder}"
    )
