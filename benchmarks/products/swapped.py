"""Time products on a CPU whose import alone was changed: e3nn-jax, "xla" and "llvm", in turn.

    python -m benchmarks.products.swapped [--only TEXT] [--edges N] [--seconds S] [--json FILE]

Each product is of rows, as `e3nn.tensor_product` is, or one of `eqfuse.bench.cases` on a graph of
20 edges for each node. Value, first and second order are compared first (float32, 1e-4 of the
largest
element), and timed in one process, in turn; a ratio is e3nn-jax's time by ours, turn by turn.
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

from benchmarks.networks import normal
from benchmarks.turns import interleaved
from eqfuse.bench import record
from eqfuse.bench.cases import BOTH2, CASES, SH2, times
from eqfuse.bench.problem import ORDERS, Problem, derivative
from eqfuse.bench.problems import PROBLEMS, row_product
from eqfuse.bench.timing import compiled

BACKENDS = ("e3nn", "xla", "llvm")
ROWS = {
    "rows, 64 l<=2": (times(64, SH2), SH2, 1.0),
    "rows, 64 l<=2 of both parities": (times(64, BOTH2), SH2, 1.0),
    "rows, 32 l<=1": (times(32, "0e+1o"), "0e+1o", 1.0),
    "rows, 8 l<=1, one row": ("8x0e+8x1o", "1o", 0.0),
    "rows, 128x0e by 0e": ("128x0e", "0e", 1.0),
    "rows, 0e+1o by 0e+1o": ("0e+1o", "0e+1o", 2.0),
    "rows, 16x0e+16x1o by itself": ("16x0e+16x1o", "16x0e+16x1o", 0.1),
    "rows, 64x0e by itself": ("64x0e", "64x0e", 0.2),
}
"""Irreps of the operands, and rows by the number of edges."""


def problems(edges: int) -> dict:
    """Return what is timed, each as a function that makes it."""
    found = {
        name: lambda x=x, y=y, share=share: row_product(
            "tensor_product", x, y, 0, max(1, int(share * edges))
        )
        for name, (x, y, share) in ROWS.items()
    }
    return found | {name: lambda name=name: PROBLEMS[name](edges // 20, edges) for name in CASES}


def measure(name: str, problem: Problem, order: str, seconds: float) -> dict:
    """Return milliseconds and ratios of one order of a problem by backend."""
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda a: normal(rng, *a.shape), problem.arguments(order, "float32"))
    functions, compile_s = {}, {}
    for backend in BACKENDS:
        computed = derivative(problem.function(backend), order)
        functions[backend], compile_s[backend], _ = compiled(
            lambda *args, computed=computed: computed(args, problem.integers), args
        )
    expected, *others = (f(*args) for f in functions.values())
    differences = [record.parity(expected, other, tolerance=1e-4) for other in others]
    timed = interleaved(functions, args, seconds)
    result = {"case": name, "order": order, "parity": max(differences), "compile_s": compile_s}
    return result | timed


def row(result: dict) -> str:
    """Return a line of the table."""
    ratios = []
    for backend in BACKENDS[1:]:
        r = result["ratio"][backend]
        ratios.append(f"{r.median:.2f} ({r.low:.2f} to {r.high:.2f})")
    milliseconds = f"{result['ms']['e3nn'].median:.3g}"
    return f"| {result['case']} | {result['order']} | {milliseconds} | {' | '.join(ratios)} |"


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name holds one")
    parser.add_argument("--edges", type=int, default=2688)
    parser.add_argument("--seconds", type=float, default=2.0, help="to time each")
    record.add_json_option(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    kept = record.Record(options.json)
    print("| case | order | e3nn, ms | xla, ratio (quartiles) | llvm, ratio (quartiles) |")
    print("|---|---|---|---|---|")
    for name, make in problems(options.edges).items():
        if not any(text in name for text in options.only):
            continue
        for order in ORDERS:
            try:
                kept.add(measure(name, make(), order, options.seconds))
                print(row(kept.results[-1]), flush=True)
            except record.ParityError as error:
                print(f"| {name} | {order} | {error} | | |", flush=True)
    kept.finish()


if __name__ == "__main__":
    main()
