"""Peak memory of a process that compiles and runs a training step on this CPU, for both backends.

    python -m benchmarks.cpu_memory [--only TEXT] [--repeats 3]

Each number is of processes of their own: resident memory after all imports and with the data
("start"), and the most until the step is compiled and until it has run five times. Medians in MB.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

BACKENDS = ("e3nn", "numba")


def peak() -> float:
    """Most resident memory of this process so far, MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def child(title: str, backend: str) -> None:
    """One line of JSON: peaks in MB."""
    import jax

    from benchmarks import cpu_problems
    from benchmarks.timing import compiled

    problem = cpu_problems.training_step(title.lower(), zeros=True)
    start = peak()
    step = compiled(problem.function(backend), problem.args)[0]
    after_compile = peak()
    for _ in range(5):
        jax.block_until_ready(step(*problem.args))
    print(json.dumps([start, after_compile, peak()]))


def measure(title: str, backend: str, repeats: int) -> list[float]:
    """Medians of the three peaks over processes."""
    command = [sys.executable, "-m", "benchmarks.cpu_memory", "--child", title, backend]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    runs = [
        subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        for _ in range(repeats)
    ]
    return [statistics.median(values) for values in zip(*map(json.loads, runs), strict=True)]


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only models whose name holds this")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    from benchmarks.cpu_problems import MODELS

    print("| training step | backend | start, MB | compiled, MB | after five steps, MB |")
    print("|---|---|---|---|---|")
    for title in MODELS:
        for backend in BACKENDS if options.only in title else ():
            numbers = " | ".join(f"{n:.0f}" for n in measure(title, backend, options.repeats))
            print(f"| {title} | {backend} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
