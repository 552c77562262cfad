"""Public networks on e3nn-jax as they are written: e3nn-jax, `ops.patched`, `ops.fuse`.

    python -m benchmarks.clients.unchanged [NETWORK ...] --folder FOLDER [--seconds 4]

FOLDER has a clone of each repository; `--sources` prints the commands. Times are those of a
processor, of all threads, in turn in one process. Before, energies and forces of `fuse` are
compared with those of e3nn-jax in float64, and all sides in float32.
"""

from __future__ import annotations

import argparse
import collections
import functools
import pathlib
import re
import tempfile
import time

import jax

from benchmarks import record, turns
from benchmarks.clients.__main__ import graph, tasks
from benchmarks.clients.public_networks import EDGES, NETWORKS, NODES, SOURCES, use
from eqfuse import ops

TOLERANCE, TOLERANCE_OF_DOUBLES = 1e-4, 1e-10
TASKS = "energy", "forces"
HEADER = """\
| network | task | e3nn-jax, ms | patched, times as fast | fuse, ms | times as fast | scratch, MB \
| differ by, float64 |
|---|---|---|---|---|---|---|---|"""


def difference_of_doubles(init, apply) -> float:
    """Return by how much energies and forces of `fuse` differ in float64, of the largest number.

    JAX computes all in float64 here that the network does not convert.
    """
    with jax.enable_x64(True):
        given = [a.astype("f8") if a.dtype == "f4" else a for a in graph(NODES, EDGES)]
        params = jax.jit(init)(jax.random.key(0), *given)
        doubles = jax.tree.map(lambda a: a.astype("f8") if a.dtype == "f4" else a, params)
        found = [
            jax.jit(tasks(f)["forces"])(doubles, *given)
            for f in (apply, ops.fuse(apply, patch=True))
        ]
        return record.parity(*found, TOLERANCE_OF_DOUBLES)


KINDS = {
    "fused kernels": ("eqfuse_native",),
    "matmuls": ("dot_general",),
    "gathers and sums": ("gather", "scatter", "scatter-add", "take"),
    "functions": ("tanh", "sin", "cos", "exp", "logistic", "erf", "sqrt", "pow", "integer_pow"),
    "moves": ("slice", "concatenate", "transpose", "pad", "reshape", "broadcast_in_dim", "copy"),
}
"""Kinds of work, by the last part of the name that JAX gives to an operation."""
PARTS = {
    "symmetric contractions": "/SymmetricContraction",
    "rotations": "ij,...uj->...ui",
    "MLPs": "/MultiLayerPerceptron",
    "Linears": "/Linear_",
}
"""Parts of networks, by names of modules and einsums; fused kernels belong to none of them."""


def kind(name: str, path: str) -> str:
    """Return the part or the kind of work of an operation, by its name and JAX's path to it."""
    *_, step = path.split("/")
    own = next((k for k, of in KINDS.items() if step in of), "arithmetic")
    if own == "fused kernels":
        return own
    if (part := next((p for p, of in PARTS.items() if of in path), None)) is not None:
        return part
    return "moves" if not step or name.startswith(("copy", "bitcast")) else own


def shares(compiled, args, calls: int = 20) -> str:
    """Return the shares of time by part and kind of work, by JAX's profiler.

    A fusion belongs to its last step.
    """
    names = re.findall(
        r"%?([\w.\-]+) = [^\n]*?(?:op_name=\"([^\"]*)\"[^\n]*)?\n", compiled.as_text()
    )
    kinds = {name: kind(name, path) for name, path in names}
    times = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                jax.block_until_ready(compiled(*args))
        [file] = pathlib.Path(folder).rglob("*.xplane.pb")
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for event in (event for line in plane.lines for event in line.events):
                if event.name in kinds:
                    times[kinds[event.name]] += event.duration_ns
    total = sum(times.values())
    return ", ".join(f"{time / total:.0%} {name}" for name, time in times.most_common())


def is_same(function, other, args) -> bool:
    """Return whether two functions are the same program for XLA."""
    texts = {jax.jit(f).lower(*args).as_text() for f in (function, other)}
    return len(texts) == 1


def measure(name: str, seconds: float):
    """Yield the lines of the table of a network, and then the shares of its time."""
    init, apply = NETWORKS[name]()

    @functools.wraps(apply)
    def patched(*args):
        with ops.patched():
            return apply(*args)

    doubles = difference_of_doubles(init, apply)
    given = graph(NODES, EDGES)
    args = jax.jit(init)(jax.random.key(0), *given), *given
    sides = {"fuse": ops.fuse(apply, patch=True), "e3nn-jax": apply, "patched": patched}
    for task in TASKS:
        found = {s: turns.compiled(tasks(f)[task], args) for s, f in sides.items()}
        compiled = {s: function for s, (function, *_) in found.items()}
        for side in ("fuse", "patched"):
            record.parity(compiled["e3nn-jax"](*args), compiled[side](*args), TOLERANCE)
        times = turns.interleaved(compiled, args, seconds, clock=time.process_time)
        ms, ratio = times["ms"], times["ratio"]
        alone = f"{ms['e3nn-jax'].median / ms['patched'].median:.2f}"
        if is_same(*(tasks(sides[s])[task] for s in ("e3nn-jax", "patched")), args):
            alone = "same program"
        spread = f"{1 / ratio['e3nn-jax'].high:.1f} to {1 / ratio['e3nn-jax'].low:.1f}"
        memory = ", ".join(f"{found[s][-1] / 1e6:.0f}" for s in ("e3nn-jax", "patched", "fuse"))
        cells = f"{ms['e3nn-jax'].median:.1f} | {alone} | {ms['fuse'].median:.1f}"
        cells += f" | {1 / ratio['e3nn-jax'].median:.1f} ({spread}) | {memory} | {doubles:.0e}"
        yield f"| {name} | {task} | {cells} |"
    yield f"{name}, forces by fuse: {shares(compiled['fuse'], args)}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], default=[])
    parser.add_argument("--folder", type=pathlib.Path, help="of the repositories")
    parser.add_argument("--sources", action="store_true", help="print how to get them, and end")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each comparison")
    options = parser.parse_args()
    if options.sources:
        print(SOURCES)
        return
    if options.folder is None:
        parser.error("--folder is needed: " + "`--sources` prints the commands that fill it")
    use(options.folder)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_matmul_precision", "highest")
    print(HEADER)
    profiled = []
    for name in options.networks or NETWORKS:
        try:
            *rows, share = measure(name, options.seconds)
            print(*rows, sep="\n", flush=True)
            profiled.append(share)
        except (ImportError, TypeError, record.ParityError) as error:
            print(f"| {name} | {type(error).__name__}: {error} | | | | | | |", flush=True)
    print("", *profiled, sep="\n")


if __name__ == "__main__":
    main()
