"""How time, memory and compile time of a training step on this CPU grow, and the kernels with them.

    python -m benchmarks.growth [--model nequip] [--sweeps edges layers] [--values 4 8]
        [--h100] [--give-back] [--json FILE] [--png FILE]

The step is the gradient of a loss on energies and forces, and each point a process of its own, from
an empty cache: seconds and processor seconds to compile, distinct native kernels and calls of them,
distinct Triton kernels (traced, not compiled), scratch memory, the most resident memory, and the
time of a step. A step whose arrays would not fit in the memory that is free is compiled, not run.
Both backends run where e3nn-jax is measured too, and their results are compared (1e-4 of the
largest element of each array); a point where they differ is not reported.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import record

SWEEPS = {
    "edges": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    "channels": (8, 16, 32, 64, 128, 256),
    "lmax": (0, 1, 2, 3, 4),
    "layers": (1, 2, 4, 8, 16, 32, 64),
}
BASE = {
    "edges": {"channels": 32, "lmax": 2, "layers": 2},
    "channels": {"edges": 3_000, "lmax": 2, "layers": 2},
    "lmax": {"edges": 3_000, "channels": 32, "layers": 2},
    "layers": {"edges": 300, "channels": 8, "lmax": 1},
}
"""What stays the same in each sweep."""

E3NN_UP_TO = {"edges": 100_000, "channels": 128, "lmax": 3, "layers": 8}
"""e3nn-jax takes too long, or too much memory, beyond."""

BACKENDS = ("e3nn", "llvm")


def measure(model: str, sweep: str, value: int, backend: str, folder, flags: list[str]) -> dict:
    """Return a point, in a process of its own; its results stay in `folder`."""
    arguments = [model, sweep, str(value), backend, str(folder / f"{backend}.npz")]
    arguments += [flag for flag in flags if flag != "h100" or backend == "llvm"]
    command = [sys.executable, "-m", "benchmarks.growth_point", *arguments]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "EQFUSE_CACHE_DIR": cache}
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    point = {"model": model, "sweep": sweep, "value": value, "backend": backend}
    if run.returncode:
        return {**point, "error": f"exit code {run.returncode}"}
    return {**point, **json.loads(run.stdout)}


def compare(folder: pathlib.Path) -> float | None:
    """Return how much the results of the backends differ; None where one of them has none."""
    import numpy as np

    files = [folder / f"{backend}.npz" for backend in BACKENDS]
    if not all(file.exists() for file in files):
        return None
    sides = []
    for file in files:
        with np.load(file) as arrays:
            sides.append([arrays[name] for name in arrays.files])
    return record.parity(*sides, tolerance=1e-4)


def sweep(model: str, name: str, values, kept: record.Record, flags: list[str]) -> None:
    """Measure and print the points of a sweep, all of them if no values are given."""
    for value in values or SWEEPS[name]:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            backends = BACKENDS[value > E3NN_UP_TO[name] :]
            found = [measure(model, name, value, b, folder, flags) for b in backends]
            try:
                difference = compare(folder)
            except record.ParityError as error:
                found = [{**found[0], "backend": "both", "error": str(error)}]
            else:
                found = [{**result, "parity": difference} for result in found]
        for result in found:
            kept.add(result)
            print(row(result), flush=True)


COLUMNS = (
    "ms per step",
    "scratch, MB",
    "resident, MB",
    "compile, s",
    "processor, s",
    "native kernels / calls",
    "Triton kernels",
    "H100: launches",
    "compile, s",
)


def header(model: str, name: str) -> str:
    """Return the head of a sweep's table in Markdown."""
    titles = " | ".join((f"{model}, {name}", "backend", *COLUMNS))
    return f"\n| {titles} |\n|{'---|' * (len(COLUMNS) + 2)}"


def row(result: dict) -> str:
    """Return a line of the table."""
    head = f"| {result['value']:,} | {result['backend']} |"
    if "error" in result:
        return f"{head} {result['error']} |{' |' * (len(COLUMNS) - 1)}"
    step, gpu = result["ms"], result["h100"]
    cells = (
        "not run" if step is None else f"{step['median']:.3g}",
        f"{result['scratch_bytes'] / 1e6:.1f}",
        f"{result['resident_mb']:.0f}",
        f"{result['compile_s']:.1f}",
        f"{result['compile_cpu_s']:.1f}",
        f"{result['native_kernels']} / {result['native_calls']}",
        result["triton_kernels"],
        gpu["launches"] if gpu else "",
        gpu["compile_s"] if gpu else "",
    )
    return f"{head} {' | '.join(map(str, cells))} |"


def main() -> None:
    """Measure, print tables in Markdown, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="nequip", choices=("nequip", "allegro", "mace"))
    parser.add_argument("--sweeps", nargs="+", default=list(SWEEPS), choices=list(SWEEPS))
    parser.add_argument("--values", nargs="+", type=int, help="instead of those of the sweep")
    parser.add_argument("--h100", action="store_true", help="compile for one too, ahead of time")
    parser.add_argument(
        "--give-back", action="store_true", help="give memory back after each step: slow, but less"
    )
    parser.add_argument("--png", type=pathlib.Path, help="draw the sweeps")
    record.add_json_option(parser)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    kept = record.Record(options.json)
    flags = ["h100"] * options.h100 + ["give-back"] * options.give_back
    for name in options.sweeps:
        print(header(options.model, name), flush=True)
        sweep(options.model, name, options.values, kept, flags)
    if options.png:
        from benchmarks.plots import growth

        growth(kept.results, options.png)
    kept.finish()


if __name__ == "__main__":
    main()
