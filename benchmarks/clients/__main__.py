"""Existing e3nn-jax code: as it is, with two imports swapped, with `ops.fuse` besides, rewritten.

    python -m benchmarks.clients [NETWORK ...] [--seconds 4] [--json FILE] [--launches]
    python -m benchmarks.clients styles --processor-time

All sides of a network run in turn in one process, after their energies, forces and gradients were
compared. `forces` is the energy with its gradient by the positions; `training` the gradient, by the
parameters, of a loss on both. The scratch memory is what XLA allocates for intermediates
(`memory_analysis`). `styles` are all networks that were written in the style of public code, on
e3nn-jax and with `ops.fuse`. With --processor-time, times are those of all threads, which other
programs disturb less. With --launches, what they launch on an H100, compiled ahead of time. With
--memory, scratch memory alone, compiled and not run.
With --keep-memory, all sides are timed with memory that is not given back to the system between
calls, as `train.py` does: by default glibc gives back what is larger than 32 MB.
"""

from __future__ import annotations

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import launches, record, turns
from benchmarks.clients.existing_networks import E3NN, SWAPPED
from benchmarks.clients.existing_networks import NETWORKS as IN_THEIR_STYLE
from benchmarks.clients.patterns import PATTERNS
from benchmarks.turns import interleaved
from eqfuse import ops
from eqfuse.runs.process import keep_freed_memory

NETWORKS = IN_THEIR_STYLE | PATTERNS
REWRITTEN = ("NequIP", "MACE", "Tetris")
NODES, EDGES = 135, 2688
SIZES = {"Tetris": (32, 96)} | dict.fromkeys(PATTERNS, (128, 2560))
"""Nodes and edges, where they are others: those of the example are eight shapes of four."""
SIDES = ("e3nn-jax", "swapped", "fused", "rewritten")
ORDERING = "rewritten, edges ordered in it"
TOLERANCE = 1e-4
"""Float32, through two layers, and two derivatives."""
TOLERANCES = {"bfloat16 product": 2**-4}
"""Tolerances of networks of another dtype: messages are rounded to eight bits."""


def graph(nodes: int, edges: int, seed: int = 0):
    """Return positions, species, senders, receivers of a random graph.

    Where edges are a multiple of nodes, each node has as many.
    """
    rng = np.random.default_rng(seed)
    receivers = np.sort(rng.integers(nodes, size=edges))
    if edges % nodes == 0:
        receivers = np.repeat(np.arange(nodes), edges // nodes)
    senders = (receivers + rng.integers(1, nodes, size=edges)) % nodes
    positions = rng.normal(size=(nodes, 3)) * 1.5
    species = rng.integers(4, size=nodes)
    return tuple(
        jnp.asarray(a, d)
        for a, d in ((positions, "f"), (species, "i"), (senders, "i"), (receivers, "i"))
    )


def sides(name: str) -> dict:
    """Return, by side, the energy as a function of (parameters, positions, *graph)."""
    network = NETWORKS[name]

    def energy(apply, with_edges):
        def function(params, positions, species, senders, receivers, edges):
            vectors = positions[senders] - positions[receivers]
            last = (edges,) if with_edges else ()
            return jnp.sum(apply(params, vectors, species, senders, receivers, *last))

        return function

    swapped = energy(network(SWAPPED).apply, False)
    found = {
        "e3nn-jax": energy(network(E3NN).apply, False),
        "swapped": swapped,
        "fused": ops.fuse(swapped),
    }
    if name in REWRITTEN:
        found["rewritten"] = energy(network(SWAPPED).apply, True)
    return found


TASKS = ("energy", "forces", "training")


def tasks(energy) -> dict:
    """Return the functions that are timed, of the arguments of an energy."""

    def forces(params, positions, *graph):
        return jax.value_and_grad(energy, 1)(params, positions, *graph)

    def loss(params, *arguments):
        value, gradient = forces(params, *arguments)
        return value**2 / len(gradient) + jnp.sum(gradient**2)

    return {"energy": energy, "forces": forces, "training": jax.grad(loss)}


def arguments(name: str):
    """Return parameters, positions and graph."""
    positions, species, senders, receivers = graph(*SIZES.get(name, (NODES, EDGES)))
    network = NETWORKS[name](E3NN)
    vectors = positions[senders] - positions[receivers]
    params = jax.jit(network.init)(jax.random.key(0), vectors, species, senders, receivers)
    edges = ops.Edges.from_arrays(senders, receivers, len(positions))
    return params, positions, species, senders, receivers, edges


def measure(name: str, seconds: float, chosen=TASKS, chosen_sides=SIDES, clock=time.perf_counter):
    """Yield the results of a network, one for each chosen task."""
    args = arguments(name)
    by_side = {s: tasks(energy) for s, energy in sides(name).items() if s in chosen_sides}
    for task in chosen:
        found = {s: turns.compiled(t[task], args) for s, t in by_side.items()}
        compiled = {s: function for s, (function, *_) in found.items()}
        scratch_mb = {s: scratch / 1e6 for s, (*_, scratch) in found.items()}
        expected = compiled["e3nn-jax"](*args)
        try:
            most = TOLERANCES.get(name, TOLERANCE)
            difference = max(record.parity(expected, c(*args), most) for c in compiled.values())
        except record.ParityError as error:
            yield {"network": name, "task": task, "error": str(error)}
            continue
        first = "rewritten" if "rewritten" in compiled else "fused"
        ordered = {first: compiled[first]} | compiled
        times = interleaved(ordered, args, seconds, clock=clock)
        result = {"network": name, "task": task, "difference": difference, "first": first}
        yield result | {"scratch_mb": scratch_mb} | times


def with_orders(energy):
    """Return the energy of a rewritten network that orders the edges itself, as `ops.fuse` does."""

    def function(params, positions, species, senders, receivers, edges):
        edges = ops.Edges.from_arrays(senders, receivers, edges.num_nodes)
        return energy(params, positions, species, senders, receivers, edges)

    return function


def count(name: str, chosen=TASKS):
    """Yield the launches of a network's chosen tasks on an H100, by side."""
    args = arguments(name)
    os.environ["EQFUSE_BACKEND"] = "triton"
    counted = sides(name)
    if "rewritten" in counted:
        counted[ORDERING] = with_orders(counted["rewritten"])
    for task in chosen:
        found = {}
        for side, energy in counted.items():
            try:
                found[side] = launches.count(tasks(energy)[task], args).launches
            except jax.errors.JaxRuntimeError as error:
                if side != "e3nn-jax":
                    raise
                found[side] = f"XLA does not compile it: {str(error).split(':')[1].strip()}"
        yield {"network": name, "task": task, "launches": found}


def scratch(name: str, chosen=TASKS):
    """Yield the scratch memory in MB of a network's chosen tasks on this machine, by side."""
    args = arguments(name)
    by_side = {side: tasks(energy) for side, energy in sides(name).items()}
    for task in chosen:
        found = {s: turns.compiled(t[task], args)[2] / 1e6 for s, t in by_side.items()}
        yield {"network": name, "task": task, "scratch_mb": found}


def row_of_memory(result: dict) -> str:
    """Return a line of the table of scratch memory."""
    found = result["scratch_mb"]
    cells = (f"{found[side]:.1f}" if side in found else "" for side in SIDES)
    return f"| {result['network']} | {result['task']} | {' | '.join(cells)} |"


def row(result: dict) -> str:
    """Return a line of the table."""
    head = f"| {result['network']} | {result['task']} |"
    if "error" in result:
        return f"{head} {result['error']} | | | | |"
    cells = []
    for side in SIDES:
        if side not in result["ms"]:
            cells.append("")
            continue
        ms, ratio = result["ms"][side], result["ratio"][side]
        times = 1 / ratio.median
        spread = f"{1 / ratio.high:.2f} to {1 / ratio.low:.2f}"
        cells.append(f"{ms.median:.1f}; {times:.2f} ({spread})")
    memory = ", ".join(f"{mb:.1f}" for mb in result["scratch_mb"].values())
    return f"{head} {' | '.join(cells)} | {memory} | {result['difference']:.0e} |"


def row_of_style(result: dict) -> str:
    """Return a line of the table of styles: how many times as fast `ops.fuse` is, and memory."""
    head = f"| {result['network']} | {result['task']} |"
    if "error" in result:
        return f"{head} {result['error']} | | | | |"
    ms, ratio, memory = result["ms"], result["ratio"]["e3nn-jax"], result["scratch_mb"]
    times = f"{1 / ratio.median:.1f} ({1 / ratio.high:.1f} to {1 / ratio.low:.1f})"
    times = f"{ms['e3nn-jax'].median:.1f} | {ms['fused'].median:.1f} | {times}"
    memory = f"{memory['e3nn-jax']:.1f} | {memory['fused']:.1f}"
    return f"{head} {times} | {memory} | {result['difference']:.0e} |"


def row_of_launches(result: dict) -> str:
    """Return a line of the table of launches."""
    cells = (str(result["launches"].get(side, "")) for side in (*SIDES, ORDERING))
    return f"| {result['network']} | {result['task']} | {' | '.join(cells)} |"


LAUNCHES_HEADER = f"""
| network | task | e3nn-jax | swapped | swapped, `ops.fuse` | rewritten | {ORDERING} |
|---|---|---:|---:|---:|---:|---:|"""
HEADER = """
| network | task | e3nn-jax | swapped | swapped, `ops.fuse` | rewritten | scratch, MB | differ by |
|---|---|---|---|---|---|---|---|"""
STYLES_HEADER = """
| style | task | e3nn-jax, ms | `fuse`, ms | times as fast | e3nn-jax, MB | `fuse`, MB | differ by |
|---|---|---:|---:|---|---:|---:|---|"""
MEMORY_HEADER = """
| network | task | e3nn-jax | swapped | swapped, `ops.fuse` | rewritten |
|---|---|---:|---:|---:|---:|"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, "styles", []], default=[])
    parser.add_argument("--processor-time", action="store_true", help="of all threads")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each comparison")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--launches", action="store_true", help="count launches, time nothing")
    what.add_argument("--memory", action="store_true", help="of intermediates; time nothing")
    parser.add_argument("--keep-memory", action="store_true", help="as train.py does")
    record.add_json_option(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    kept = record.Record(options.json)
    if options.keep_memory and not keep_freed_memory():
        parser.error("--keep-memory needs glibc")
    clock = time.process_time if options.processor_time else time.perf_counter
    styles = "styles" in options.networks
    if styles:
        options.networks = [n for n in options.networks if n != "styles"] or list(NETWORKS)
    both = ("e3nn-jax", "fused") if styles else SIDES
    chosen = "launches" if options.launches else "memory" if options.memory else "times"
    header, line, measured = {
        "times": (
            STYLES_HEADER if styles else HEADER,
            row_of_style if styles else row,
            lambda name: measure(name, options.seconds, options.tasks, both, clock),
        ),
        "launches": (LAUNCHES_HEADER, row_of_launches, lambda name: count(name, options.tasks)),
        "memory": (MEMORY_HEADER, row_of_memory, lambda name: scratch(name, options.tasks)),
    }[chosen]
    print(header, flush=True)
    for name in options.networks or NETWORKS:
        for result in measured(name):
            kept.add(result)
            print(line(result), flush=True)
    kept.finish()


if __name__ == "__main__":
    main()
