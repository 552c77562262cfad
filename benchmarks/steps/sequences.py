"""Small networks in one native call: `ops.sequence` beside the same step as it is written.

    python -m benchmarks.steps.sequences [--only TEXT] [--turns 20] [--json FILE]
                                   [--layers 1 2 4 8] [--sides sequence]

The first table is the time of a training step. Each is called `CALLS` times in a row, each call
waited for as a training loop does, in turns with the others; results are compared first (1e-4 of
the largest element of each array). "e3nn-jax" and "llvm" are under `jax.jit` alone. With --layers
there is a second table: seconds to compile, calls of native kernels and functions in them, by the
number of layers; with --sides, of some of the sides.
"""

from __future__ import annotations

import argparse
import math
import re
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from benchmarks.networks import normal, potential_on, random_graph, step_on
from benchmarks.record import Spread
from eqfuse import models, ops
from eqfuse.graph import Graph
from eqfuse.ops.backends.llvm import machine
from eqfuse.ops.backends.llvm.program import generate
from eqfuse.ops.transforms.sequence import Sequence
from eqfuse.runs.process import keep_freed_memory
from eqfuse.train.flat import Flat
from examples.tetris import TetrisNet, shapes, training_step

CALLS, FEW_CALLS, LONG, WARM_UP = 50, 3, 0.02, 3
"""Calls in a row, of steps that take more than `LONG` seconds on e3nn-jax too; turns before."""
EDGES = 300
"""Edges of the network whose number of layers grows."""


def tetris(backend: str, count: int = 8):
    """Return a step of Adam on the Tetris network, as train.py runs it, and its arguments.

    Args:
      count: how many of the eight shapes there are.
    """
    graph, labels = _first(*shapes(), count)
    graph = jax.tree.map(jnp.asarray, graph)
    module = TetrisNet(backend=backend)
    arguments = graph.vectors, graph.species, graph.edges
    params = jax.eval_shape(module.init, jax.random.key(0), *arguments)
    flat, rng = Flat.of(params), np.random.default_rng(0)
    step, optimizer = training_step(module, flat, labels, lr=0.01)
    params = normal(rng, flat.size)
    return step, (params, optimizer.init(params), graph)


def _first(graph: Graph, labels, count: int):
    """Return the first graphs of a batch without padding, and their labels."""
    nodes, rows = graph.graph_index < count, graph.graph_index[graph.edges.receivers] < count
    ends = graph.edges.senders[rows], graph.edges.receivers[rows]
    graph = Graph(
        positions=graph.positions[nodes],
        species=graph.species[nodes],
        edges=ops.Edges.from_arrays(*ends, int(nodes.sum())),
        shifts=graph.shifts[rows],
        graph_index=graph.graph_index[nodes],
        cells=graph.cells[:count],
        node_mask=graph.node_mask[nodes],
        graph_mask=graph.graph_mask[:count],
    )
    return graph, labels[:count]


def potential(name: str, edges: int = EDGES, **fields):
    """Return a case: the gradient of a loss on energy and forces."""
    return lambda backend: (
        (timed := step_on(random_graph(edges), name, **fields)).function(backend),
        timed.args,
    )


def prediction(name: str, edges: int = EDGES, **fields):
    """Return a case: energies and forces."""

    def case(backend):
        graph = random_graph(edges)
        build, params = potential_on(graph, name, **fields)
        model = build(backend)
        return (lambda p, graph: models.predict(model, p, graph)), (params, graph)

    return case


CASES = {"Tetris network, Adam": tetris}
CASES |= {
    f"{title}, {channels} channels, {layers} layer{'s' if layers > 1 else ''}, l <= {lmax}, "
    f"{edges} edges{what}": make(
        title.lower(), edges=edges, channels=channels, layers=layers, lmax=lmax
    )
    for what, make in (("", potential), ("; energies and forces alone", prediction))
    for title, channels, layers, lmax, edges in (
        ("NequIP", 8, 1, 1, 300),
        ("NequIP", 8, 3, 1, 300),
        ("NequIP", 32, 2, 2, 300),
        ("NequIP", 64, 3, 2, 2700),
        ("MACE", 8, 1, 1, 300),
        ("MACE", 16, 2, 2, 300),
        ("MACE", 64, 3, 2, 2700),
        ("Allegro", 8, 1, 1, 300),
    )
}


def sides(case) -> tuple[dict, tuple, bool]:
    """Return the compiled steps of a case, by name, their arguments, and what auto chooses."""
    functions = {}
    for name, backend in (("e3nn-jax", "e3nn"), ("llvm", "llvm")):
        step, args = case(backend)
        functions[name] = jax.jit(step).lower(*args).compile()
    functions["sequence"] = ops.sequence(step, most=math.inf).lower(*args).compile()
    chosen: list[str] = []
    ops.sequence(step, report=chosen.append).trace(*args)
    return functions, args, "native" in chosen[0]


def measure(name: str, turns: int) -> dict:
    """Return milliseconds of a step by side, or an error where results differ."""
    functions, args, chosen = sides(CASES[name])
    expected, *others = (function(*args) for function in functions.values())
    try:
        differences = [record.parity(expected, other, tolerance=1e-4) for other in others]
    except record.ParityError as error:
        return {"case": name, "error": str(error)}
    times = {side: [] for side in functions}
    start = time.perf_counter()
    jax.block_until_ready(functions["e3nn-jax"](*args))
    calls = CALLS if time.perf_counter() - start < LONG else FEW_CALLS
    for _ in range(WARM_UP + turns):
        for side, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                jax.block_until_ready(function(*args))
            times[side].append(1e3 * (time.perf_counter() - start) / calls)
    spreads = {side: Spread.of(t, WARM_UP) for side, t in times.items()}
    least = {side: min(t) for side, t in times.items()}
    return {
        "case": name,
        "parity": max(differences),
        "ms": spreads,
        "least_ms": least,
        "chosen": chosen,
    }


def row(result: dict) -> str:
    """Return a line of the first table."""
    if "error" in result:
        return f"| {result['case']} | {result['error']} | | | | | |"
    ms, least = result["ms"], result["least_ms"]
    cells = " | ".join(f"{s.median:.3g} ({least[side]:.3g})" for side, s in ms.items())
    ratios = [ms[side].median / ms["sequence"].median for side in ("e3nn-jax", "llvm")]
    return (
        f"| {result['case']} | {cells} | {ratios[0]:.1f} | {ratios[1]:.2f} "
        f"| {'yes' if result['chosen'] else 'no'} |"
    )


SIDES = {"e3nn-jax": "e3nn", "llvm": "llvm", "sequence": "llvm"}


def growth(layers: int, names) -> dict:
    """Return what it takes to compile a NequIP of so many layers, by side."""
    case, found = potential("nequip", channels=8, layers=layers, lmax=1), {}
    for name in names:
        step, args = case(SIDES[name])
        jax.clear_caches()
        compiled = jax.jit(step) if name != "sequence" else ops.sequence(step, most=math.inf)
        start = time.perf_counter()
        text = compiled.lower(*args).compile().as_text()
        seconds = time.perf_counter() - start
        calls = re.findall(r'custom_call_target="(eqfuse_\w+)"', text)
        found[name] = {"seconds": seconds, "calls": len(calls), "kernels": len(set(calls))}
    if "sequence" in names:
        found["sequence"] |= functions(step, args)
    return {"layers": layers, **found}


def functions(step, args) -> dict:
    """Return the numbers of functions and of call lists in a sequence's native call."""
    leaves, tree = jax.tree.flatten(args)
    closed = jax.make_jaxpr(lambda *a: jax.tree.leaves(step(*tree.unflatten(a))))(*leaves)
    [stage] = Sequence(closed, math.inf).native
    text = generate(stage.program, "float32", machine.machine()).text
    names = re.findall(r"define internal void @(\w+)", text)
    lists = sum(bool(re.fullmatch(r"steps\d+", name)) for name in names)
    return {"bodies": len(names) - lists, "lists": lists}


def growth_row(result: dict) -> str:
    """Return a line of the second table."""
    columns = [(side, "seconds", ".1f") for side in SIDES]
    columns += [("llvm", "calls", ""), ("llvm", "kernels", "")]
    columns += [("sequence", what, "") for what in ("calls", "bodies", "lists")]
    cells = [format(result[s][w], f) if s in result else "" for s, w, f in columns]
    return f"| {result['layers']} | {' | '.join(cells)} |"


def main() -> None:
    """Measure and print tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--layers", type=int, nargs="*", default=[])
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    record.add_json_option(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    keep_freed_memory()
    kept = record.Record(options.json)
    print(
        "| training step, ms: median (least) | e3nn-jax | llvm | sequence | e3nn-jax by sequence ",
        end="",
    )
    print("| llvm by sequence | auto takes it |\n|---|---|---|---|---|---|---|")
    for name in CASES:
        if options.only in name:
            kept.add(measure(name, options.turns))
            print(row(kept.results[-1]), flush=True)
    if options.layers:
        print("\n| layers | compile, s: e3nn-jax | llvm | sequence | llvm: native calls ", end="")
        print("| distinct | sequence: native calls | bodies | lists of calls |")
        print("|---" * 9 + "|")
    for layers in options.layers:
        kept.add(growth(layers, options.sides))
        print(growth_row(kept.results[-1]), flush=True)
    kept.finish()


if __name__ == "__main__":
    main()
