"""Small problems: what a call costs on tiny inputs, and what operands in other layouts cost.

    python -m benchmarks.small [--h100] [--json FILE]

The first table is the time of a jitted call of one op on tiny inputs, in microseconds, on e3nn-jax,
"xla" and "llvm", in turn; "nothing" is a jitted function of the same arguments that doubles one of
them, which is what JAX takes for a call. Results are compared first (1e-5 of the largest element).

The second table is what is computed besides the op where an operand arrives transposed, broadcast
or cut out of a larger array: operations of the compiled program, and scratch memory beyond that of
the op on operands as they should be, beside the size of the operand. With --h100 also compiled for
one, ahead of time.
"""

from __future__ import annotations

import argparse
import time

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from benchmarks.cpu_cases import OTHERS
from eqfuse import ops
from eqfuse.train.device.hlo import Program

TINY = tuple(name for name in OTHERS if "one row" in name or "tiny" in name)
BACKENDS = ("e3nn", "xla", "llvm")
CALLS, TURNS, WARM_UP = 200, 30, 3

NODES, EDGES = 150, 3000
X, Y = e3nn.Irreps("64x0e+64x1o+64x2e"), e3nn.Irreps("0e+1o+2e")
KEEP = tuple(ir for _, ir in Y)


def _nothing(*args):
    return 2 * jax.tree.leaves(args)[0]


def _microseconds(function, args) -> float:
    """Return the microseconds of a call, as the mean of many in a row, each waited for."""
    start = time.perf_counter()
    for _ in range(CALLS):
        jax.block_until_ready(function(*args))
    return 1e6 * (time.perf_counter() - start) / CALLS


def overhead(name: str) -> dict:
    """Return microseconds of a call by backend, or an error where their results differ."""
    problem = OTHERS[name]()
    functions = {backend: jax.jit(problem.function(backend)) for backend in BACKENDS}
    expected, *others = (function(*problem.args) for function in functions.values())
    try:
        differences = [record.parity(expected, other, tolerance=1e-5) for other in others]
    except record.ParityError as error:
        return {"case": name, "error": str(error)}
    functions["nothing"] = jax.jit(_nothing)
    times = {backend: [] for backend in functions}
    for _ in range(WARM_UP + TURNS):
        for backend, function in functions.items():
            times[backend].append(_microseconds(function, problem.args))
    spreads = {backend: record.Spread.of(t, WARM_UP) for backend, t in times.items()}
    return {"case": name, "parity": max(differences), "us": spreads}


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def layouts(backend: str) -> dict:
    """Return {case: (function, arguments, bytes of the operand that arrives otherwise)}.

    The first of each op has all operands as they should be.
    """
    rng = np.random.default_rng(0)
    edges = ops.Edges.from_arrays(*rng.integers(0, NODES, (2, EDGES)), NODES)
    options = {"filter_ir_out": KEEP, "backend": backend}
    weights = ops.graph_tensor_product(X, Y, **options).num_irreps
    x, y, w = (NODES, X.dim), (EDGES, Y.dim), (EDGES, weights)

    def graph(x, y, w):
        x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
        return ops.graph_tensor_product(x, y, w, edges, **options).array

    def rows(x, y):
        x, y = e3nn.IrrepsArray(X, x), e3nn.IrrepsArray(Y, y)
        return ops.tensor_product(x, y, **options).array

    many = (EDGES, X.dim)
    cases = {
        "graph": (graph, (x, y, w), ()),
        "graph, x transposed": (lambda x, y, w: graph(x.T, y, w), (x[::-1], y, w), x),
        "graph, w transposed": (lambda x, y, w: graph(x, y, w.T), (x, y, w[::-1]), w),
        "graph, w a product, transposed": (
            lambda x, y, a, b: graph(x, y, (a @ b).T),
            (x, y, (weights, 8), (8, EDGES)),
            w,
        ),
        "graph, one row of y": (graph, (x, (1, Y.dim), w), y),
        "graph, one row of w": (graph, (x, y, (1, weights)), w),
        "graph, w repeated before": (
            lambda x, y, w: graph(x, y, jnp.broadcast_to(w, (EDGES, weights))),
            (x, y, (1, weights)),
            w,
        ),
        "rows": (rows, (many, y), ()),
        "rows, one row of y": (rows, (many, (Y.dim,)), y),
        "rows, x cut out": (lambda x, y: rows(x[:, 32:-32], y), ((EDGES, X.dim + 64), y), many),
    }
    return {
        name: (function, [_shape(*s) for s in shapes], 4 * int(np.prod(operand)) if operand else 0)
        for name, (function, shapes, operand) in cases.items()
    }


def copies(backend: str, compile_for) -> list[dict]:
    """Return what each of `layouts` computes and allocates besides the op.

    Args:
      backend: of the op.
      compile_for: (function, arguments) -> (text of the program, bytes of scratch memory).
    """
    results, alone = [], 0
    for name, (function, args, operand) in layouts(backend).items():
        text, scratch = compile_for(function, args)
        alone = alone if operand else scratch
        besides = [i.name for i in Program(text).entry if not i.primitive.startswith("eqfuse")]
        result = {"case": name, "backend": backend, "besides": besides, "operand_bytes": operand}
        results.append({**result, "scratch_bytes": scratch - (alone if operand else 0)})
    return results


def _here(function, args):
    found = jax.jit(function).lower(*args).compile()
    return found.as_text(), found.memory_analysis().temp_size_in_bytes


def _on_h100(function, args):
    from benchmarks.launches import compiled

    found = compiled(function, args)
    return found.text, found.temp_bytes


def time_row(result: dict) -> str:
    """Return a line of the first table."""
    if "error" in result:
        return f"| {result['case']} | {result['error']} | | | |"
    cells = " | ".join(f"{spread.median:.1f}" for spread in result["us"].values())
    return f"| {result['case']} | {cells} |"


def copy_row(result: dict) -> str:
    """Return a line of the second table."""
    besides = ", ".join(result["besides"]) or "nothing"
    sizes = f"{result['scratch_bytes']:,} | {result['operand_bytes']:,}"
    return f"| {result['case']} | {result['backend']} | {besides} | {sizes} |"


def main() -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--h100", action="store_true", help="compile for one too, ahead of time")
    record.add_json_option(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    kept = record.Record(options.json)
    print(f"| microseconds of a call | {' | '.join(BACKENDS)} | nothing |\n|---|---|---|---|---|")
    for name in TINY:
        kept.add(overhead(name))
        print(time_row(kept.results[-1]), flush=True)
    print("\n| case | backend | besides the op | scratch, bytes | operand, bytes |")
    print("|---|---|---|---|---|")
    backends = {"llvm": _here} | ({"triton": _on_h100} if options.h100 else {})
    for backend, compile_for in backends.items():
        for result in copies(backend, compile_for):
            kept.add(result)
            print(copy_row(result), flush=True)
    kept.finish()


if __name__ == "__main__":
    main()
