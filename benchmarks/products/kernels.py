"""Compile the kernels of every case from nothing, without a GPU, and print what they take.

    python -m benchmarks.products.kernels [--json FILE] [--cases NAME ...] [--targets sm_90 ...]

Prints tables in Markdown: kernels per op, terms, lines of Triton, registers per thread, bytes that
are spilled (AMD: scratch memory), shared memory, seconds to compile; then the time that all kernels
of a NequIP take. Before that every case runs in Triton's interpreter, and one that does not give
what e3nn-jax gives is left out. Fails if there is one, or if a kernel for NVIDIA spills.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import interpreted, record
from benchmarks.fused_cases import CASES as FUSED
from benchmarks.fused_cases import kernels as fused_kernels
from benchmarks.gpu.cases import CASES
from eqfuse.graph import Graph
from eqfuse.models import build
from eqfuse.models.potential import Potential, predict
from eqfuse.ops import Edges, _host
from eqfuse.ops.backends.triton import compile
from eqfuse.ops.backends.triton import form as plan
from eqfuse.ops.backends.triton.compile import compile_many
from eqfuse.ops.ir.form import derivatives
from eqfuse.ops.primitives.lowering import compile_ahead

TARGETS = ("sm_80", "sm_90", "gfx942")
OTHER_DTYPES = dict.fromkeys(("nequip-64-l2", "fused nequip-64-l2"), ("float64", "bfloat16"))
NAMES = [*CASES, *(f"fused {name}" for name in FUSED)]


@dataclasses.dataclass(frozen=True)
class Row:
    """An op compiled for a target; one number for each of its kernels where there is a tuple."""

    case: str
    order: str
    dtype: str
    target: str
    kernels: int
    terms: int
    lines: tuple[int, ...]
    registers: tuple[int, ...]
    spilled_bytes: tuple[int, ...]
    shared_bytes: tuple[int, ...]
    compile_seconds: tuple[float, ...]


@contextlib.contextmanager
def empty_cache():
    """Return a context in which nothing is compiled yet: the cache is an empty folder."""
    before = os.environ.get("EQFUSE_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EQFUSE_CACHE_DIR"] = folder
        compile._KERNELS.clear()
        try:
            yield
        finally:
            os.environ.pop("EQFUSE_CACHE_DIR")
            if before is not None:
                os.environ["EQFUSE_CACHE_DIR"] = before
            compile._KERNELS.clear()


def kernels_of(name: str, dtype: str):
    """Return (order, terms of the product, kernels) of a case; over rows, the fused ones."""
    if name in CASES:
        forms = CASES[name].forms()
        specs = {o: [k.spec for k in plan.kernels(form, dtype)] for o, form in forms.items()}
    else:
        fused = FUSED[name.removeprefix("fused ")]
        forms, specs = derivatives(fused.form), fused_kernels(fused, dtype)
    return [(order, forms[order].num_terms, found) for order, found in specs.items()]


def measure(names, target: str, threads: int) -> list[Row]:
    """Compile the cases `names` for one target, all orders, `threads` kernels at a time."""
    ops = {}
    for name in names:
        for dtype in ("float32", *OTHER_DTYPES.get(name, ())):
            for order, terms, specs in kernels_of(name, dtype):
                ops[name, order, dtype] = terms, specs
    specs = [spec for _, specs in ops.values() for spec in specs]
    with empty_cache():
        compiled = dict(zip(specs, compile_many(specs, target, threads), strict=True))
    rows = []
    for (name, order, dtype), (terms, specs) in ops.items():
        found = [compiled[spec] for spec in specs]
        rows.append(
            Row(
                name,
                order,
                dtype,
                target,
                len(specs),
                terms,
                tuple(len(spec.source.splitlines()) for spec in specs),
                tuple(kernel.registers for kernel in found),
                tuple(kernel.spilled_bytes for kernel in found),
                tuple(kernel.shared_bytes for kernel in found),
                tuple(kernel.compile_seconds for kernel in found),
            )
        )
    return rows


def training_step(num_nodes: int = 12, num_edges: int = 40):
    """Energy, forces and the gradient of a loss on both, of NequIP; and arguments of them."""
    model = build("nequip", layers=3, channels=64, lmax=2, parity=True, backend="triton")
    potential = Potential(model, scale=(1.0,), shift=(0.0,))
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(num_nodes, size=(2, num_edges))
    graph = Graph(
        positions=jnp.zeros((num_nodes, 3)),
        species=jnp.zeros(num_nodes, jnp.int32),
        edges=jax.tree.map(jnp.asarray, Edges.from_arrays(senders, receivers, num_nodes)),
        shifts=jnp.zeros((num_edges, 3)),
        graph_index=jnp.zeros(num_nodes, jnp.int32),
        cells=jnp.zeros((1, 3, 3)),
        node_mask=jnp.ones(num_nodes, bool),
        graph_mask=jnp.ones(1, bool),
    )
    params = jax.eval_shape(
        potential.init, jax.random.key(0), graph.vectors, graph.species, graph.edges
    )

    def loss(params, graph):
        prediction = predict(potential, params, graph)
        return jnp.sum(prediction.energy**2) + jnp.sum(prediction.forces**2)

    def step(params, graph):
        energies = potential.apply(params, graph.vectors, graph.species, graph.edges)
        return energies, predict(potential, params, graph).forces, jax.grad(loss)(params, graph)

    return step, (params, graph)


def measure_network(target: str, threads: int) -> dict:
    """Wall time of compiling all kernels of NequIP from nothing, in parallel."""
    step, args = training_step()
    with empty_cache():
        start = time.perf_counter()
        kernels = compile_ahead(step, *args, target=target, threads=threads)
        seconds = time.perf_counter() - start
    return {
        "target": target,
        "threads": threads,
        "kernels": len(kernels),
        "seconds": round(seconds, 1),
        "seconds_one_by_one": round(sum(kernel.compile_seconds for kernel in kernels), 1),
        "spilled_bytes": sum(kernel.spilled_bytes for kernel in kernels),
    }


def table(rows: list[Row]) -> str:
    """Return the rows in Markdown; lines and seconds are sums over the kernels of an op."""
    lines = [
        "| case | order | dtype | kernels | terms | lines | registers | spilled | shared | time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r.case, r.order, r.dtype, r.kernels, r.terms, sum(r.lines)]
        cells += [_each(r.registers), _each(r.spilled_bytes), _each(r.shared_bytes)]
        lines.append(f"| {' | '.join(map(str, cells))} | {sum(r.compile_seconds):.1f} s |")
    return "\n".join(lines)


def _each(numbers) -> str:
    """Return the numbers of the kernels, their range if many, or one 0 if all are 0."""
    if not any(numbers):
        return "0"
    if len(numbers) > 3:
        return f"{min(numbers)} to {max(numbers)}"
    return ", ".join(map(str, numbers))


def compared(names, kept: record.Record) -> list[str]:
    """Return the cases that agree with e3nn-jax in the interpreter; record errors."""
    alike = []
    for name in names:
        try:
            difference = interpreted.check(name)
        except record.ParityError as error:
            kept.add({"case": name, "error": str(error)})
            continue
        kept.add({"case": name, "parity": difference})
        alike.append(name)
    return alike


def main() -> None:
    """Print the tables, and keep the numbers in a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), help="sm_90, gfx942, ...")
    parser.add_argument("--threads", type=int, default=_host.num_processors())
    record.add_json_option(parser)
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")

    kept = record.Record(options.json)
    print(f"{kept.environment['versions']}; {options.threads} kernels at a time\n", flush=True)
    names = compared(options.cases, kept)
    spilling = []
    for target in options.targets:
        rows = measure(names, target, options.threads)
        print(f"### {target}\n\n{table(rows)}\n", flush=True)
        for row in rows:
            kept.add(dataclasses.asdict(row))
        network = measure_network(target, options.threads)
        print("NequIP, 3 layers, 64 channels, l <= 2, both parities:", network, flush=True)
        kept.add(network)
        if target.startswith("sm_"):
            spilling += [(r.case, r.order, r.dtype, target) for r in rows if any(r.spilled_bytes)]
            spilling += [("NequIP", target)] * bool(network["spilled_bytes"])
    if spilling:
        sys.exit(f"kernels spill: {spilling}")
    kept.finish()


if __name__ == "__main__":
    main()
