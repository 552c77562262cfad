"""Draw the profile of a training step before and after `ops.sequence`, and of its matmuls alone.

    python -m benchmarks.steps.sequence_profile [--case TEXT] [--picture FILE]

The figure shows the trace of JAX's profiler of one call, for a case of `benchmarks.steps.sequences`
on e3nn-jax, on our kernels and as a sequence, and for the same matmuls alone: random matrices in
the shapes that the step's Linears multiply. The table has the times of all of them without the
profiler, measured in turns, and the time of the matmuls at the speed of one large matmul, which is
a lower bound for fusion.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import jax
import matplotlib.figure
import numpy as np
from jax.profiler import ProfileData

from benchmarks.networks import normal
from benchmarks.record import Spread
from benchmarks.steps.sequences import CASES, WARM_UP, sides
from eqfuse.ops.ir.linear import LinearForm, Weights
from eqfuse.ops.ir.program import Multilinear
from eqfuse.ops.transforms.sequence.sequence import Traced
from eqfuse.train.device.memory import keep_freed_memory

CALLS, TURNS = 50, 20
LARGE = 512
ONE = f"one matmul of {LARGE} rows, terms and columns, XLA"
COLORS = {"eqfuse": "tab:blue", "XLA: matmuls and sums": "tab:orange", "XLA: the rest": "0.6"}


def linears(case) -> list[tuple[LinearForm, int]]:
    """Return the linear forms that a step runs, each with its rows."""
    step, args = case("llvm")
    leaves, tree = jax.tree.flatten(args)
    closed = jax.make_jaxpr(lambda *flat: step(*jax.tree.unflatten(tree, flat)))(*leaves)
    steps = [s for part in Traced(closed, math.inf).stages.native for s in part.program.steps]
    kernels = [s for s in steps if isinstance(s, Multilinear) and isinstance(s.form, LinearForm)]
    return [(s.form, s.num_rows) for s in kernels]


def matmuls(forms) -> list[tuple[int, int, int]]:
    """Return the (rows, terms, columns) of each matrix product in linear forms."""
    found = []
    for form, rows in forms:
        for term in (t for t in form.terms if t.x is not None):
            x, z = (form.operands[b.operand].blocks[b.block] for b in (term.x, term.z))
            sizes = {"x": x.mul, "z": z.mul, "rows": rows * x.dim}
            output = form.outputs[form.output_of(term)]
            if isinstance(output, Weights):
                found.append((sizes["x"], sizes["rows"], sizes["z"]))
            elif form.output_of(term) + len(form.inputs) == term.z.operand:
                found.append((sizes["rows"], sizes["x"], sizes["z"]))
            else:
                found.append((sizes["rows"], sizes["z"], sizes["x"]))
    return found


def alone(sizes):
    """Return the matmuls alone, by XLA, and one large one: functions of arrays, and the arrays."""
    rng = np.random.default_rng(0)
    pairs = [(normal(rng, m, k), normal(rng, k, n)) for m, k, n in sizes]
    large = [(normal(rng, LARGE, LARGE), normal(rng, LARGE, LARGE))]
    function = jax.jit(lambda pairs: [a @ b for a, b in pairs])
    return {"the matmuls alone, XLA": (function, (pairs,)), ONE: (function, (large,))}


def events(function, args) -> list[tuple[str, float, float]]:
    """Return (name, start, length) of what one call ran, in µs from its first."""
    jax.block_until_ready(function(*args))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            jax.block_until_ready(function(*args))
        [file] = Path(folder).rglob("*.xplane.pb")
        found = []
        for plane in ProfileData.from_file(str(file)).planes:
            for event in (event for line in plane.lines for event in line.events):
                if "hlo_op" in dict(event.stats) and not event.name.startswith("end: "):
                    found.append((event.name, event.start_ns, event.duration_ns))
    first = min(start for _, start, _ in found)
    return [(name, 1e-3 * (start - first), 1e-3 * length) for name, start, length in found]


def kind(name: str) -> str:
    """Return the kind of an operation, by XLA's name of it."""
    ours, matmuls, rest = COLORS
    if name.startswith("eqfuse"):
        return ours
    return matmuls if name.startswith(("dot", "ynn_fusion")) else rest


def draw(traces: dict[str, list], path: Path):
    """Draw the calls one above the other, on one scale of time."""
    figure = matplotlib.figure.Figure(figsize=(9, 1.1 * len(traces) + 0.9), layout="constrained")
    axes = figure.subplots(len(traces), 1, sharex=True)
    for axis, (side, found) in zip(axes, traces.items(), strict=True):
        for label, color in COLORS.items():
            bars = [(start, length) for name, start, length in found if kind(name) == label]
            axis.broken_barh(bars, (0, 1), color=color, label=label)
        axis.set_title(f"{side}: {len(found)} operations", loc="left", fontsize=9)
        axis.set_yticks([])
    axes[-1].set_xlabel("time, µs")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", fontsize=8, ncols=len(COLORS))
    figure.savefig(path, dpi=100)


def main() -> None:
    """Measure, print a table in Markdown, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", default="Tetris network, Adam", choices=list(CASES))
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    keep_freed_memory()
    case = CASES[options.case]
    functions, args, _ = sides(case)
    sizes = matmuls(linears(case))
    calls = {side: (function, args) for side, function in functions.items()} | alone(sizes)
    operations = 2 * sum(math.prod(size) for size in sizes)
    print(f"{len(sizes)} matmuls, {1e-6 * operations:.2f} MFLOP")
    times = {side: [] for side in calls}
    for _ in range(WARM_UP + TURNS):
        for side, (function, given) in calls.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                jax.block_until_ready(function(*given))
            times[side].append(1e3 * (time.perf_counter() - start) / CALLS)
    print(f"\n| {options.case} | ms: median (quartiles) |\n|---|---|")
    for side, found in times.items():
        spread = Spread.of(found, WARM_UP)
        print(f"| {side} | {spread.median:.3g} ({spread.low:.3g} to {spread.high:.3g}) |")
    one = Spread.of(times[ONE], WARM_UP).median
    bound = one * operations / (2 * LARGE**3)
    print(f"\nAt the speed of the one large matmul, the matmuls would take {bound:.3g} ms.")
    if options.picture:
        shown = {side: call for side, call in calls.items() if side != ONE}
        draw({side: events(*call) for side, call in shown.items()}, options.picture)


if __name__ == "__main__":
    main()
