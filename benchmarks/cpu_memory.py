"""Peak memory of a process that compiles and runs a training step on this CPU, for both backends.

    python -m benchmarks.cpu_memory [--only TEXT] [--molecules 5] [--keep-memory] [--repeats 3]
        [--json FILE]

Each number is of processes of their own: resident memory after all imports and with the data
("start"), and the most until the step is compiled and until it has run five times. Medians in MB,
of a model whose backends give the same (1e-4 of the largest element of each result).
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from benchmarks import record
from eqfuse.train.device.memory import keep_freed_memory

BACKENDS = ("e3nn", "llvm")
MOMENTS = ("start", "compiled", "after five steps")


def peak() -> float:
    """Return most resident memory of this process so far, MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def child(title: str, backend: str, molecules: int, keep_memory: bool, results: str) -> None:
    """Return one line of JSON, peaks in MB; the results of the step into a file."""
    if keep_memory and not keep_freed_memory():
        sys.exit("--keep-memory needs glibc")
    import jax
    import numpy as np

    from benchmarks import cpu_cases
    from benchmarks.timing import compiled, fits

    problem = cpu_cases.training_step(title.lower(), num_molecules=molecules)
    start = peak()
    step, _, scratch = compiled(problem.function(backend), problem.args)
    after_compile = peak()
    if not fits(2 * scratch):  # a call begins before the memory of the last one is free
        sys.exit(f"{title} on {backend} needs {scratch / 1e9:.1f} GB of scratch memory, too much")
    for _ in range(5):
        out = jax.block_until_ready(step(*problem.args))
    print(json.dumps([start, after_compile, peak()]))
    np.savez(results, *jax.tree.leaves(out))


def measure(title: str, backend: str, molecules: int, keep_memory: bool, repeats: int):
    """Return (the three peaks as `Spread`s over processes, the results of the step)."""
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "results.npz"
        command = [sys.executable, "-m", "benchmarks.cpu_memory", "--only", title]
        command += ["--molecules", str(molecules), *["--keep-memory"] * keep_memory]
        command += ["--child", backend, str(file)]
        runs = [
            subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            for _ in range(repeats)
        ]
        with np.load(file) as arrays:
            results = [arrays[name] for name in arrays.files]
    peaks = zip(MOMENTS, zip(*map(json.loads, runs), strict=True), strict=True)
    return {moment: record.Spread.of(values) for moment, values in peaks}, results


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only models whose name holds this")
    parser.add_argument("--molecules", type=int, default=5, help="of 27 atoms, in a batch")
    parser.add_argument("--keep-memory", action="store_true", help="as train.py does")
    parser.add_argument("--repeats", type=int, default=3)
    record.add_json_option(parser)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if options.child:
        backend, results = options.child
        child(options.only, backend, options.molecules, options.keep_memory, results)
        return
    from benchmarks.cpu_cases import MODELS

    kept = record.Record(options.json)
    print(f"| training step | backend | {', MB | '.join(MOMENTS)}, MB |")
    print("|---|---|---|---|---|")
    for title in filter(lambda title: options.only in title, MODELS):
        for result in compare(title, options.molecules, options.keep_memory, options.repeats):
            kept.add(result)
            print(row(result), flush=True)
    kept.finish()


def compare(title: str, molecules: int, keep_memory: bool, repeats: int) -> list[dict]:
    """Return the peaks of each backend; one error where their results differ."""
    case = {"case": title, "molecules": molecules, "keep_memory": keep_memory}
    try:
        found = {n: measure(title, n, molecules, keep_memory, repeats) for n in BACKENDS}
        difference = record.parity(*(results for _, results in found.values()), tolerance=1e-4)
    except (record.ParityError, subprocess.CalledProcessError) as error:
        return [{**case, "error": str(error)}]
    return [
        {**case, "backend": name, "parity": difference, "peak_mb": peaks}
        for name, (peaks, _) in found.items()
    ]


def row(result: dict) -> str:
    """Return a line of the table."""
    if "error" in result:
        return f"| {result['case']} | {result['error']} | | | |"
    numbers = " | ".join(f"{peak.median:.0f}" for peak in result["peak_mb"].values())
    return f"| {result['case']} | {result['backend']} | {numbers} |"


if __name__ == "__main__":
    main()
