"""Time energy, forces and stress of networks of mace-torch, by mace-torch and by eqfuse.

    python -m benchmarks.clients.mace_torch [--shapes "MP-0 small"] [--atoms 24 96] [--out FILE.md]

It needs mace-torch and torch (both on PyPI). The weights are random numbers in the shape of
published networks. Both sides get the same structure with its neighbour list, are warm, and take
turns on the same two threads. mace-torch runs eagerly and, where that works, compiled
(`compile_mode`), with parameters that need no gradients. The compiled network is tried in a process
of its own first, because torch's compiler can abort. Forces that differ from mace's by more than
1e-3 are an error, and nothing is timed.
"""

import os

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # mace's own import needs it

import argparse
import dataclasses
import multiprocessing
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import torch
from mace.tools.compile import prepare
from mace.tools.scripts_utils import extract_model

from benchmarks.clients import mace_networks  # before mace itself: it sees to its warnings
from eqfuse.convert import convert
from eqfuse.data import Sample, Shape, collate, neighbor_list
from eqfuse.models import predict
from eqfuse.train import load_run

THREADS = 2
WARM = 3
"""Evaluations before the clock: torch optimises what it has seen twice."""
ATOMS = (24, 96, 500)
AGREE = 1e-3


@dataclasses.dataclass(frozen=True)
class Row:
    """Times of one network on one structure, s: median, fastest; NaN where it did not run."""

    shape: str
    atoms: int
    edges: int
    eager: tuple[float, float]
    compiled: tuple[float, float]
    ours: tuple[float, float]
    error: float

    @property
    def ratio(self) -> float:
        """Return how much faster eqfuse is than the faster of the other two, by medians."""
        return np.nanmin([self.eager[0], self.compiled[0]]) / self.ours[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="*", default=list(mace_networks.SHAPES))
    parser.add_argument("--atoms", nargs="*", type=int, default=list(ATOMS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--no-compile", action="store_true", help="of mace-torch only eager")
    parser.add_argument("--out", type=Path, help="write the table there, as Markdown")
    options = parser.parse_args(arguments)
    torch.set_num_threads(THREADS)
    # before JAX makes its threads, which then are as many
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    jax.config.update("jax_default_matmul_precision", "highest")
    rows = []
    for name in options.shapes:
        shape = mace_networks.SHAPES[name]
        network = mace_networks.random_network(shape, "float32")
        with tempfile.TemporaryDirectory() as folder:
            torch.save(network, f"{folder}/random.model")
            convert("mace", f"{folder}/random.model", f"{folder}/run")
            potential, params, metadata = load_run(f"{folder}/run")
        compiled = None
        if not options.no_compile and _compiles(name):
            compiled = _compiled(network)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        for count in options.atoms:
            atoms = mace_networks.crystal(shape, count)
            batch = mace_networks.batch_of(network, shape, atoms)
            graph = _graph(atoms, metadata)
            rows.append(_row(name, (network, compiled, batch), (potential, params, graph), options))
            print(_line(rows[-1]), flush=True)
            if options.out:
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(table(rows), encoding="utf-8")
    return 0


def _compiles(name: str) -> bool:
    """Return whether mace's `compile_mode` survives one evaluation of this shape."""
    process = multiprocessing.get_context("spawn").Process(target=_try_compiled, args=(name,))
    process.start()
    process.join()
    if process.exitcode:
        print(f"{name}: compile_mode is left out, it ended with {process.exitcode}", flush=True)
    return process.exitcode == 0


def _try_compiled(name: str) -> None:
    torch.set_num_threads(THREADS)
    shape = mace_networks.SHAPES[name]
    network = mace_networks.random_network(shape, "float32")
    batch = mace_networks.batch_of(network, shape, mace_networks.crystal(shape, ATOMS[0]))
    _by_mace(_compiled(network), batch, training=True)


def _compiled(network):
    """Return the network by torch.compile, as mace's own `compile_mode` has it."""
    made = prepare(extract_model)(model=network, map_location="cpu")
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return torch.compile(made, mode="default", fullgraph=False)


def _by_mace(module, batch: dict, training: bool = False) -> dict:
    data = {k: v.detach() if torch.is_tensor(v) else v for k, v in batch.items()}
    for name in ("node_attrs", "positions") if training else ():
        data[name].requires_grad_(True)
    return module(data, compute_stress=True, training=training)


def _graph(atoms, metadata):
    cutoff = metadata["model_fields"]["cutoff"]
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    species = np.searchsorted(metadata["species"], atoms.numbers).astype(np.int32)
    forces = np.zeros_like(atoms.positions)
    sample = Sample(atoms.positions, species, *edges, atoms.cell.array, 0.0, forces)
    return collate([sample], Shape(len(atoms) + 1, sample.num_edges, 2), "float32").graph


def _row(name, theirs, ours, options) -> Row:
    network, compiled, batch = theirs
    potential, params, graph = ours
    evaluated = jax.jit(lambda p, g: predict(potential, p, g, stress=True))
    graph = jax.device_put(graph)

    def by_eqfuse():
        return jax.block_until_ready(evaluated(params, graph))

    runs = {"eager": lambda: _by_mace(network, batch), "ours": by_eqfuse}
    if compiled is not None:
        # as mace's calculator does
        runs["compiled"] = lambda: _by_mace(compiled, batch, training=True)
    times = {kind: [] for kind in ("eager", "compiled", "ours")}
    count = batch["positions"].shape[0]
    forces = runs["eager"]()["forces"].detach().numpy()
    error = abs(np.asarray(by_eqfuse().forces)[:count] - forces).max() / abs(forces).max()
    if not error < AGREE:
        raise RuntimeError(f"{name}, {count} atoms: forces are apart by {error:.1e}; not timed")
    for run in [*runs.values()] * WARM:
        run()
    for _ in range(options.repeats):
        for kind, run in runs.items():
            start = time.perf_counter()
            run()
            times[kind].append(time.perf_counter() - start)
    found = {
        kind: (statistics.median(t), min(t)) if t else (np.nan, np.nan) for kind, t in times.items()
    }
    return Row(name, count, batch["edge_index"].shape[1], **found, error=float(error))


def _line(row: Row) -> str:
    times = [
        "did not run" if np.isnan(median) else f"{median * 1e3:.0f} ({fastest * 1e3:.0f})"
        for median, fastest in (row.eager, row.compiled, row.ours)
    ]
    cells = [row.shape, row.atoms, row.edges, *times, f"{row.ratio:.1f}", f"{row.error:.0e}"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(rows: list[Row]) -> str:
    """Return the results as a page of Markdown."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("mace-torch", "torch", "jax"))
    heads = (
        "network",
        "atoms",
        "edges",
        "mace-torch, eager, ms",
        "mace-torch, compiled, ms",
        "eqfuse, ms",
        "times faster",
        "forces differ by",
    )
    return "\n".join(
        [
            "# mace-torch and eqfuse side by side",
            "",
            "Energy, forces and stress of one periodic structure by networks with random weights, "
            "in float32, on two threads; median of alternating warm evaluations, and the fastest "
            "in brackets. The ratio is to the faster one of mace-torch's. Forces differ relative "
            "to the largest. `python -m benchmarks.clients.mace_torch` measures it.",
            "",
            f"{packages}; Python {platform.python_version()}, {platform.machine()}, "
            f"{os.cpu_count()} cores.",
            "",
            "| " + " | ".join(heads) + " |",
            "| --- | " + " | ".join("---:" for _ in heads[1:]) + " |",
            *(_line(row) for row in rows),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
