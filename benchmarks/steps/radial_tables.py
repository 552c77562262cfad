"""Time training steps, and energies and forces, with radial functions from tables and networks.

    python -m benchmarks.steps.radial_tables [--only TEXT] [--knots 128] [--seconds 6] [--kept]

3 layers, 64 channels, l <= 2, batches of molecules of 27 atoms, in one process, in turns, float32.
A training step is the gradient of a loss on energies and forces. With --kept it is energies and
forces instead, by a table that is made in every call and by one that is kept between calls.
"""

from __future__ import annotations

import argparse

import jax

from benchmarks.networks import Timed, molecules, potential_on, step_on
from benchmarks.turns import compiled, interleaved
from eqfuse import models
from eqfuse.runs.process import keep_freed_memory

STEPS = [(name, count) for count in (5, 37) for name in ("nequip", "mace")]
INFERENCE = [(name, count) for count in (1, 4) for name in ("nequip", "mace")]
FIELDS = {"channels": 64, "layers": 3}


def step(name: str, count: int, radial: str, knots: int) -> Timed:
    """Return the training step of a model on `count` molecules."""
    return step_on(molecules(count), name, radial=radial, radial_knots=knots, **FIELDS)


def inference(name: str, count: int, radial: str, knots: int) -> tuple:
    """Return a function of energies and forces, and its arguments."""
    graph = molecules(count)
    fields = FIELDS | {"radial": radial.removeprefix("kept "), "radial_knots": knots}
    potential, params = potential_on(graph, name, **fields)
    if radial.startswith("kept"):
        params = models.with_tables(potential("llvm"), params)
    predict = models.compile_predict(potential("llvm"))
    return predict, (params, graph)


def measure(name: str, count: int, options) -> str:
    """Return a row of the table."""
    functions, args = {}, {}
    kinds = ("network", "table", *(("kept table",) if options.kept else ()))
    for radial in kinds:
        if options.kept:
            function, args[radial] = inference(name, count, radial, options.knots)
            functions[radial] = function.lower(*args[radial]).compile()
        else:
            timed = step(name, count, radial, options.knots)
            functions[radial], args[radial] = (
                compiled(timed.function("llvm"), timed.args)[0],
                timed.args,
            )
    calls = {k: lambda f=f, a=args[k]: f(*a) for k, f in functions.items()}
    result = interleaved(calls, (), options.seconds)
    edges = args["network"][1].edges.num_edges
    cells = [f"{result['ms'][k].median:.1f}" for k in kinds]
    ratios = [result["ratio"][k] for k in kinds[1:]]
    cells += [f"{r.median:.2f} ({r.low:.2f} to {r.high:.2f})" for r in ratios]
    return f"| {name} | {27 * count} | {edges} | {' | '.join(cells)} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--knots", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=6.0, help="to time each case")
    parser.add_argument("--kept", action="store_true", help="energies and forces, see above")
    options = parser.parse_args()
    keep_freed_memory()
    with jax.default_matmul_precision("highest"):
        for name, count in INFERENCE if options.kept else STEPS:
            if options.only in f"{name}-{27 * count}":
                print(measure(name, count, options), flush=True)


if __name__ == "__main__":
    main()
