"""What a training step on this CPU spends its time on, by part of the model, for both backends.

    python -m benchmarks.cpu_breakdown [--threads 1] [--only TEXT] [--turns 15] [--json FILE]

XLA's profiler times every operation of the compiled step; each counts with its shortest run, so
that other programs on the machine do not enter, and goes to the part that its name tells. On more
than one thread operations overlap, and their sum is more than the time of a step. Memory is kept
between calls, as in `train.py`.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import re
import sys
import tempfile

from benchmarks import record
from eqfuse.train.device.memory import keep_freed_memory

BACKENDS = ("e3nn", "llvm")
PARTS = {
    "networks of edges": r"/(radial|two_body|first_features|weights|latents|mlp)/",
    "native products and Linears": r"eqfuse_native",
    "products and sums": r"ijk|abck?,|ak,|\.\.\.pu|layer_\d+/(gather|scatter|split|concatenate)",
    "linears of nodes": r"/(linear_\w+|skip|readout\w*)/",
    "the rest of the layers": r"/layer_\d+/",
    "edges: harmonics, basis": r"/model/",
    "the rest": r"",
}
"""Regular expressions for the names of operations; the first that matches counts."""


def milliseconds(step, args, turns: int) -> dict[str, float]:
    """Return each instruction's shortest time, times how often it runs in a step."""
    import jax

    from eqfuse.train.device.profiling import operations

    for _ in range(3):
        jax.block_until_ready(step(*args))
    times = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(turns):
                jax.block_until_ready(step(*args))
        for _, instruction, time in operations(pathlib.Path(folder)):
            times[instruction].append(time)
    return {name: min(t) * len(t) / turns for name, t in times.items()}


def breakdown(step, args, turns: int) -> dict[str, float]:
    """Return the milliseconds of a compiled step, by part."""
    from eqfuse.train.device.hlo import Program

    instructions, parts = Program(step.as_text()).by_name, dict.fromkeys(PARTS, 0.0)
    for name, time in milliseconds(step, args, turns).items():
        if name in instructions:
            text = f"{name} {instructions[name].op_name}"
            parts[next(p for p, pattern in PARTS.items() if re.search(pattern, text))] += time
    return parts


def compare(title: str, threads: int, turns: int) -> dict:
    """Return milliseconds of a step by part for both backends; an error where their
    results differ.
    """
    from benchmarks.cpu_cases import training_step
    from benchmarks.timing import compiled

    problem, case = training_step(title.lower()), {"case": title, "threads": threads}
    steps = [compiled(problem.function(backend), problem.args)[0] for backend in BACKENDS]
    try:
        difference = record.parity(*(step(*problem.args) for step in steps), tolerance=1e-4)
    except record.ParityError as error:
        return {**case, "error": str(error)}
    parts = [breakdown(step, problem.args, turns) for step in steps]
    return {**case, "parity": difference, "ms": dict(zip(BACKENDS, parts, strict=True))}


def table(result: dict) -> str:
    """Return the parts of a step in Markdown."""
    title = f"{result['case']}, {result['threads']} threads"
    if "error" in result:
        return f"\n{title}: {result['error']}"
    slow, fast = result["ms"].values()
    lines = [f"\n| {title} | e3nn, ms | llvm, ms |", "|---|---|---|"]
    lines += [f"| {part} | {slow[part]:.1f} | {fast[part]:.1f} |" for part in PARTS]
    return "\n".join([*lines, f"| sum | {sum(slow.values()):.1f} | {sum(fast.values()):.1f} |"])


def main() -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="only models whose name holds this")
    parser.add_argument("--turns", type=int, default=15)
    record.add_json_option(parser)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    if not keep_freed_memory():
        print("the C library is not glibc: memory is given back between calls", file=sys.stderr)
    from benchmarks.cpu_cases import MODELS

    kept = record.Record(options.json)
    for title in filter(lambda title: options.only in title, MODELS):
        kept.add(compare(title, options.threads, options.turns))
        print(table(kept.results[-1]), flush=True)
    kept.finish()


if __name__ == "__main__":
    main()
