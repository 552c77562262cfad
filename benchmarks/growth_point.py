"""A point of `benchmarks.growth`: compile a step, count its kernels, and run it if it fits.

    python -m benchmarks.growth_point MODEL SWEEP VALUE BACKEND RESULTS.npz [h100] [give-back]

Prints a line of JSON.
"""

import sys
import time

import jax
import numpy as np
from jax.interpreters import partial_eval as pe

from benchmarks import record
from benchmarks.cpu_cases import random_graph, step_on
from benchmarks.cpu_memory import peak
from benchmarks.growth import BASE
from benchmarks.launches import count
from benchmarks.timing import LARGE, fits
from eqfuse.ops.backends.llvm.runtime import machine
from eqfuse.ops.primitives.ahead import _specs
from eqfuse.train.device.hlo import Program
from eqfuse.train.device.memory import keep_freed_memory

SECONDS, FEWEST, MOST = 3.0, 3, 50
WARM_UP = 1


def triton_kernels(problem) -> set:
    """Distinct Triton kernels of the same step on a GPU, none of them compiled."""
    traced = jax.jit(problem.function("triton")).trace(*problem.args).jaxpr.jaxpr
    used, _ = pe.dce_jaxpr(traced, [True] * len(traced.outvars))
    return set(_specs(used))


def step_times(step, args, results: str) -> record.Spread:
    """Return milliseconds of calls, and the result of the last one in a file."""
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < WARM_UP + FEWEST or (
        time.perf_counter() < end and len(times) < WARM_UP + MOST
    ):
        start = time.perf_counter()
        out = jax.block_until_ready(step(*args))
        seconds = time.perf_counter() - start
        times.append(1e3 * seconds)
        time.sleep(seconds / 2 if seconds > LARGE else 0)  # until its scratch memory is free
    np.savez(results, *jax.tree.leaves(out))
    return record.Spread.of(times, WARM_UP)


def measure(model: str, sweep: str, value: str, backend: str, results: str, *flags) -> dict:
    """Return the numbers of the point; with "h100", those of the step compiled for one too."""
    fields = {**BASE[sweep], sweep: int(value)}
    graph = random_graph(fields.pop("edges"))
    problem = step_on(graph, model, **fields)
    wall, cpu = time.perf_counter(), time.process_time()
    step = jax.jit(problem.function(backend)).lower(*problem.args).compile()
    machine.finish()  # native kernels, which a thread compiles
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    calls = [i for i in Program(step.as_text()).entry if i.target.startswith("eqfuse")]
    scratch = step.memory_analysis().temp_size_in_bytes
    # where freed memory is kept, a process takes up to twice the scratch memory
    fit = fits(scratch if "give-back" in flags else 2 * scratch)
    times = step_times(step, problem.args, results) if fit else None
    return {
        "ms": times,
        "compile_s": wall,
        "compile_cpu_s": cpu,
        "scratch_bytes": scratch,
        "resident_mb": peak(),
        "native_kernels": len({call.target for call in calls}),
        "native_calls": len(calls),
        "h100": count(problem.function("triton"), problem.args) if "h100" in flags else None,
        "triton_kernels": len(triton_kernels(problem)) if backend == "llvm" else 0,
    }


if __name__ == "__main__":
    if "give-back" not in sys.argv:
        keep_freed_memory()
    print(record.to_json(measure(*sys.argv[1:])))
