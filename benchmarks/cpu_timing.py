"""Time our kernels on this CPU against e3nn-jax, both jitted, in turns in one process.

The commands of `benchmarks.products` and `benchmarks.steps`:

    python -m COMMAND [--threads 2 4] [--only TEXT] [--seconds 6] [--keep-memory] [--json FILE]

Each number of threads has a process of its own, bound to that many processors. The results of each
case are compared first (float32, 1e-4 of the largest element), and a case whose results differ is
not timed. Where one side does not fit in memory, the other is timed alone. "ideal" is the time that
the bytes and operations of the form take at the bandwidth and the rate measured on the same
processors. Scratch memory is what XLA allocates for intermediates. With --keep-memory both sides
run as `train.py` does, with memory that is not given back to the system between calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from benchmarks import record
from benchmarks.record import ParityError, parity
from eqfuse.runs.process import keep_freed_memory


def measure(problem, seconds: float) -> dict:
    """Return times, ratios, compile times and scratch memory of one problem on both backends.

    A backend whose scratch memory does not fit in what is free is compiled, and not run.
    """
    from benchmarks.turns import compiled, fits, interleaved, waited

    functions, compile_s, scratch = {}, {}, {}
    for backend in ("e3nn", "llvm"):
        functions[backend], compile_s[backend], scratch[backend] = compiled(
            problem.function(backend), problem.args
        )
    functions = {name: f for name, f in functions.items() if fits(scratch[name])}
    result = {"compile_s": compile_s, "scratch": scratch, "parity": None}
    if not functions:
        return {**result, "ms": {}, "ratio": {}}
    if len(functions) == 2:
        try:
            sides = [waited(f, problem.args)[0] for f in functions.values()]
            result["parity"] = parity(*sides, tolerance=1e-4)
        except ParityError as error:
            return {"error": str(error)}
    return {**result, **interleaved(functions, problem.args, seconds)}


def child(cases: dict, threads: int, only: str, seconds: float, keep_memory: bool) -> None:
    """Measure on `threads` processors; print one line of JSON for each case."""
    if keep_memory and not keep_freed_memory():
        sys.exit("--keep-memory needs glibc")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    from benchmarks.turns import float32_rate, memory_bandwidth

    bandwidth, rate = memory_bandwidth(), float32_rate()
    print(json.dumps({"threads": threads, "bandwidth": bandwidth, "rate": rate}), flush=True)
    for name, make in cases.items():
        if only not in name:
            continue
        problem = make()
        ideal = 1e3 * max(problem.bytes / bandwidth, problem.operations / rate)
        result = {"threads": threads, "case": name, "ideal_ms": ideal}
        result |= {"bytes": problem.bytes, "operations": problem.operations}
        print(record.to_json(result | measure(problem, seconds)), flush=True)


def row(result: dict) -> str:
    """Return a line of the table of one case."""
    if "error" in result:
        return f"| {result['case']} | {result['threads']} | {result['error']} | | | | | |"
    times = result["ms"]
    slow, fast = (
        f"{times[name]['median']:.3g}" if name in times else "does not fit"
        for name in ("e3nn", "llvm")
    )
    ratio = result["ratio"]["llvm"] if len(times) == 2 else None
    spread = f"{ratio['median']:.1f} ({ratio['low']:.1f} to {ratio['high']:.1f})" if ratio else ""
    ideal = f"{result['ideal_ms']:.2f}" if result["ideal_ms"] else ""
    compile_s, scratch = result["compile_s"], result["scratch"]
    return (
        f"| {result['case']} | {result['threads']} | {slow} | {fast} | {spread} | {ideal} | "
        f"{compile_s['e3nn']:.2f} / {compile_s['llvm']:.2f} | "
        f"{scratch['e3nn'] / 1e6:.2f} / {scratch['llvm'] / 1e6:.2f} |"
    )


HEADER = """
| case | threads | e3nn, ms | llvm, ms | ratio (quartiles) | ideal, ms | compile, s | scratch, MB |
|---|---|---|---|---|---|---|---|"""


def main(module: str, cases: dict, description: str) -> None:
    """Measure cases and print tables in Markdown.

    Args:
      module: the command, "benchmarks.products" or "benchmarks.steps".
      cases: functions that make a `networks.Timed`, by name.
      description: the docstring of the command, for `--help`.
    """
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=6.0, help="to time each case")
    parser.add_argument("--keep-memory", action="store_true", help="as train.py does")
    record.add_json_option(parser)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(cases, options.threads[0], options.only, options.seconds, options.keep_memory)
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    kept = record.Record(options.json)
    for threads in options.threads:
        command = [sys.executable, "-m", module, "--child", "--threads", str(threads)]
        command += ["--only", options.only, "--seconds", str(options.seconds)]
        command += ["--keep-memory"] * options.keep_memory
        run_child(command, kept)
    kept.finish()


def run_child(command: list[str], kept: record.Record) -> None:
    """Measure in a process of its own, from an empty cache: compile times are of a first run."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "EQFUSE_CACHE_DIR": cache}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            machine = json.loads(process.stdout.readline() or "{}")
            if machine:
                kept.add(machine)
                print(
                    f"\n{machine['threads']} threads: {machine['bandwidth'] / 1e9:.1f} GB/s, ",
                    end="",
                )
                print(f"{machine['rate'] / 1e9:.0f} GFLOP/s{HEADER}", flush=True)
            for line in process.stdout:
                kept.add(json.loads(line))
                print(row(json.loads(line)), flush=True)
    if process.returncode:
        sys.exit(f"{' '.join(command[1:])} failed")
