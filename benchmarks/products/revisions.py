"""Time the native kernels of graph products as two revisions of eqfuse write them, in turns.

    python -m benchmarks.products.revisions BEFORE [AFTER] [--threads 1 2] [--only TEXT] [--turns 9]

BEFORE and AFTER are revisions of git; AFTER is the working tree by default. Each writes its kernels
in a process of its own; all are compiled and timed here, one call of each after the other. Edges
are those of molecules of 27 atoms, in the order of their receivers. Printed: the median and the
quantiles of 10% and 90% in ms, the median of the ratios of a turn, and the largest difference of
the results relative to the largest result.
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
    from eqfuse.ops.backends.llvm.emit import form as emit
    from eqfuse.ops.backends.llvm.runtime.machine import machine

    kernels = {}
    for name, (case, nodes, edges) in CASES.items():
        for order, form in case.forms().items():
            if only in f"{name}, {order}":
                passes = emit.write(form, "float32", machine())
                units = [(p.name, p.units.number(edges, nodes), p.scratch) for p in passes.passes]
                text = emit.generate(form, "float32", machine()).text
                kernels[name, order] = text, passes.arguments.numbers, units
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
        program = f"from {__spec__.name} import write_kernels; write_kernels({out!r}, {only!r})"
        environment = os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
        subprocess.run([sys.executable, "-c", program], cwd=root, env=environment, check=True)
        return pickle.loads(pathlib.Path(out).read_bytes())


def linked(text: str, names: list[str], tag: str) -> list[int]:
    """Compile a kernel and return the addresses of its passes."""
    import llvmlite.binding as llvm

    from eqfuse.ops.backends.llvm.runtime import machine

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
    """A compiled kernel with its arrays, as a function that runs it on some threads."""

    def __init__(self, kernel, form, nodes: int, num_edges: int, tag: str):
        text, numbers, passes = kernel
        rng = np.random.default_rng(1)
        graph = edges_of_molecules(nodes, num_edges)
        self.outputs = [arrays((o.index.count(num_edges, nodes), o.size)) for o in form.outputs]
        self._arrays = {("out", n): array for n, array in enumerate(self.outputs)}
        for n, operand in enumerate(form.inputs):
            array = arrays((operand.index.count(num_edges, nodes), operand.size))
            array[...] = rng.normal(size=array.shape)
            self._arrays["in", n] = array
            self._arrays["copy", n] = arrays((nodes, 2 * operand.size))
        self._arrays |= {("index", name): array for name, array in graph.items()}
        table = [self._arrays[key].ctypes.data for key in sorted(numbers, key=numbers.get)]
        self._table, self._edges = (ctypes.c_void_p * len(table))(*table), num_edges
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *3 * [ctypes.c_int64], ctypes.c_void_p)
        places = linked(text, [name for name, *_ in passes], tag)
        self._passes = [(kind(p), *rest) for p, (_, *rest) in zip(places, passes, strict=True)]
        self._scratch = [arrays(max(p[2] for p in self._passes)) for _ in range(8)]

    def run(self, pool, threads: int):
        """Run all passes, each split among the threads."""
        for function, units, _ in self._passes:

            def part(t, function=function, units=units):
                begin, end = units * t // threads, units * (t + 1) // threads
                scratch = self._scratch[t].ctypes.data
                function(ctypes.addressof(self._table), begin, end, self._edges, scratch)

            list(pool.map(part, range(threads))) if threads > 1 else part(0)


def compare(name: str, order: str, kernels: list, threads: list[int], turns: int):
    """Time a kernel of both revisions and print a row for each number of threads."""
    case, nodes, num_edges = CASES[name]
    form = case.forms()[order]
    tag = re.sub(r"\W", "_", f"{name}_{order}")
    sides = [Kernel(k, form, nodes, num_edges, f"{tag}_{n}") for n, k in enumerate(kernels)]
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
        pairs = zip(*(side.outputs for side in sides), strict=True)
        difference = max(abs(a - b).max() / abs(a).max() for a, b in pairs)
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
