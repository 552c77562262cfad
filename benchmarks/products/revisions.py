"""Time the native kernels of graph products as two revisions of eqfuse write them, in turns.

    python -m benchmarks.products.revisions BEFORE [AFTER] [--threads 1 2] [--only TEXT] [--turns 9]

BEFORE and AFTER are revisions of git; AFTER is the working tree by default. Each writes its kernels
in a process of its own; all are compiled and timed here, one call of each after the other, on the
same arrays: where arrays lie in memory makes a larger difference than most changes of a kernel.
Edges are those of molecules of 27 atoms, in the order of their receivers. Printed: the median and
the quantiles of 10% and 90% in ms, the median of the ratios of a turn, and the largest difference
of the results relative to the largest result.
"""

import argparse
import concurrent.futures
import ctypes
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

from eqfuse.bench.cases import BOTH2, SH2, SH3, Case, times

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEP, LARGE = (135, 3026), (999, 22000)
ORDERS = "forward", "backward", "double"
PIECES = 16
"""Pieces of a pass, where there are several threads."""
CASES = {
    f"{name}, {nodes} nodes": (case, nodes, edges)
    for name, case in {
        "NequIP l<=2, 64": Case(times(64, BOTH2), SH2, BOTH2),
        "NequIP l<=2, 32": Case(times(32, BOTH2), SH2, BOTH2),
        "one parity, 16": Case(times(16, SH2), SH2, SH2),
        "one parity, 64": Case(times(64, SH2), SH2, SH2),
        "MACE-large, 128": Case(times(128, "0e+1o+2e"), SH3, SH3),
    }.items()
    for nodes, edges in (STEP, LARGE)
}


def write_kernels(path: str, only: str):
    """Write the kernels of the eqfuse that is imported to a file; run by each revision."""
    from eqfuse.ops.backends.llvm import form as emit
    from eqfuse.ops.backends.llvm.machine import machine

    kernels, here = {}, machine()
    for name, (case, nodes, edges) in CASES.items():
        for order, form in case.forms().items():
            if only in f"{name}, {order}":
                row = max((4 * o.size for o in form.outputs if o.index.value == "row"), default=0)
                parts = (here.num_parts(row * edges),) if hasattr(here, "num_parts") else ()
                written = emit.write(form, "float32", here, *parts)
                passes = [
                    (p.name, p.units.count or p.units.number(edges, nodes), p.scratch, size)
                    for p in written.passes
                    for size in [nodes if p.units.count else edges]
                ]
                numbers = written.arguments.numbers
                copies = [key for key in numbers if key[0] in ("copy", "sum")]
                widths = dict(zip(copies, written.copies, strict=True))
                text = emit.generate(form, "float32", here, *parts).text
                kernels[name, order] = text, numbers, passes, widths
    pathlib.Path(path).write_bytes(pickle.dumps(kernels))


def kernels_of(revision: str | None, only: str) -> dict:
    """Return the kernels that a revision writes; None for the working tree."""
    with tempfile.TemporaryDirectory() as folder:
        root, out = ROOT, f"{folder}/kernels"
        if revision:
            root = pathlib.Path(folder) / "tree"
            root.mkdir()
            archive = subprocess.run(
                ["git", "archive", revision, "eqfuse"], cwd=ROOT, check=True, capture_output=True
            )
            subprocess.run(["tar", "x", "-C", root], input=archive.stdout, check=True)
            (root / "benchmarks").symlink_to(ROOT / "benchmarks")
            if not (root / "eqfuse" / "bench").exists():  # the cases
                (root / "eqfuse" / "bench").symlink_to(ROOT / "eqfuse" / "bench")
        program = f"from {__spec__.name} import write_kernels; write_kernels({out!r}, {only!r})"
        environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True)
        return pickle.loads(pathlib.Path(out).read_bytes())


def linked(text: str, names: list[str], tag: str) -> list[int]:
    """Compile a kernel and return the addresses of its passes."""
    import llvmlite.binding as llvm

    from eqfuse.ops.backends.llvm import machine

    for name in names:
        text = re.sub(rf"@{name}\b", f"@{tag}_{name}", text)
    text = text.replace(f"define internal void @{tag}_", f"define void @{tag}_")
    text = text[: text.index("declare ptr @eqfuse_call")]
    code = machine._target()[0].emit_object(llvm.parse_assembly(text))
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in names:
        builder.export_symbol(f"{tag}_{name}")
    library = builder.link(machine._compiler(), f"library_{tag}")
    _linked.append(library)
    return [library[f"{tag}_{name}"] for name in names]


_linked: list = []
"""Libraries are unloaded with their objects."""


def arrays(shape) -> np.ndarray:
    """Return zeros at a multiple of 64 bytes, as XLA's arrays are."""
    num_bytes = 4 * int(np.prod(shape))
    memory = np.zeros(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + num_bytes].view(np.float32).reshape(shape)


def edges_of_molecules(nodes: int, num_edges: int) -> dict[str, np.ndarray]:
    """Return the index arrays of a graph by name; see `eqfuse.ops.Edges`."""
    rng = np.random.default_rng(0)
    molecule = 27 * rng.integers(0, nodes // 27, num_edges)
    senders, receivers = rng.integers(0, 27, (2, num_edges)) + molecule
    order = np.lexsort((senders, receivers))
    found = {"senders": senders[order], "receivers": receivers[order]}
    for name in ("sender", "receiver"):
        index = found[f"{name}s"]
        found[f"{name}_order"] = np.argsort(index, kind="stable")
        found[f"{name}_ptr"] = np.searchsorted(np.sort(index), np.arange(nodes + 1))
    return {name: array.astype(np.int32) for name, array in found.items()}


class Kernel:
    """A compiled kernel with its arrays, as a function that runs it on some threads.

    Args:
      shared: arrays by key and shape; all kernels that are given it use the same.
    """

    def __init__(self, kernel, form, nodes: int, num_edges: int, tag: str, shared: dict):
        text, numbers, passes, widths = kernel

        def array(key, *shape):
            if (key, shape) not in shared:
                shared[key, shape] = arrays(shape)
                if key[0] == "in":
                    shared[key, shape][...] = np.random.default_rng(key[1]).normal(size=shape)
            return shared[key, shape]

        operands = {("out", n): o for n, o in enumerate(form.outputs)}
        operands |= {("in", n): o for n, o in enumerate(form.inputs)}
        self._arrays = {
            key: array(key, o.index.count(num_edges, nodes), o.size) for key, o in operands.items()
        }
        self.outputs = [array for key, array in self._arrays.items() if key[0] == "out"]
        self._arrays |= {key: array(key, nodes, width) for key, width in widths.items()}
        graph = edges_of_molecules(nodes, num_edges)
        self._arrays |= {("index", name): array for name, array in graph.items()}
        table = [self._arrays[key].ctypes.data for key in sorted(numbers, key=numbers.get)]
        self._table = (ctypes.c_void_p * len(table))(*table)
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *3 * [ctypes.c_int64], ctypes.c_void_p)
        places = linked(text, [name for name, *_ in passes], tag)
        self._passes = [(kind(p), *rest) for p, (_, *rest) in zip(places, passes, strict=True)]
        self._scratch = [arrays(max(p[2] for p in self._passes)) for _ in range(8)]

    def run(self, pool, threads: int):
        """Run all passes; each thread takes one piece of a pass after the other."""
        for function, units, _, rows in self._passes:
            size = -(-units // (PIECES if threads > 1 else 1)) or 1
            pieces = iter(range(0, units, size))

            def work(t, function=function, units=units, rows=rows, size=size, pieces=pieces):
                scratch = self._scratch[t].ctypes.data
                for begin in pieces:
                    end = min(units, begin + size)
                    function(ctypes.addressof(self._table), begin, end, rows, scratch)

            list(pool.map(work, range(threads))) if threads > 1 else work(0)


def compare(name: str, order: str, kernels: list, threads: list[int], turns: int):
    """Time a kernel of both revisions and print a row for each number of threads."""
    case, nodes, num_edges = CASES[name]
    form = case.forms()[order]
    tag = re.sub(r"\W", "_", f"{name}_{order}")
    shared: dict = {}
    sides = [Kernel(k, form, nodes, num_edges, f"{tag}_{n}", shared) for n, k in enumerate(kernels)]
    results = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for side in sides:
            side.run(pool, 1)
            results.append([output.copy() for output in side.outputs])
    pairs = zip(*results, strict=True)
    difference = max(abs(a - b).max() / abs(a).max() for a, b in pairs)
    for count in threads:
        seconds = np.empty((turns + 1, len(sides)))
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            for turn in seconds:
                for n, side in enumerate(sides):
                    start = time.perf_counter()
                    side.run(pool, count)
                    turn[n] = time.perf_counter() - start
        low, middle, high = 1e3 * np.quantile(seconds[1:], (0.1, 0.5, 0.9), axis=0)
        ratio = np.median(seconds[1:, 0] / seconds[1:, 1])
        cells = [f"{m:.3g} ({a:.3g} to {b:.3g})" for a, m, b in zip(low, middle, high, strict=True)]
        row = [f"{name}, {order}", str(count), *cells, f"{ratio:.2f}", f"{difference:.0e}"]
        print(f"| {' | '.join(row)} |", flush=True)


def main():
    """Do what the arguments ask for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.products.revisions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", help="a revision of git")
    parser.add_argument("after", nargs="?", help="another; the working tree by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    sides = [kernels_of(revision, options.only) for revision in (options.before, options.after)]
    print("| kernel | threads | before, ms | after, ms | ratio | difference |")
    print("|---|---|---|---|---|---|")
    for name, order in sides[0]:
        compare(name, order, [s[name, order] for s in sides], options.threads, options.turns)


if __name__ == "__main__":
    main()
