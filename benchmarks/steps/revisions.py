"""Time training steps as two revisions of eqfuse run them, and e3nn-jax, in turns.

    python -m benchmarks.steps.revisions BEFORE [--threads 2] [--only TEXT] [--predict]

BEFORE is a revision of git. Sides: e3nn-jax, BEFORE, the working tree with radial networks and with
tables of them (128 knots); each in a process of its own, of which one runs at a time. A step is the
gradient of a loss on energies and forces: 3 layers, 64 channels, l <= 2, molecules of 27 atoms,
float32, memory kept as `train.py` does. Of three calls of a turn the last is timed. With --predict
it is energies and forces alone. Printed: medians in ms, and the median and quartiles of the ratios
of e3nn-jax to each other side, turn by turn.
"""

import argparse
import ast
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
CALLS, LARGE, LEAST, MOST = 3, 1.0, 4, 40
CASES = [(name, count) for count in (5, 37) for name in ("nequip", "mace", "allegro")]
SIDES = {"e3nn-jax": "e3nn", "before": "llvm", "networks": "llvm", "tables": "llvm"}


def work(side: str, name: str, count: int, predict: bool):
    """Compile a step, then time one turn of calls for each line of the standard input."""
    import jax

    from benchmarks.networks import molecules, potential_on, step_on
    from eqfuse import models
    from eqfuse.runs.process import keep_freed_memory

    keep_freed_memory()
    fields = {"channels": 64, "layers": 3}
    if side in ("networks", "tables") and name != "allegro":
        fields |= {"radial": side.removesuffix("s"), "radial_knots": 128}
    graph = molecules(count)
    with jax.default_matmul_precision("highest"):
        if predict:
            potential, params = potential_on(graph, name, **fields)
            model, args = potential(SIDES[side]), (params, graph)
            function = jax.jit(lambda params, graph: models.predict(model, params, graph))
        else:
            timed = step_on(graph, name, **fields)
            function, args = jax.jit(timed.function(SIDES[side])), timed.args
        for _ in range(2):
            jax.block_until_ready(function(*args))
    print("ready", flush=True)
    seconds = 0.0
    for _ in sys.stdin:
        for _ in range(1 if seconds > LARGE else CALLS):
            start = time.perf_counter()
            jax.block_until_ready(function(*args))
            seconds = time.perf_counter() - start
        print(seconds, flush=True)


class Worker:
    """A process that runs one side."""

    def __init__(self, root: pathlib.Path, *arguments, threads: int):
        environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--work", repr(arguments), "--threads", str(threads)],
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{arguments} did not start")

    def turn(self) -> float:
        """Return the milliseconds of a call."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return 1e3 * float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(before: pathlib.Path, name: str, count: int, options) -> str:
    """Return a row of the table."""
    sides = [s for s in SIDES if s != "tables" or name != "allegro"]
    roots = {s: before if s == "before" else ROOT for s in sides}
    workers = {}
    try:
        for s in sides:
            arguments = s, name, count, options.predict
            workers[s] = Worker(roots[s], *arguments, threads=options.threads)
        turns, end = [], time.perf_counter() + options.seconds
        while len(turns) < LEAST or (time.perf_counter() < end and len(turns) < MOST):
            turns.append([w.turn() for w in workers.values()])
    finally:
        for w in workers.values():
            w.end()
    ms = np.array(turns[1:])
    ratios = np.quantile(ms[:, :1] / ms, (0.25, 0.5, 0.75), axis=0).T
    cells = [f"{np.median(ms[:, 0]):.4g}"]
    for k, (low, middle, high) in list(enumerate(ratios))[1:]:
        cells.append(f"{np.median(ms[:, k]):.3g}: {middle:.1f} ({low:.1f} to {high:.1f})")
    cells += [""] * (len(SIDES) - len(sides))
    return f"| {name} | {27 * count} | {options.threads} | {' | '.join(cells)} | {len(ms)} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", help="a revision of git")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="cases, such as nequip-135")
    parser.add_argument("--seconds", type=float, default=15.0, help="to time each case")
    parser.add_argument("--predict", action="store_true", help="energies and forces alone")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
        work(*ast.literal_eval(options.work))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "archive", options.before, "eqfuse", "benchmarks"]
        archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
        print("| model | atoms | threads | e3nn-jax | before | networks | tables | turns |")
        print("|---|---|---|---|---|---|---|---|")
        for name, count in CASES:
            if options.only in f"{name}-{27 * count}":
                print(measure(pathlib.Path(folder), name, count, options), flush=True)


if __name__ == "__main__":
    main()
